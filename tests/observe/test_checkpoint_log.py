"""F16: log lines of what is saved, loaded and resumed."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import MemoryCheckpointer, MemoryStore, StateGraph, Workflow, secret
from limpet.yaml_files.loading import loads

LOGGER = "limpet.checkpoint"
VALUES = "limpet.checkpoint.values"


def approving(**options: Any) -> StateGraph:
    graph = StateGraph({"word": str, "key": Annotated[str, secret]}, name="g")
    graph.add_node("write", run=lambda state: {"word": "kelp"}).add_node("send", run=lambda state: {})
    graph.add_edge("write", "send").set_entry_point("write").set_finish_point("send")
    return graph.compile(allow_plain_text_secrets=True, **options)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines that were written to the logger since the last call."""
    caplog.set_level(logging.INFO, LOGGER)
    # Examples of the documentation run in the same process, and one of them asks for values.
    caplog.set_level(logging.NOTSET, VALUES)

    def taken() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name.startswith(LOGGER)]
        caplog.clear()
        return found

    return taken


def test_files_are_logged_when_they_are_saved_and_loaded(tmp_path: Path, lines: Any) -> None:
    """F16, F7: by hand, and by a run that stops."""
    graph = approving(checkpoint_dir=tmp_path, interrupt_before=["send"])
    path = graph.save_checkpoint(tmp_path / "c.pkl", {"word": "kelp"}, "send")
    assert lines() == [f"checkpoint.save node=send path={path}"]
    StateGraph.load_checkpoint(path)
    assert lines() == [f"checkpoint.load node=send path={path}"]
    (stop,) = graph.invoke({"key": "xyzzy"}, run_id="r")
    reference = stop["checkpoint_path"]
    assert lines() == [f"checkpoint.save node=send step=1 reference={reference} run=r"]
    list(graph.invoke(checkpoint=reference))
    loaded, resumed = lines()
    assert loaded == f"checkpoint.load node=send reference={reference}"
    assert resumed.startswith("checkpoint.resume node=send step=1 run=")


def test_a_users_checkpointer_and_a_resumed_run_are_logged(lines: Any) -> None:
    """F16, F11."""
    kept = MemoryCheckpointer()
    graph = approving(checkpointer=kept, interrupt_before=["send"])
    (stop,) = graph.invoke({}, run_id="r")
    assert lines() == [f"checkpoint.save node=send step=1 reference={stop['checkpoint_path']} run=r"]
    stored = approving(store=MemoryStore(), interrupt_before=["send"])
    stored.invoke({}, run_id="s").wait()
    assert lines() == []
    stored.resume("s")
    assert lines() == ["checkpoint.resume node=send step=1 run=s"]


def test_the_steps_that_a_store_saves_are_logged_at_debug(
    lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """F16: and cost nothing without it."""
    caplog.set_level(logging.DEBUG, LOGGER)
    approving(store=MemoryStore(), preserve=True).execute({"key": "xyzzy"}, run_id="r")
    assert lines() == [
        "checkpoint.save node=write step=1 run=r source=g",
        "checkpoint.save node=send step=2 run=r source=g",
    ]


def test_values_are_logged_on_request_only_and_secrets_never(
    tmp_path: Path, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """F16: to turn on DEBUG for everything isn't to ask for values."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, LOGGER)
    graph = approving(store=MemoryStore(), interrupt_before=["send"])

    def use(run_id: str) -> str:
        graph.invoke({"key": "xyzzy"}, run_id=run_id).wait()
        graph.resume(run_id)
        graph.save_checkpoint(tmp_path / "c.pkl", {"word": "kelp", "key": "xyzzy"}, "send")
        return "\n".join(lines())

    assert "kelp" not in use("r")
    caplog.set_level(logging.DEBUG, VALUES)
    shown = use("s")
    assert shown.count("'word': 'kelp'") == 4
    assert "xyzzy" not in shown


def test_a_secret_is_masked_in_the_values_of_other_keys(lines: Any, caplog: pytest.LogCaptureFixture) -> None:
    """F16: as it is, and as `repr` shows it; also where it is the result of a secret task."""
    caplog.set_level(logging.DEBUG, LOGGER)
    caplog.set_level(logging.DEBUG, VALUES)
    graph = StateGraph({"greeting": str, "key": Annotated[str, secret]}, name="g")
    graph.add_node(
        "greet", run=lambda state: {"greeting": f"Hello {state['key']}!", "all": [{"x": state["key"]}]}
    )
    graph.set_entry_point("greet").set_finish_point("greet").compile(store=MemoryStore(), preserve=True)
    graph.execute({"key": "quo'te\\d"}, run_id="r")
    flow = Workflow("w", store=MemoryStore(), preserve=True)
    flow.add_task("login", lambda: {"token": "hunter2"}, secret=True)
    flow.add_task("use", lambda login: f"with {login}", ["login"])
    flow.execute({}, run_id="s")
    shown = "\n".join(lines())
    assert "Hello ‹secret›!" in shown
    assert "hunter2" not in shown
    assert "quo" not in shown


def test_a_value_that_raises_when_it_is_shown_breaks_no_run(
    lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """F16: such as a number that Python refuses to write in decimal."""
    caplog.set_level(logging.DEBUG, LOGGER)
    caplog.set_level(logging.DEBUG, VALUES)
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"n": 10**5000})
    graph.set_entry_point("a").set_finish_point("a").compile(store=MemoryStore(), preserve=True)
    assert graph.execute({}, run_id="r")["n"] == 10**5000
    assert lines()[-1] == "checkpoint.save state=<can't be shown: ValueError>"


def test_the_actions_of_yaml_files_are_logged(tmp_path: Path, lines: Any) -> None:
    """F16, F13."""
    path = tmp_path / "c.pkl"
    text = f"""
name: keeper
nodes:
  - name: save
    uses: checkpoint.save
    with: {{path: {path}}}
  - name: load
    uses: checkpoint.load
    with: {{path: {path}}}
    output: found
edges: [{{from: save, to: load}}]
finish: load
"""
    loads(text).execute({}, run_id="r")
    assert lines() == [
        f"checkpoint.save node=save path={path} run=r",
        f"checkpoint.load node=save path={path} run=r",
    ]


def test_a_program_without_logging_doesnt_pay_for_it(tmp_path: Path) -> None:
    """F16: nothing imports `logging` in order to write a line that isn't read."""
    script = """
import sys
from limpet import MemoryStore, StateGraph
graph = StateGraph(name="g").add_node("a", run=lambda state: {}).add_node("b", run=lambda state: {})
graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b")
graph.compile(store=MemoryStore(), interrupt_before=["b"])
graph.invoke({}, run_id="r").wait()
graph.resume("r")
graph.save_checkpoint(sys.argv[1], {}, "b")
assert "logging" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "c.pkl")], check=True, timeout=60)
