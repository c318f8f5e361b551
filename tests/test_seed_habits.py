"""F16: calls as the seeds write them: `input_state=`, `file_path=`, `raise_exceptions=`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limpet import ExecutionError, MemoryCheckpointer, MemoryStore, StateGraph, UsageError, Workflow

BOTH_NAMES = "give the input once"


def doubling(**options: Any) -> StateGraph:
    graph = StateGraph({"value": int}, **options).add_node(
        "double", run=lambda state: {"value": state["value"] * 2}
    )
    return graph.set_entry_point("double").set_finish_point("double").compile(store=MemoryStore())


def failing(**options: Any) -> StateGraph:
    graph = StateGraph({"value": int}, **options)
    graph.add_node("ok", run=lambda state: {}).add_node("fail", run=lambda state: {"value": 1 // 0})
    return graph.add_edge("ok", "fail").set_entry_point("ok").set_finish_point("fail")


async def gathered(events: Any) -> list[Any]:
    return [event async for event in events]


async def awaited(coroutine: Any) -> Any:
    return await coroutine


CALLS: dict[str, Callable[..., Any]] = {
    "invoke": lambda graph, **given: list(graph.invoke(**given))[-1]["state"]["value"],
    "stream": lambda graph, **given: list(graph.stream(**given))[-1]["state"]["value"],
    "ainvoke": lambda graph, **given: asyncio.run(gathered(graph.ainvoke(**given)))[-1]["state"]["value"],
    "astream": lambda graph, **given: asyncio.run(gathered(graph.astream(**given)))[-1]["state"]["value"],
    "execute": lambda graph, **given: graph.execute(**given)["value"],
    "aexecute": lambda graph, **given: asyncio.run(awaited(graph.aexecute(**given)))["value"],
    "start": lambda graph, **given: [
        graph.start(**given, run_id="r"),
        graph.recover(),
        graph.state_at("r")["value"],
    ][-1],
}


@pytest.mark.parametrize("name", CALLS)
def test_the_input_is_also_called_input_state(name: str) -> None:
    """F16: under one of its names, not both."""
    assert CALLS[name](doubling(), input_state={"value": 21}) == 42
    assert CALLS[name](doubling(), input={"value": 21}) == 42
    with pytest.raises(UsageError, match=BOTH_NAMES):
        CALLS[name](doubling(), input={"value": 1}, input_state={"value": 2})


def test_every_call_that_takes_an_input_takes_input_state() -> None:
    """F16: none is forgotten."""
    for kind in (StateGraph, Workflow):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            parameters = inspect.signature(method).parameters
            if "input" in parameters and not name.startswith("_"):
                assert "input_state" in parameters, name


def test_input_state_is_merged_into_the_state_of_a_checkpoint(tmp_path: Path) -> None:
    """F16, F6."""
    graph = doubling()
    path = graph.save_checkpoint(tmp_path / "c.pkl", {"value": 1}, "double")
    (final,) = graph.invoke(input_state={"value": 5}, checkpoint=path)
    assert final["state"]["value"] == 10


def test_checkpoint_files_are_named_by_file_path(tmp_path: Path) -> None:
    """F16, F7: all by keyword, as the seed has it; `path=` is the same."""
    graph = doubling()
    file = str(tmp_path / "c.pkl")
    assert graph.save_checkpoint(file_path=file, state={"value": 4}, node="double", config={"k": 1}) == file
    assert StateGraph.load_checkpoint(file_path=file)["config"] == {"k": 1}
    assert StateGraph.load_checkpoint(path=file)["state"] == {"value": 4}
    (final,) = graph.resume_from_checkpoint(file_path=file)
    assert final["state"]["value"] == 8
    resumed = asyncio.run(gathered(graph.aresume_from_checkpoint(file_path=file, state_update={"value": 1})))
    assert resumed[-1]["state"]["value"] == 2


def test_what_a_checkpointer_saved_is_resumed_by_the_same_call(tmp_path: Path) -> None:
    """F16: as the seed does; a path is still a file."""
    graph = doubling()
    graph.compile(interrupt_before=["double"], checkpointer=MemoryCheckpointer())
    for resume in (
        graph.resume_from_checkpoint,
        lambda *given, **more: asyncio.run(gathered(graph.aresume_from_checkpoint(*given, **more))),
    ):
        (event,) = graph.invoke({"value": 1})
        assert list(resume(event["checkpoint_path"], state_update={"value": 3}))[-1]["state"]["value"] == 6
    file = graph.save_checkpoint(tmp_path / "c.pkl", {"value": 4}, "double")
    for path in (file, str(file), Path(file)):
        assert list(graph.resume_from_checkpoint(path))[-1]["state"]["value"] == 8
    with pytest.raises(FileNotFoundError):
        list(graph.resume_from_checkpoint("missing.pkl"))


@pytest.mark.parametrize("given", [{}, {"path": "a.pkl", "file_path": "a.pkl"}], ids=["none", "both"])
def test_a_checkpoint_file_is_named_once(given: dict[str, str]) -> None:
    """F16."""
    graph = doubling()
    for call in (StateGraph.load_checkpoint, graph.resume_from_checkpoint, graph.aresume_from_checkpoint):
        with pytest.raises(UsageError, match="is given by its path, once"):
            call(**given)
    with pytest.raises(UsageError, match="is given by its path, once"):
        graph.save_checkpoint(**given, state={}, node="double")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a path, a state and a node"):
        graph.save_checkpoint("a.pkl", {"value": 1})


@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_a_run_that_fails_raises_if_the_graph_says_so(how: str) -> None:
    """F16: in place of the `error` event, after everything else; the run is over then."""
    graph = failing(raise_exceptions=True).compile(store=MemoryStore())
    run = getattr(graph, how)({"value": 1}, run_id="r")
    seen = []
    with pytest.raises(ExecutionError, match="node 'fail'") as raised:
        seen += [event["type"] for event in run]
    assert "error" not in seen
    assert isinstance(raised.value.cause, ZeroDivisionError)
    assert (run.status, run.error) == ("failed", raised.value)
    assert graph.runs()[0].holder is None
    arun = getattr(graph, f"a{how}")({"value": 1}, run_id="s")
    with pytest.raises(ExecutionError):
        asyncio.run(gathered(arun))
    assert arun.status == "failed"


def test_a_run_that_is_stepped_through_raises_as_well(tmp_path: Path) -> None:
    """F16: by `next`, from a checkpoint file, and as a fork."""
    graph = failing(raise_exceptions=True).compile(store=MemoryStore(), preserve=True)
    run = graph.stream({"value": 1}, run_id="r")
    assert next(run)["node"] == "ok"
    with pytest.raises(ExecutionError):
        next(run)
    file = graph.save_checkpoint(tmp_path / "c.pkl", {"value": 1}, "fail")
    with pytest.raises(ExecutionError):
        list(graph.resume_from_checkpoint(file))
    with pytest.raises(ExecutionError):
        list(graph.fork("r", 1))


def test_without_raise_exceptions_an_error_is_an_event() -> None:
    """F16, F4."""
    assert [event["type"] for event in failing().invoke({"value": 1})] == ["error"]
    assert [event["type"] for event in failing(raise_exceptions=False).invoke({"value": 1})] == ["error"]
