"""What a journal remembers: steps with their metadata, states, differences; forks, rollbacks, and its size."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import randbytes
from typing import Annotated, Any

import pytest

import limpet
from limpet import (
    Checkpoint,
    Conflict,
    DamagedRecord,
    ExecutionError,
    MemoryStore,
    NodeContext,
    RunExists,
    RunPaused,
    State,
    StateGraph,
    UsageError,
    append,
)
from limpet.engine.sessions.provenance import environment, git_commit
from limpet.journal.store import Commit, Tail
from support.damage import changed_at_its_end
from support.graphs import Crash, asking, chain, count, stored_chain

COMMIT = "1f2e3d4c5b6a79880123456789abcdef01234567"


class CountingStore(MemoryStore):
    """A store in memory that counts the bytes of each commit, and the records that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []
        self.read_records = 0

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.written += [sum(map(len, commit.records)) for commit in commits]
        return super().append(commits)

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        tail = super().read(run_id, first, last)
        self.read_records += len(tail.records)
        return tail


def line(
    length: int, function: Callable[..., Any] = count, schema: Any = None, **settings: Any
) -> StateGraph:
    """A graph of nodes n1 → n2 → … that all call `function`."""
    return chain(*[function] * length, schema=schema, name="line", **settings)


def loop_with_pause(times: int, function: Callable[..., Any], store: Any, schema: Any = None) -> StateGraph:
    """A graph whose one node runs until `n` is `times`, and then pauses."""
    graph = StateGraph(schema, name="loop", max_iterations=100_000).add_node("again", run=function)
    graph.set_entry_point("again").add_node("stop").set_finish_point("stop")
    graph.add_edge("again", "again", lambda state: state["n"] < times).add_edge("again", "stop")
    return graph.compile(store=store, interrupt_before=["stop"])


@pytest.fixture
def graph() -> StateGraph:
    """A graph of four counting nodes with one preserved run, "r"."""
    made = line(4).compile(store=MemoryStore(), preserve=True)
    made.execute({"given": [1]}, run_id="r")
    return made


# History


def test_the_history_has_every_step_with_what_it_did(graph: StateGraph) -> None:
    """H6, G13: oldest first; step 0 is the start."""
    history = graph.history("r")
    assert all(isinstance(checkpoint, Checkpoint) for checkpoint in history)
    assert [checkpoint.step for checkpoint in history] == [0, 1, 2, 3, 4]
    assert [checkpoint.node for checkpoint in history] == [None, "n1", "n2", "n3", "n4"]
    assert [checkpoint.next for checkpoint in history] == ["n1", "n2", "n3", "n4", limpet.END]
    assert [checkpoint.keys for checkpoint in history[1:]] == [("n",)] * 4
    assert [checkpoint.status for checkpoint in history] == ["running"] * 4 + ["completed"]
    assert [checkpoint.id for checkpoint in history] == [f"r@{step}" for step in range(5)]
    times = [checkpoint.timestamp for checkpoint in history]
    assert times == sorted(times)
    assert graph.state_at("r", 2).timestamp.timestamp() == pytest.approx(times[2])


def test_the_history_shows_how_a_run_stood() -> None:
    """H6: pauses, failures and positions are in it."""
    fail = [True]

    def maybe(state: State, node: str) -> dict[str, Any]:
        if node == "n3" and fail:
            fail.clear()
            raise ValueError("no")
        return count(state)

    made = line(3, maybe).compile(
        store="memory://", interrupt_after=["n1"], interrupt_before=["n3"], preserve=True
    )
    run = made.invoke({}).wait()
    assert [(each.phase, each.status, each.reason) for each in made.history(run.id)] == [
        ("before", "running", None),
        ("after", "paused", "interrupted after 'n1'"),
    ]
    with pytest.raises(RunPaused):
        made.resume(run.id)
    with pytest.raises(ExecutionError):
        made.resume(run.id)
    last = made.history(run.id)[-1]
    assert (last.step, last.next, last.phase, last.status, last.reason) == (
        2,
        "n3",
        "failed",
        "failed",
        "ValueError: no",
    )
    made.resume(run.id)
    assert made.history(run.id)[-1].status == "completed"


def test_with_an_interval_the_steps_between_are_in_the_history_too() -> None:
    """H6, G5: they are saved together, but each of them."""
    made = line(5).compile(store="memory://", interval=3, preserve=True)
    made.execute({}, run_id="r")
    assert [made.state_at("r", step).get("n") for step in range(6)] == [None, 1, 2, 3, 4, 5]


def test_the_state_at_any_step_can_be_read(graph: StateGraph) -> None:
    """H6: with its provenance; without a step it is the newest."""
    assert [graph.state_at("r", step).get("n") for step in range(5)] == [None, 1, 2, 3, 4]
    state = graph.state_at("r", 2)
    assert type(state) is State
    assert (state.run_id, state.checkpoint_node) == ("r", "n2")
    assert graph.state_at("r") == graph.state_at("r", 4)


def test_what_is_read_is_a_copy(graph: StateGraph) -> None:
    """H6: altering it alters nothing that is stored."""
    graph.state_at("r", 2)["given"].append("altered")
    assert graph.state_at("r", 2)["given"] == [1]


@pytest.mark.parametrize("step", [-1, 5, 99])
def test_a_step_that_there_is_not_is_an_error(graph: StateGraph, step: int) -> None:
    """H6: for all that take a step."""
    for call in (
        lambda: graph.state_at("r", step),
        lambda: graph.diff("r", 0, step),
        lambda: graph.fork("r", step),
        lambda: graph.rollback("r", step),
    ):
        with pytest.raises(
            UsageError, match=rf"has no step {step} in its journal; history\(\) lists its steps"
        ):
            call()
    assert graph.runs()[0].status == "completed"


def test_the_difference_between_two_steps() -> None:
    """H6: keys that came, keys that went, and old and new for the rest; a change of type is one."""

    def node(state: State, node: str) -> dict[str, Any] | None:
        if node == "n1":
            return {"a": 1, "b": [1], "same": 0}
        del state["gone"]
        state["b"].append(2)
        return {"a": True, "new": None}

    made = line(2, node).compile(store="memory://", preserve=True)
    made.execute({"gone": "x"}, run_id="r")
    difference = made.diff("r", 1, 2)
    assert difference.added == {"new": None}
    assert difference.removed == {"gone": "x"}
    assert difference.changed == {"a": (1, True), "b": ([1], [1, 2])}
    assert difference.changed["a"][1] is True
    assert difference
    assert not made.diff("r", 2, 2)
    back = made.diff("r", 2, 1)
    assert (back.added, back.removed) == ({"gone": "x"}, {"new": None})


# Metadata


@pytest.fixture
def new_process() -> Iterator[Callable[[], None]]:
    """Call it, and the environment is looked at again, as a new process would."""
    environment.cache_clear()
    yield environment.cache_clear
    environment.cache_clear()


@pytest.mark.usefixtures("new_process")
def test_every_checkpoint_says_where_it_was_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """G13: the versions of Limpet and Python, the git commit, and the run's tags."""
    monkeypatch.chdir(tmp_path)
    made = line(2).compile(store="memory://", preserve=True)
    made.execute({}, run_id="r", tags=["nightly", "kelp"])
    for checkpoint in made.history("r"):
        assert checkpoint.metadata["limpet"] == limpet.__version__
        assert checkpoint.metadata["python"] == platform.python_version()
        assert checkpoint.metadata["git"] is None
        assert checkpoint.metadata["tags"] == ["nightly", "kelp"]


@pytest.mark.usefixtures("new_process")
@pytest.mark.skipif(shutil.which("git") is None, reason="git isn't installed")
def test_the_git_commit_is_the_one_that_is_checked_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """G13: in a real repository, also from a folder inside it."""

    def git(*arguments: str) -> str:
        settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            env=clean,
        )
        return done.stdout.strip()

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    made = line(1).compile(store="memory://", preserve=True)
    made.execute({}, run_id="r")
    assert made.history("r")[-1].metadata["git"] == git("rev-parse", "HEAD")


def _loose(git: Path) -> None:
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    (git / "HEAD").write_text("ref: refs/heads/main\n")


def _packed(git: Path) -> None:
    git.mkdir()
    (git / "packed-refs").write_text(
        f"# pack-refs with: peeled\n{'0' * 40} refs/heads/other\n{COMMIT} refs/heads/main\n"
    )
    (git / "HEAD").write_text("ref: refs/heads/main\n")


def _detached(git: Path) -> None:
    git.mkdir()
    (git / "HEAD").write_text(COMMIT + "\n")


def _work_tree(git: Path) -> None:
    main = git.parent / "main.git"
    _loose(main)
    here = main / "worktrees" / "here"
    here.mkdir(parents=True)
    (here / "commondir").write_text("../..\n")
    (here / "HEAD").write_text("ref: refs/heads/main\n")
    git.write_text("gitdir: main.git/worktrees/here\n")


@pytest.mark.parametrize("lay_out", [_loose, _packed, _detached, _work_tree])
def test_the_commit_is_found_however_git_keeps_it(lay_out: Callable[[Path], None], tmp_path: Path) -> None:
    """G13: loose, packed, detached, and in a second work tree."""
    lay_out(tmp_path / ".git")
    assert git_commit(str(tmp_path)) == COMMIT


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    """G13: nor has a broken one; it doesn't stop a run."""
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    (tmp_path / "empty" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "broken" / ".git").mkdir(parents=True)
    assert git_commit(str(tmp_path / "empty")) is None
    assert git_commit(str(tmp_path / "broken")) is None


def test_a_resume_says_where_it_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new_process: Callable[[], None]
) -> None:
    """G13: steps before and after a resume under another commit tell the two apart, and the tags stay."""
    for name, commit in (("old", "a" * 40), ("new", "b" * 40)):
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / ".git" / "HEAD").write_text(commit)
    made = line(3).compile(store="memory://", interrupt_after=["n1"], preserve=True)
    monkeypatch.chdir(tmp_path / "old")
    run = made.invoke({}, tags=["x"])
    run.wait()
    assert [checkpoint.metadata["git"] for checkpoint in made.history(run.id)] == ["a" * 40] * 2
    monkeypatch.chdir(tmp_path / "new")
    new_process()
    made.resume(run.id)
    metadata = [checkpoint.metadata for checkpoint in made.history(run.id)]
    assert (metadata[0]["git"], metadata[2]["git"], metadata[3]["git"]) == ("a" * 40, "b" * 40, "b" * 40)
    assert all(each["tags"] == ["x"] for each in metadata)


# Forks


def test_a_fork_continues_from_any_step_and_leaves_the_old_run_alone(graph: StateGraph) -> None:
    """H6: it is stored when `fork` returns, runs when it is iterated, and does no finished work again."""
    before = graph.history("r")
    fork = graph.fork("r", 2, tags=["try"])
    (info,) = [info for info in graph.runs() if info.run_id == fork.id]
    assert (info.forked_from, info.step, info.tags) == ("r@2", 2, ("try",))
    assert info.status != "completed"
    assert fork.result() == {"given": [1], "n": 4}
    assert [checkpoint.node for checkpoint in graph.history(fork.id)] == ["n2", "n3", "n4"]
    assert graph.history("r") == before
    assert fork.id != "r"


def test_a_fork_may_change_the_state_it_starts_from(graph: StateGraph) -> None:
    """H6: the edit is in the fork's first state, and only there."""
    fork = graph.fork("r", 2, update={"n": 100, "edited": True})
    assert graph.state_at(fork.id) == {"given": [1], "n": 100, "edited": True}
    assert fork.result()["n"] == 102
    assert graph.state_at("r", 2) == {"given": [1], "n": 2}


def test_an_edit_of_a_fork_goes_through_reducers() -> None:
    """H6: as an update of a node would."""
    made = line(2, lambda state, node: {"log": [node]}, {"log": Annotated[list, append]})
    made.compile(store="memory://", preserve=True).execute({}, run_id="r")
    assert made.fork("r", 1, {"log": "human"}).result() == {"log": ["n1", "human", "n2"]}


def test_a_fork_without_a_step_starts_from_the_newest(graph: StateGraph) -> None:
    """H6: of a completed run, there is nothing left to do."""
    assert graph.fork("r").result() == graph.state_at("r")


def test_a_fork_may_be_given_an_id_that_is_free(graph: StateGraph) -> None:
    """H6, P6."""
    assert graph.fork("r", 1, new_run_id="mine").id == "mine"
    with pytest.raises(RunExists):
        graph.fork("r", 1, new_run_id="mine")


def test_a_fork_continues_the_counters_of_its_step() -> None:
    """H6, G7: visits and iterations are those of the step it was made from."""
    seen: list[tuple[int, str]] = []

    def look(state: State, ctx: NodeContext) -> dict[str, Any]:
        seen.append((ctx.visit, ctx.idempotency_key))
        return count(state)

    made = loop_with_pause(4, look, MemoryStore())
    made.invoke({}, run_id="r").wait()
    seen.clear()
    made.fork("r", 2, new_run_id="fork").wait()
    assert seen == [(3, "fork/3/again"), (4, "fork/4/again")]


def test_a_fork_of_a_failed_run_tries_again() -> None:
    """H6: with an edit that repairs it; the failed run stays failed."""

    def fragile(state: State) -> dict[str, Any]:
        return {"n": 10 // state["by"]}

    made = line(1, fragile).compile(store="memory://")
    with pytest.raises(ExecutionError):
        made.execute({"by": 0}, run_id="r")
    assert made.fork("r", update={"by": 5}).result()["n"] == 2
    assert made.runs("failed")[0].run_id == "r"


def test_a_fork_of_a_run_with_an_open_question_asks_it_again() -> None:
    """H6, D11: the answer to one is not the answer to the other."""
    made = line(1, asking()).compile(store="memory://", preserve=True)
    run = made.invoke({}).wait()
    made.resume(run.id, "yes")
    fork = made.fork(run.id, 0).wait()
    assert (fork.status, [question.prompt for question in fork.questions]) == ("paused", ["Ship it?"])
    assert made.resume(fork.id, "no") == {"answer": "no"}
    assert made.state_at(run.id) == {"answer": "yes"}


# Rollbacks


def test_a_rollback_sets_a_run_back_and_a_resume_continues_from_there(graph: StateGraph) -> None:
    """H6, G13: nodes after that step run again; nothing of the history goes."""
    state = graph.rollback("r", 2)
    assert (state, state.checkpoint_node) == ({"given": [1], "n": 2}, "n2")
    (info,) = graph.runs()
    assert (info.status, info.reason, info.node) == ("paused", "rolled back to step 2", "n3")
    assert graph.resume("r", {"n": 20}) == {"given": [1], "n": 22}
    assert [checkpoint.node for checkpoint in graph.history("r")] == [
        None,
        "n1",
        "n2",
        "n3",
        "n4",
        "n2",
        "n3",
        "n4",
    ]
    assert [graph.state_at("r", step).get("n") for step in (2, 4, 5, 7)] == [2, 4, 20, 22]


def test_a_rollback_that_is_refused_leaves_the_run_as_it_is(graph: StateGraph) -> None:
    """H6: it isn't claimed, so not even the time of its last update changes."""
    before = graph.runs()[0]
    with pytest.raises(UsageError):
        graph.rollback("r", 99)
    assert graph.runs()[0] == before


def test_a_rollback_to_the_start_runs_everything_again(graph: StateGraph) -> None:
    """H6: step 0 is the input."""
    assert graph.rollback("r", 0) == {"given": [1]}
    assert graph.resume("r") == {"given": [1], "n": 4}


def test_a_rollback_undoes_a_failure_and_the_counters() -> None:
    """H6, G7: visits and budget are again those of that step."""
    visits: list[int] = []

    def look(state: State, ctx: NodeContext) -> dict[str, Any]:
        visits.append(ctx.visit)
        if len(visits) == 4:
            raise ValueError
        return count(state)

    made = loop_with_pause(5, look, MemoryStore())
    with pytest.raises(ExecutionError):
        made.execute({}, run_id="r")
    assert made.rollback("r", 1) == {"n": 1}
    with pytest.raises(RunPaused):
        made.resume("r")
    assert visits == [1, 2, 3, 4, 2, 3, 4, 5]


def test_a_run_that_is_running_can_not_be_rolled_back(graph: StateGraph) -> None:
    """H6: one writer at a time."""
    run = graph.stream({})
    next(run)
    next(run)
    with pytest.raises(Conflict):
        graph.rollback(run.id, 1)
    assert [event["type"] for event in run] == ["state", "state", "final"]


# Damage


def test_a_damaged_record_is_named_and_never_returned_as_data() -> None:
    """H5: whatever reads it says which run and record it is; a resume runs nothing."""
    store, ran = MemoryStore(), []
    made = line(4, lambda state, node: ran.append(node) or count(state)).compile(
        store=store, interrupt_before=["n4"]
    )
    run = made.invoke({}).wait()
    ran.clear()
    records = store._runs[run.id].records  # type: ignore[index]  # it is open
    whole = records[2]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        records[2] = bytes(damaged)
        with pytest.raises(DamagedRecord) as caught:
            made.resume(run.id)
        assert (caught.value.run_id, caught.value.sequence) == (run.id, 3)
    with pytest.raises(DamagedRecord):
        made.state_at(run.id)
    with pytest.raises(DamagedRecord):
        made.history(run.id)
    assert ran == []
    records[2] = whole
    assert made.resume(run.id)["n"] == 4


def test_the_steps_before_a_damaged_record_can_be_read() -> None:
    """H5, H6: as the error says: with state_at(), and by forking."""
    store = MemoryStore()
    made = line(5).compile(store=store, preserve=True)
    made.execute({}, run_id="r")
    records = store._runs["r"].records  # type: ignore[index]  # it is open
    records[4] = changed_at_its_end(records[4])
    with pytest.raises(DamagedRecord, match="record 5 of run 'r'"):
        made.state_at("r", 4)
    assert made.state_at("r", 2) == {"n": 2}
    assert made.fork("r", 2).result() == {"n": 5}


def test_records_that_changed_places_are_damage() -> None:
    """H5: each is tied to its run and its number."""
    store = MemoryStore()
    made = line(4).compile(store=store, preserve=True)
    for run_id in ("r", "s"):
        made.execute({}, run_id=run_id)
    runs = store._runs
    assert runs is not None
    runs["r"].records[1:3] = reversed(runs["r"].records[1:3])
    with pytest.raises(DamagedRecord, match="record 2 of run 'r'"):
        made.state_at("r")
    runs["r"].records[:] = runs["s"].records
    with pytest.raises(DamagedRecord, match="record 1 of run 'r'"):
        made.state_at("r")


def test_rolling_back_works_past_a_damaged_newest_record() -> None:
    """H5, H6: the steps before it can be read."""
    graph = stored_chain(*[lambda state, number=number: {"n": number} for number in range(3)])
    store = graph.compiled().need_client("test").store
    graph.execute({}, run_id="r")
    records = store._runs["r"].records  # type: ignore[attr-defined]  # as a disk would damage it
    records[-1] = changed_at_its_end(records[-1])
    assert graph.rollback("r", 1) == {"n": 0}
    assert graph.resume("r") == {"n": 2}


# Size


def test_the_bytes_of_a_step_do_not_depend_on_what_it_left_alone() -> None:
    """H2: a megabyte that no node touches costs nothing per step, to the byte."""
    sizes: list[list[int]] = []
    for carried in (b"", b"x" * 1_000_000):
        store = CountingStore()
        loop_with_pause(30, count, store).invoke({"carried": carried}).wait()
        sizes.append(store.written)
    assert sizes[0] == sizes[1]
    assert max(sizes[1]) < 1000


def test_reading_a_large_value_does_not_store_it_again() -> None:
    """H2: only what changed is written."""
    store = CountingStore()

    def read(state: State) -> dict[str, Any]:
        assert len(state["carried"]) == 1000
        return count(state)

    loop_with_pause(30, read, store).invoke({"carried": list(range(1000))}).wait()
    assert max(store.written) < 1000


def _returned(state: State) -> dict[str, Any]:
    return {**count(state), "log": ["x" * 100]}


def _in_place(state: State) -> dict[str, Any]:
    state["log"].append("x" * 100)
    return count(state)


def _plus(old: list[Any], new: list[Any]) -> list[Any]:
    return old + new


@pytest.mark.parametrize(
    ("node", "schema"),
    [
        (_returned, {"log": Annotated[list, append]}),
        (_returned, {"log": Annotated[list, _plus]}),
        (_in_place, None),
    ],
    ids=["append", "custom reducer", "in place"],
)
def test_a_list_that_grows_costs_what_is_added(node: Callable[..., Any], schema: Any) -> None:
    """H2: the hundredth item is as cheap as the first."""
    store = CountingStore()
    made = loop_with_pause(100, node, store, schema)
    made.invoke({"log": []}, run_id="r").wait()
    steps = store.written[:100]
    assert min(steps) > 100
    assert max(steps) < 250
    assert made.state_at("r")["log"] == ["x" * 100] * 100


def test_the_bytes_of_a_step_follow_the_change() -> None:
    """H2: a thousand times the change is about a thousand times the bytes, and no more."""
    sizes = {}
    for size in (1_000, 100_000):
        store = CountingStore()
        line(1, lambda state, size=size: {"value": randbytes(size)}).compile(
            store=store, preserve=True
        ).execute({})
        sizes[size] = store.written[0]
    assert 100_000 < sizes[100_000] < 100_000 + 500
    assert 1_000 < sizes[1_000] < 1_000 + 500


def test_restoring_reads_a_bounded_number_of_records() -> None:
    """H2: however long the run, the records since the newest snapshot are few, and they are enough."""
    tails = []
    for times in (300, 1200, 2400):
        store = CountingStore()
        made = loop_with_pause(times, count, store)
        made.invoke({}, run_id="r").wait()
        head = store.head("r")
        assert head.sequence > times
        assert head.snapshot > 1
        store.read_records = 0
        assert made.state_at("r") == {"n": times}
        tails.append(store.read_records)
        store.read_records = 0
        assert made.resume("r") == {"n": times}
        assert store.read_records < 400
    assert max(tails) < 400


def test_values_that_are_replaced_bring_a_snapshot_on() -> None:
    """H2: what is read at a restore is bounded by the size of the state, not by all that it once held."""
    store = CountingStore()
    made = loop_with_pause(200, lambda state: {**count(state), "page": os.urandom(10_000)}, store)
    made.invoke({}, run_id="r").wait()
    tail = store.read("r")
    assert sum(store.written) > 2_000_000
    assert sum(map(len, tail.records)) < 20 * 10_000
    assert made.state_at("r", 100)["n"] == 100


def test_a_history_of_large_items_is_not_written_again_and_again() -> None:
    """H2: appending stays linear: snapshots of what only grows are few."""
    store = CountingStore()
    made = loop_with_pause(
        300, lambda state: {**count(state), "log": "x" * 1000}, store, {"log": Annotated[list, append]}
    )
    made.invoke({}, run_id="r").wait()
    assert sum(store.written) < 2 * 300 * 1100
    assert len(made.state_at("r")["log"]) == 300


def test_a_resumed_run_keeps_weighing_where_it_was() -> None:
    """H2: a run that crashes all the time gets its snapshots, too."""
    store, calls = CountingStore(), []

    def crash_often(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) % 100 == 0:
            raise Crash
        return count(state)

    made = loop_with_pause(900, crash_often, store)
    with pytest.raises(Crash):
        made.execute({}, run_id="r")
    for _ in range(8):
        with pytest.raises(Crash):
            made.resume("r")
    with pytest.raises(RunPaused):
        made.resume("r")
    assert len(store.read("r").records) < 400
    assert made.state_at("r") == {"n": 900}
