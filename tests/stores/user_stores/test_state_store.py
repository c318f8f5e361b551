"""Stores that keep States by run id, and States that are saved by hand."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    CheckpointConfig,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    RunNotFound,
    RunPaused,
    Runs,
    State,
    StateGraph,
    UnstorableValue,
    UsageError,
    Workflow,
    open_store,
    pause,
    register_store,
)
from limpet.journal.store import Store
from limpet.stores.user_stores.checkpoint_state import KEY
from limpet.stores.user_stores.checkpoint_store import AdaptedStore
from limpet.stores.user_stores.state_store import StatesAsCheckpoints
from limpet.testing.conformance import ManualClock, StoreConformance
from support.checkpoint_stores import InMemoryCheckpointStore


class NotThere(Exception):
    """What a user's store raises for a run that it doesn't have."""


class MapStore:
    """States in a dict, as its users write it: by the ids of runs, and a clear error for a missing one."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}
        self.saves: list[tuple[str, str | None]] = []

    def save(self, state: State) -> None:
        self.saves.append((state.run_id, state.checkpoint_node))
        self.states[state.run_id] = state

    def load(self, run_id: str) -> State:
        if run_id not in self.states:
            raise NotThere(f"checkpoint not found: {run_id}")
        return self.states[run_id]

    def delete(self, run_id: str) -> None:
        self.states.pop(run_id, None)

    def list(self) -> Any:
        return list(self.states)


class PickleStore:
    """One file for each run. Its list has States, and a missing one is None."""

    level = "process"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: State) -> None:
        (self.folder / f"{state.run_id}.state").write_bytes(pickle.dumps(state))

    def load(self, run_id: str) -> State | None:
        path = self.folder / f"{run_id}.state"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def delete(self, run_id: str) -> None:
        (self.folder / f"{run_id}.state").unlink(missing_ok=True)

    def list(self) -> Any:
        return [pickle.loads(path.read_bytes()) for path in self.folder.glob("*.state")]


class TestAsStore(StoreConformance):
    """G14: held to the suite, for what such a store declares."""

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = AdaptedStore(StatesAsCheckpoints(MapStore()), clock, by_run=True)
        yield store
        store.close()

    def reopen(self, store: AdaptedStore) -> Store:
        store.close()
        return AdaptedStore(store.user_store, store._clock, by_run=True)


@pytest.fixture(params=["map", "pickle"])
def states(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MapStore() if request.param == "map" else PickleStore(tmp_path)


def chain(calls: list[str], failing: set[str] | None = None, **settings: Any) -> StateGraph:
    """a → b → c, each of which notes its call; those in `failing` fail."""

    def run(state: Any, node: str) -> dict[str, Any]:
        calls.append(node)
        if failing and node in failing:
            raise ValueError(f"{node} fails")
        return {"path": [*state.get("path", []), node]}

    graph = StateGraph(name="chain", checkpoint=settings.pop("checkpoint", None))
    for name in "abc":
        graph.add_node(name, run=run)
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    graph.set_entry_point("a")
    graph.set_finish_point("c")
    return graph.compile(**settings) if settings else graph


def test_a_graph_saves_its_states_there_and_resumes_from_them(states: Any) -> None:
    """G14, G6: the State knows its run, its node and its time; finished nodes don't run again."""
    calls: list[str] = []
    failing = {"c"}
    with pytest.raises(ExecutionError):
        chain(calls, failing, store=states).execute({"n": 1}, run_id="r")
    saved = states.load("r")
    assert (saved.run_id, saved.checkpoint_node) == ("r", "b")
    assert {key: value for key, value in saved.items() if key != KEY} == {"n": 1, "path": ["a", "b"]}
    failing.clear()
    final = chain(calls, failing, store=states).resume("r")
    assert final == {"n": 1, "path": ["a", "b", "c"]}
    assert calls == ["a", "b", "c", "c"]
    assert list(states.list()) == []


def test_it_works_wherever_a_store_is_taken(states: Any) -> None:
    """G14, G10: as an object, by name, in a CheckpointConfig, for workflows, and for `Runs`."""
    store = open_store(states)
    assert open_store(states) is store
    register_store("mine", states)
    assert open_store("mine") is store
    calls: list[str] = []
    config = CheckpointConfig(states, interval=1, preserve=True)
    assert chain(calls, checkpoint=config).execute({}, run_id="kept")["path"] == ["a", "b", "c"]
    assert [info.run_id for info in Runs(states).list()] == ["kept"]
    flow = Workflow("flow", store=states)
    flow.add_task("ask", lambda: pause("go?"))
    with pytest.raises(RunPaused):
        flow.execute({}, run_id="w")
    assert flow.resume("w", "yes").results == {"ask": "yes"}
    with pytest.raises(RunNotFound):
        flow.resume("nowhere")


@pytest.mark.parametrize("kind", ["map", "memory", "sqlite", "five methods"])
def test_a_state_that_is_saved_by_hand_resumes_after_its_node(kind: str, tmp_path: Path) -> None:
    """G14: `set_checkpoint_node` says where it belongs; without a node, the run begins at the entry."""
    places: dict[str, Any] = {
        "map": MapStore(),
        "memory": MemoryStore(),
        "sqlite": f"sqlite:///{tmp_path}/runs.db",
        "five methods": InMemoryCheckpointStore(),
    }
    store = places[kind]
    calls: list[str] = []
    graph = chain(calls, store=store)
    state = State({"path": ["by hand"]}, run_id="r")
    moved = state.set_checkpoint_node("a")
    assert (state.checkpoint_node, moved.checkpoint_node, moved.run_id) == (None, "a", "r")
    assert moved.timestamp >= state.timestamp
    moved.checkpoint(store)
    assert graph.resume("r") == {"path": ["by hand", "b", "c"]}
    State({}, run_id="s").checkpoint(store)
    assert graph.resume("s") == {"path": ["a", "b", "c"]}
    State({}, run_id="t").set_checkpoint_node("gone").checkpoint(store)
    with pytest.raises(DefinitionError, match="'gone'"):
        graph.resume("t")
    assert calls == ["b", "c", "a", "b", "c"]


@pytest.mark.parametrize("kind", ["map", "memory"])
def test_a_state_that_is_saved_by_hand_replaces_the_newest_of_its_run(kind: str) -> None:
    """G14: as an edit of a run that has stopped; the run keeps its id."""
    store: Any = MapStore() if kind == "map" else MemoryStore()
    failing = {"c"}
    calls: list[str] = []
    graph = chain(calls, failing, store=store)
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    state = graph.state_at("r").set("path", ["edited"]).set_checkpoint_node("a")
    state.checkpoint(store)
    failing.clear()
    calls.clear()
    assert graph.resume("r") == {"path": ["edited", "b", "c"]}
    assert calls == ["b", "c"]


def test_a_state_of_the_users_store_that_is_edited_and_saved_again_counts() -> None:
    """G14: what the run itself had put into it is out of date then."""
    states = MapStore()
    failing = {"c"}
    graph = chain([], failing, store=states)
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    states.load("r").set("path", ["edited"]).checkpoint(states)
    failing.clear()
    assert graph.resume("r") == {"path": ["edited", "c"]}


def test_what_cannot_be_saved_by_hand_is_refused(tmp_path: Path) -> None:
    """G14: and nothing is stored."""
    store = MemoryStore()
    with pytest.raises(UnstorableValue):
        State({"f": lambda: 1}, run_id="r").checkpoint(store)
    with pytest.raises(UsageError, match="a store must be"):
        State({}, run_id="r").checkpoint(3)
    assert Runs(store).list() == []


def test_what_only_looks_like_such_a_store_is_refused() -> None:
    """G14, F11: a checkpointer that can also delete and list, and one with async methods."""

    class Keeper(MapStore):
        def save(self, state: Any, node: str, config: Any) -> str:  # type: ignore[override]
            return "ref"

    class Waiting(MapStore):
        async def save(self, state: State) -> None: ...  # type: ignore[override]

    with pytest.raises(UsageError, match=r"compile\(checkpointer=…\)"):
        open_store(Keeper())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"can't be async: save of .*Waiting"):
        open_store(Waiting())  # type: ignore[arg-type]
