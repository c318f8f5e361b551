"""`Runs`: what can be done with stored runs without running them, and without the code of their graph."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    Conflict,
    MemoryStore,
    RunNotFound,
    Runs,
    StateGraph,
    StoreUnavailable,
    UsageError,
    open_store,
    pause,
    secret,
)
from support.graphs import chain, count, single


def survey(store: Any, **settings: Any) -> StateGraph:
    """A graph that counts, then asks, then is done."""
    graph = StateGraph({"n": int, "word": str, "key": Annotated[str, secret]}, name="survey")
    graph.add_node("count", run=lambda state: {"n": state["n"] + 1, "key": "xyzzy"})
    graph.add_node("ask", run=lambda state: {"word": pause("Which word?")})
    graph.add_edge("count", "ask").set_entry_point("count").set_finish_point("ask")
    return graph.compile(store=store, preserve=True, **settings)


def asked(store: Any, run_id: str = "r", **settings: Any) -> StateGraph:
    graph = survey(store, **settings)
    graph.invoke({"n": 1}, run_id=run_id, tags=["weekly"]).wait()
    return graph


def test_runs_are_listed_and_looked_at_without_their_graph() -> None:
    store = MemoryStore()
    asked(store)
    runs = Runs(store)
    assert [info.run_id for info in runs.list()] == ["r"]
    assert [info.run_id for info in runs.list("paused", "survey", "weekly", 1)] == ["r"]
    assert runs.list("completed") == runs.list(graph="other") == runs.list(tag="daily") == []
    info = runs.get("r").info
    assert (info.status, info.node, [question.prompt for question in info.questions]) == (
        "paused",
        "ask",
        ["Which word?"],
    )
    assert [each.node for each in runs.history("r")][-1] == "count"
    with pytest.raises(RunNotFound):
        runs.get("missing")
    with pytest.raises(UsageError, match="status is one of"):
        runs.list("done")


def test_states_and_differences_mask_what_was_secret_when_the_run_was_created() -> None:
    store = MemoryStore()
    graph = asked(store)
    runs = Runs(store)
    first, last = runs.history("r")[0].step, runs.history("r")[-1].step
    for found in (runs.state("r"), runs.diff("r", first, last)):
        assert "xyzzy" not in repr(found)
    assert runs.state("r")["key"] == "xyzzy"
    assert runs.diff("r", first, last) == graph.diff("r", first, last)
    assert runs.state("r", last) == graph.state_at("r", last)
    assert runs.secrets("r") == {"key"}


def test_an_answer_is_stored_for_a_supervisor_and_a_run_can_be_cancelled() -> None:
    store = MemoryStore()
    graph = asked(store)
    asked(store, "s")
    runs = Runs(store)
    runs.answer("r", "kelp")
    assert runs.get("r").status == "running"
    with pytest.raises(UsageError, match="an answer to question 'ask:2:1'; open: none; a supervisor"):
        runs.answer("r", "sponge")
    assert graph.recover() == ["r"]
    assert runs.state("r")["word"] == "kelp"
    runs.cancel("s")
    assert runs.get("s").status == "cancelled"


def test_a_fork_and_a_rollback_are_checked_against_the_graph() -> None:
    store = MemoryStore()
    graph = asked(store)
    graph.resume("r", "kelp")
    step = graph.history("r")[0].step
    for call in (lambda: Runs(store).fork("r", step), lambda: Runs(store).rollback("r", step)):
        with pytest.raises(UsageError, match=r"Runs\(store, graphs=\[…\]\)"):
            call()
    runs = Runs(store, graph)
    made = runs.fork("r", step, {"n": 10}, new_run_id="f", tags="forked")
    assert (made, runs.get("f").status, runs.get("f").tags) == ("f", "paused", ("forked",))
    assert runs.state("f")["n"] == 10
    assert runs.rollback("r", step) == runs.state("r", step)
    assert runs.get("r").status == "paused"
    other = (
        StateGraph(name="other")
        .add_node("a", run=lambda state: {})
        .set_entry_point("a")
        .set_finish_point("a")
    )
    with pytest.raises(UsageError, match="its graph, 'survey'; give it with"):
        Runs(store, other).fork("r")


def test_a_run_is_carried_to_another_store_and_deleted(tmp_path: Path) -> None:
    store = MemoryStore()
    asked(store)
    here, there = Runs(store), Runs(f"sqlite:///{tmp_path}/there.db")
    here.export("r", tmp_path / "r.run")
    assert there.import_(tmp_path / "r.run", "s") == "s"
    assert there.verify("s").ok
    assert there.state("s") == here.state("r")
    here.delete("r")
    with pytest.raises(RunNotFound):
        here.get("r")


def test_a_running_run_is_shown_where_it_is_now() -> None:
    store = MemoryStore()
    graph = survey(store)
    run = graph.stream({"n": 1}, run_id="r")
    next(run)
    runs = Runs(store)
    info = runs.get("r").info
    assert (info.status, info.step, info.node) == ("running", 1, "ask")
    assert [info] == runs.list() == runs.list(limit=1) == graph.runs()
    assert (runs.list(node="ask"), runs.list(node=info.node, status="paused")) == ([], [])
    with pytest.raises(Conflict):
        runs.delete("r")
    runs.cancel("r")
    run.wait()
    assert run.status == "cancelled"
    assert [runs.get("r").info] == runs.list(node="ask")


@pytest.mark.parametrize("step", ["1", 1.0, True, [1], b"1"])
def test_a_step_that_is_not_a_whole_number_is_refused(step: Any) -> None:
    """H6: by every call that takes one, with the call that lists them."""
    graph = chain(count, count).compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="r")
    runs = Runs(graph.compiled().need_client("test").store, graph)
    for call in (
        lambda: runs.state("r", step),
        lambda: runs.diff("r", step, 1),
        lambda: runs.diff("r", 0, step),
        lambda: runs.fork("r", step),
        lambda: runs.rollback("r", step),
        lambda: graph.state_at("r", step),
    ):
        with pytest.raises(UsageError, match=r"a step is a whole number, not .*history"):
            call()


@pytest.mark.parametrize(
    "url", ["sqlite:///{}/typo.db", "file://{}/typo", "{}/typo.db", "encrypted+sqlite:///{}/typo.db"]
)
def test_a_look_creates_no_store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: a misspelt path is named, whatever is looked at. Once a run was started there, it is found."""
    if "encrypted" in url:
        monkeypatch.setenv("LIMPET_ENCRYPTION_KEY", "11" * 32)
    here = url.format(tmp_path)
    graph = single(lambda state: {"done": True}, name="g")
    runs = Runs(here, graph)
    for look in (
        runs.list,
        lambda: runs.get("r"),
        lambda: runs.history("r"),
        lambda: runs.retry(status="failed"),
        lambda: runs.fork("r"),
        runs.cleanup_expired,
        lambda: asyncio.run(runs.alist()),
    ):
        with pytest.raises(
            StoreUnavailable, match=rf"there is no store at {tmp_path}/typo.*, so there are no runs"
        ):
            look()
    assert "typo" in repr(runs)
    assert list(tmp_path.iterdir()) == []
    started = single(lambda state: {"done": True}, name="g").compile(store=here, preserve=True)
    started.execute({}, run_id="r")
    assert runs.get("r").result()["done"]
    assert runs.fork("r", 0, new_run_id="f") == "f"
    monkeypatch.setenv("LIMPET_STORE", f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(StoreUnavailable, match=r"there is no store at .*/other.db"):
        Runs("env").list()


@pytest.mark.parametrize("limit", [-1, "3", 1.5, True, 2**80])
def test_a_limit_that_is_not_a_count_is_refused(limit: Any, tmp_path: Path) -> None:
    """P6: in every store alike."""
    for url in ("memory://", f"sqlite:///{tmp_path}/runs.db", f"file://{tmp_path}/runs"):
        store = open_store(url)
        with pytest.raises(UsageError, match="limit must be a whole number of at least 0"):
            Runs(store).list(limit=limit)
        assert Runs(store).list(limit=0) == []


@pytest.mark.parametrize("update", [["n"], "n", 3, True])
def test_an_update_that_is_not_a_dict_is_refused(update: Any) -> None:
    """H6: nothing is forked or resumed."""
    graph = chain(count, count).compile(store=MemoryStore(), interrupt_before=["n2"])
    graph.invoke({"n": 0}, run_id="r").wait()
    for call in (lambda: graph.fork("r", update=update), lambda: graph.resume("r", update=update)):
        with pytest.raises(UsageError, match="update is a dict to be merged into the state"):
            call()
    assert [info.status for info in graph.runs()] == ["paused"]


def test_every_method_has_an_async_twin() -> None:
    """H7: it takes the same and gives the same."""
    methods = [name for name, _ in inspect.getmembers(Runs, inspect.isfunction) if not name.startswith("_")]
    plain = [name for name in methods if not inspect.iscoroutinefunction(getattr(Runs, name))]
    assert {f"a{name}" for name in plain} == {*methods} - {*plain}
    for name in plain:
        assert inspect.signature(getattr(Runs, f"a{name}")) == inspect.signature(getattr(Runs, name))
    store = MemoryStore()
    asked(store)
    assert asyncio.run(Runs(store).aget("r")).info == Runs(store).get("r").info
