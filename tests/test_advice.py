"""F10: what an error advises helps: a name that is nearly right, a budget, a node that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet import (
    DefinitionError,
    ExecutionError,
    MemoryStore,
    StateGraph,
    UnknownName,
    UsageError,
    Workflow,
    open_store,
)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("postgress://localhost/runs", "postgres://"),
        ("postgresqll://localhost/runs", "postgresql://"),
        ("sqllite:///runs.db", "sqlite://"),
        ("redsi://localhost", "redis://"),
        ("encrypted+tierd://", "tiered://"),
        ("memry", "memory"),
    ],
)
def test_a_store_that_is_nearly_named_is_suggested(
    url: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10."""
    monkeypatch.setenv("LIMPET_ENCRYPTION_KEY", "11" * 32)
    with pytest.raises(UnknownName) as raised:
        open_store(url)
    assert f"; did you mean {meant!r}? Registered: " in str(raised.value)


def test_an_observer_that_is_nearly_named_is_suggested() -> None:
    """G10."""
    with pytest.raises(
        UnknownName, match=r"unknown observer 'progres'; did you mean 'progress'\? Registered:"
    ):
        StateGraph(observer="progres")


def test_a_name_that_is_like_none_gets_the_list() -> None:
    """G10."""
    with pytest.raises(UnknownName, match="unknown store 'etcd://'; registered: env, "):
        open_store("etcd://localhost")


@pytest.mark.parametrize("text", ["sqlite:/runs.db", "postgresql:/secret@host", "redis:localhost"])
def test_a_url_without_its_slashes_isnt_taken_for_a_path(text: str) -> None:
    """P5: and what follows the scheme, which may be a password, isn't repeated."""
    with pytest.raises(UsageError, match="two slashes after its scheme") as raised:
        open_store(text)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("dsn", ["", "/var/lib/runs", "postgresql://localhost/runs"])
def test_an_unknown_backend_is_called_so_whatever_the_dsn_is(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5."""
    monkeypatch.delenv("LIMPET_STORE", raising=False)
    monkeypatch.setenv("WORKFLOW_CHECKPOINT_BACKEND", "nope")
    monkeypatch.setenv("WORKFLOW_CHECKPOINT_DSN", dsn)
    with pytest.raises(UsageError) as raised:
        open_store("env")
    assert raised.value.message == (
        "WORKFLOW_CHECKPOINT_BACKEND must be one of memory, sqlite, file, postgres, redis, and is 'nope'"
    )


@pytest.mark.parametrize(
    ("backend", "end"),
    [
        ("sqlit", "and is 'sqlit'; did you mean 'sqlite'?"),
        ("Postgress", "and is 'postgress'; did you mean 'postgres'?"),
        ("hunter2!", "and is something else"),
    ],
)
def test_a_backend_that_is_nearly_named_is_suggested(
    backend: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: and text that isn't a word, which may be a password, isn't repeated."""
    monkeypatch.delenv("LIMPET_STORE", raising=False)
    monkeypatch.setenv("WORKFLOW_CHECKPOINT_BACKEND", backend)
    monkeypatch.setenv("WORKFLOW_CHECKPOINT_DSN", "")
    with pytest.raises(UsageError) as raised:
        open_store("env")
    assert str(raised.value).endswith(end)


def test_other_words_for_a_backend_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: and so is the name of a registered store."""
    monkeypatch.delenv("LIMPET_STORE", raising=False)
    monkeypatch.setenv("WORKFLOW_CHECKPOINT_BACKEND", "files")
    monkeypatch.setenv("WORKFLOW_CHECKPOINT_DSN", str(tmp_path))
    assert "FileStore" in repr(open_store("env"))
    monkeypatch.setenv("WORKFLOW_CHECKPOINT_BACKEND", "postgresql")
    with pytest.raises(UsageError, match="set WORKFLOW_CHECKPOINT_DSN to where the postgres is"):
        open_store("env")


def test_a_run_that_used_up_its_budget_isnt_advised_to_be_retried() -> None:
    """G2, G7: a retry would fail again, as the count continues."""
    store = MemoryStore()
    small = StateGraph(name="loop", max_iterations=2)
    small.add_node("step", run=lambda state: {"n": state.get("n", 0) + 1})
    small.add_node("end", run=lambda state: {})
    small.add_edge("step", "step", lambda state: state["n"] < 5).add_edge("step", "end")
    small.set_entry_point("step").set_finish_point("end").compile(store=store)
    with pytest.raises(ExecutionError) as raised:
        small.execute({}, run_id="r")
    error = raised.value
    assert error.advice == "give it a larger max_iterations, then resume('r') continues it"
    assert error.next_operation == ""
    assert "retry" not in str(error)
    queued = small.start({}, run_id="q")
    small.recover()
    with pytest.raises(ExecutionError, match="give it a larger max_iterations"):
        queued.result(5)


def test_a_workflow_that_used_up_its_layers_isnt_advised_to_be_retried() -> None:
    """D1."""
    flow = Workflow("w", store=MemoryStore(), max_layers=1)
    flow.add_task("a", lambda: 1).add_task("b", lambda a: a, ["a"])
    with pytest.raises(ExecutionError) as raised:
        flow.execute(run_id="r")
    assert raised.value.advice == "give it a larger max_layers, then resume('r') continues it"


def test_other_failures_are_advised_to_be_retried() -> None:
    """G9."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"x": 1 // 0})
    graph.set_entry_point("a").set_finish_point("a").compile(store=MemoryStore())
    with pytest.raises(ExecutionError, match=r"retry it with resume\('r'\)"):
        graph.execute({}, run_id="r")


def test_a_file_at_a_node_that_is_gone_isnt_advised_to_be_rolled_back(tmp_path: Path) -> None:
    """F10: there is no run to roll back; a stored run is another matter."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {})
    graph.set_entry_point("a").set_finish_point("a").compile()
    file = graph.save_checkpoint(tmp_path / "c.pkl", {}, "gone")
    with pytest.raises(DefinitionError) as raised:
        graph.resume_from_checkpoint(file).wait()
    error = raised.value
    assert (
        error.message == f"graph 'g': checkpoint {file!r} is at node 'gone', which is no longer in the graph"
    )
    assert (error.advice, error.next_operation) == ("put it back, or resume from another checkpoint", "")
