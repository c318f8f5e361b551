"""A chat agent in a worker process: its tokens reach a follower elsewhere, though the worker is killed. H12."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Runs, open_store
from support.followers import Client
from support.waiting import until

AGENT = '''
import os
import time
from typing import Annotated

from limpet import END, START, NodeContext, StateGraph, append

TOKENS = ["Kelp ", "is ", "a ", "large ", "brown ", "alga."]


def fake_model(messages):
    """Tokens one after the other; it hangs after the fourth, unless it may finish."""
    for number, token in enumerate(TOKENS):
        while number == 4 and not os.path.exists("may_finish"):
            time.sleep(0.01)
        yield token


def answer(state, ctx: NodeContext):
    words = []
    for word in fake_model(state["messages"]):
        ctx.emit(word)
        ctx.progress(len(words), len(TOKENS), "writing")
        words.append(word)
    return {"messages": [{"role": "agent", "text": "".join(words)}]}


graph = StateGraph({"messages": Annotated[list, append]}, name="chat")
graph.add_node("answer", run=answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
'''


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts workers that execute the agent, and ends what is left of them."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "limpet",
            "worker",
            "--graph",
            "agent.py:graph",
            "--store",
            "sqlite:///chat.db",
        ]
        environment = {**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **quiet))
        return started[-1]

    (tmp_path / "agent.py").write_text(AGENT)
    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_follower_sees_the_tokens_of_a_killed_worker_and_then_the_second_attempt(
    worker: Callable[[], subprocess.Popen[bytes]],
    tmp_path: Path,
    asynchronous: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the node runs, from the store; the second call has another number, and begins with the first token."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    import agent  # type: ignore[import-not-found]  # it was written just now

    store = open_store(f"sqlite:///{tmp_path}/chat.db")
    agent.graph.compile(store=store).start(
        {"messages": [{"role": "user", "text": "What is kelp?"}]}, run_id="c"
    )
    client = Client(Runs(store).get("c"), asynchronous=asynchronous)

    def tokens() -> list[dict[str, Any]]:
        return [event for event in client.events if event["type"] == "output"]

    first = worker()
    until(lambda: len(tokens()) == 4, "four tokens of a node that still runs")
    assert Runs(store).get("c").shown_status == "running"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    (tmp_path / "may_finish").touch()
    worker()
    events = client.all()

    by_call: dict[str, list[dict[str, Any]]] = {}
    for event in tokens():
        by_call.setdefault(event["call"], []).append(event)
    crashed, finished = by_call.values()
    assert [event["data"] for event in crashed] == agent.TOKENS[:4]
    assert [event["data"] for event in finished] == agent.TOKENS
    for call in (crashed, finished):
        assert [event["index"] for event in call] == list(range(len(call)))
        assert {(event["step"], event["node"]) for event in call} == {(1, "answer")}
    kinds = [event["type"] for event in events]
    assert kinds.index("step") > max(place for place, kind in enumerate(kinds) if kind == "output")
    assert kinds[-1] == "complete"
    assert [event["done"] for event in events if event["type"] == "progress"][-1] == len(agent.TOKENS) - 1
    answer = Runs(store).get("c").state["messages"][-1]
    assert answer["text"] == "Kelp is a large brown alga."
    store.close()
