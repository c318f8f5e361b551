"""`limpet mcp` as a process: what reaches standard output, kills and restarts, signals, and HTTP with its token."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import ElicitResult, InputRequiredResult

import limpet as library
from limpet import Runs
from support.mcp_clients import Person, call, data, says, talk
from support.waiting import SOON, until

FLOWS = """
import os, subprocess, sys, time

from limpet import StateGraph, pause

print("noise of a module")


def first(state):
    print("noise of a node")
    os.write(1, b"noise of a descriptor\\n")
    subprocess.run(["echo", "noise of a child process"])
    with open("calls", "a") as calls:
        calls.write("first ")
    return {"seen": 1}


def second(state):
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    while os.path.exists("hold"):
        time.sleep(0.02)
    return {"seen": 2}


slow = StateGraph({"seen": int}, name="slow")
slow.add_node("first", first).add_node("second", second)
slow.set_entry_point("first").add_edge("first", "second").set_finish_point("second")

article = StateGraph({"topic": str, "verdict": str}, name="article")
article.add_node("review", lambda state: {"verdict": pause(f"Publish {state['topic']}?")})
article.set_entry_point("review").set_finish_point("review")

large = StateGraph({"size": int, "out": str}, name="large")
large.add_node("make", lambda state: {"out": "x" * state["size"]})
large.set_entry_point("make").set_finish_point("make")
"""

TOKEN = "the-token-of-these-tests"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a user, whose slow graph waits while there is a file `hold`."""
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "hold").touch()
    return tmp_path


def environment() -> dict[str, str]:
    source = str(Path(library.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "LIMPET_TOKEN": TOKEN}


def words(*options: str) -> list[str]:
    graphs = [word for name in ("slow", "article", "large") for word in ("--graph", f"flows.py:{name}")]
    return ["-m", "limpet", "mcp", *graphs, "--store", "sqlite:///runs.db", *options]


def over_stdio(project: Path) -> StdioServerParameters:
    """A server that the client starts, with the options of all tests."""
    return StdioServerParameters(
        command=sys.executable, args=words("--wait", str(SOON)), env=environment(), cwd=project
    )


def test_a_killed_server_is_replaced_and_its_runs_continue(project: Path) -> None:
    """P13, H1: kill -9 in the middle; a new server resumes runs, and takes replies to what the old one asked."""
    given = {"topic": "kelp", "run_id": "asks"}

    async def be_killed(client: Client) -> str | None:
        asked = await client.session.call_tool("article", given, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        await client.call_tool("run_graph", {"graph": "slow", "run_id": "slow", "wait": 0})
        async with asyncio.timeout(SOON):
            while not (project / "pid").exists() or not (project / "pid").read_text():
                await asyncio.sleep(0.02)
        os.kill(int((project / "pid").read_text()), signal.SIGKILL)
        return asked.request_state

    state = talk(over_stdio(project), be_killed, person=Person())
    (project / "hold").unlink()

    async def go_on(client: Client) -> list[Any]:
        reply: Any = {"review:1:1": ElicitResult(action="accept", content=says("yes"))}
        answered = await client.session.call_tool(
            "article", given, input_responses=reply, request_state=state, allow_input_required=True
        )
        resumed = await client.call_tool("get_run", {"run_id": "slow", "wait": SOON})
        return [data(answered)["result"], data(resumed)["result"]]  # type: ignore[arg-type]

    results = talk(over_stdio(project), go_on, person=Person())
    assert results == [{"topic": "kelp", "verdict": "yes"}, {"seen": 2}]
    assert (project / "calls").read_text() == "first "


@pytest.mark.parametrize("end", ["a signal", "a closed input"])
def test_only_messages_reach_standard_output_and_it_ends_cleanly(
    project: Path, ctrl_c: None, end: str
) -> None:
    """P13: prints go to standard error. The run under way is released for other workers."""
    process = subprocess.Popen(
        [sys.executable, *words()],
        cwd=project,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    hello = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "old", "version": "1"},
    }
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "slow", "arguments": {"run_id": "s"}}},
    ]
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.write("this isn't a message\n")
    process.stdin.flush()
    until(lambda: (project / "pid").exists(), "the second node")
    if end == "a signal":
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON)  # closes the input
    assert process.returncode == 0, err
    received = [json.loads(line) for line in out.splitlines()]
    (initialized,) = [each for each in received if each.get("id") == 1]
    assert initialized["result"]["protocolVersion"] == "2024-11-05"
    assert all(each["jsonrpc"] == "2.0" for each in received)
    for noise in ("module", "node", "descriptor", "child process"):
        assert f"noise of a {noise}" in err
    assert "stopped; other workers can resume the runs that were in progress" in err
    run = Runs(f"sqlite:///{project}/runs.db").get("s").info
    assert (run.status, run.holder) == ("running", None)


@pytest.fixture
def url(project: Path) -> Iterator[str]:
    """A server over HTTP."""
    process = subprocess.Popen(
        [sys.executable, *words("--http", "--port", "0", "--json")],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield json.loads(next(line for line in iter(process.stdout.readline, "") if line.startswith("{")))[
            "url"
        ]
    finally:
        process.terminate()
        process.communicate(timeout=SOON)
    assert process.returncode == 0


@asynccontextmanager
async def with_token(url: str) -> AsyncIterator[Any]:
    """A connection of a client that has the token."""
    async with (
        create_mcp_http_client({"Authorization": f"Bearer {TOKEN}"}) as connections,
        streamable_http_client(url, http_client=connections) as streams,
    ):
        yield streams


def test_http_serves_several_clients_that_have_the_token(url: str) -> None:
    """P13, H19: of both generations of the protocol; without the token, or from another site, nothing is served."""

    async def both() -> list[Any]:
        async with (
            Client(with_token(url), elicitation_callback=Person(says("yes"))) as new,
            Client(with_token(url), mode="legacy", elicitation_callback=Person(says("no"))) as old,
        ):
            calls = [client.call_tool("article", {"topic": "kelp"}) for client in (new, old)]
            return [data(each)["result"]["verdict"] for each in await asyncio.gather(*calls)]

    assert asyncio.run(both()) == ["yes", "no"]
    result = data(call(with_token(url), "large", {"size": 10_000_000}))["result"]
    assert len(result["out"]) == 10_000_000
    known = {"Authorization": f"Bearer {TOKEN}"}
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for headers, status, code in [
        ({}, 401, "no-token"),
        ({"Authorization": "Bearer wrong"}, 401, "no-token"),
        ({**known, "Origin": "https://evil.example"}, 403, "other-origin"),
        ({**known, "Sec-Fetch-Site": "cross-site"}, 403, "other-origin"),
        ({**known, "Host": "evil.example"}, 421, "wrong-host"),
    ]:
        refused = httpx.post(url, json=ping, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
