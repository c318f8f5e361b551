"""Checkpoint files: written whole, read without executing anything, resumed from exactly."""

from __future__ import annotations

import enum
import errno
import os
import pickle
import pickletools
import random
import re
import subprocess
import sys
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

import limpet
from limpet import (
    CheckpointError,
    CheckpointNotFound,
    DamagedCheckpoint,
    DefinitionError,
    ForbiddenType,
    LimpetError,
    MemoryCheckpointer,
    MemoryStore,
    NodeContext,
    RunPaused,
    State,
    StateGraph,
    StoreUnavailable,
    UnstorableValue,
    UnsupportedFormat,
    UsageError,
    pause,
    register_type,
)
from limpet.stores import atomic_files
from limpet.stores.user_stores import checkpoint_files, safe_pickle
from support.graphs import chain

NAMES = ("prepare", "review", "publish")


class Ran:
    """Nodes that note that they ran, and with what settings."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.seen: list[tuple[int, int, dict[str, Any]]] = []

    def __call__(self, state: State, ctx: NodeContext) -> dict[str, Any]:
        self.nodes.append(ctx.node)
        self.seen.append((ctx.visit, ctx.step, dict(ctx.config)))
        return {ctx.node: True}


def build(run: Callable[..., Any], **settings: Any) -> StateGraph:
    return chain(*[run] * len(NAMES), names=NAMES, name="review").compile(**settings)


@register_type
class Mood(enum.Enum):
    GOOD = 1
    BAD = "bad"


@register_type
@dataclass
class Message:
    text: str
    tags: list[str]

    def __post_init__(self) -> None:
        assert self.text != "poison", "the constructor must not run"


@register_type
@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int


@register_type
class Pair(NamedTuple):
    left: int
    right: str


class Unlisted:
    pass


PLAIN: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": 7,
    "big": 2**90,
    "float": 1.5,
    "text": "kelp 🦑",
    "half": "\ud800",
    "bytes": b"\0",
    "bytearray": bytearray(b"ab"),
    "empty": bytearray(),
    "list": [1, [2]],
    "tuple": (1, (2,)),
    "set": {1, 2},
    "frozenset": frozenset({3}),
    "dict": {1: "a", "b": {}, (1, 2): 3},
    "complex": 1 + 2j,
    "range": range(1, 9, 2),
    "slice": slice(1, None),
    "dots": ...,
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 6),
    "aware": datetime(2026, 1, 2, tzinfo=UTC),
    "zone": datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Oslo")),
    "date": date(2026, 1, 2),
    "time": time(1, 2, fold=1),
    "delta": timedelta(1, 2, 3),
    "offset": timezone(timedelta(hours=2), "here"),
    "uuid": uuid.UUID(int=5),
    "decimal": Decimal("1.50"),
    "fraction": Fraction(-1, 3),
    "path": Path("a/b"),
    "pure": PurePosixPath("/x"),
    "windows": PureWindowsPath("c:/x"),
    "ordered": OrderedDict(b=1, a=2),
    "counter": Counter("aab"),
    "deque": deque([1, 2], 5),
    "default": defaultdict(list, a=[1]),
    "nothing": defaultdict(None),
}
OURS: dict[str, Any] = {
    "mood": Mood.BAD,
    "message": Message("hi", ["x"]),
    "point": Point(1, 2),
    "pair": Pair(1, "r"),
}


def same(found: Any, given: Any) -> bool:
    return bool(found == given) and type(found) is type(given)


# Saving and loading by hand


def test_what_is_saved_is_loaded_exactly(tmp_path: Path) -> None:
    """F7, F9, H4: every type that can be stored, plain ones and registered ones."""
    path, state = tmp_path / "deep" / "er" / "state.pkl", {**PLAIN, **OURS, "nested": [OURS, {"in": PLAIN}]}
    assert StateGraph().save_checkpoint(path, state, "review", {"depth": 2}) == str(path)
    found = StateGraph.load_checkpoint(path)
    assert found.keys() == {"state", "node", "config", "timestamp", "version"}
    assert (found["node"], found["config"], found["version"]) == ("review", {"depth": 2}, "1.0")
    assert isinstance(found["timestamp"], float)
    assert list(found["state"]) == list(state)
    for key, value in state.items():
        assert same(found["state"][key], value), key
    assert found["state"]["default"].default_factory is list
    assert [file.name for file in path.parent.iterdir()] == ["state.pkl"]


def test_a_plain_pickle_load_reads_it_without_limpet(tmp_path: Path) -> None:
    """F9: where the state holds nothing but standard types; neither the trailer nor the extra key prevents it."""
    (event,) = build(Ran(), interrupt_before=["review"], checkpoint_dir=tmp_path).invoke(
        {"plain": {"a": [1, (2, datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.5"), {3}, uuid.UUID(int=1))]}}
    )
    code = (
        "import pickle, sys\n"
        "found = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert 'limpet' not in sys.modules\n"
        "print(found['node'], found['version'], found['config'], found['state']['plain'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code, event["checkpoint_path"]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith("review 1.0 {} {'a': [1, (2, datetime.datetime(2026, 1, 1")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_what_plain_pickle_wrote_is_read(tmp_path: Path, protocol: int) -> None:
    """F9: files of the seeds' format, by any protocol that was a default, with registered classes as well."""
    path = tmp_path / "old.pkl"
    old = {"state": {**PLAIN, **OURS}, "node": "review", "config": {}, "timestamp": 1.0, "version": "1.0"}
    path.write_bytes(pickle.dumps(old, protocol))
    found = StateGraph.load_checkpoint(str(path))
    assert found["timestamp"] == 1.0
    for key, value in old["state"].items():  # type: ignore[attr-defined]  # it is a dict
        assert same(found["state"][key], value), key


def test_the_code_of_registered_classes_does_not_run(tmp_path: Path) -> None:
    """F9: neither constructors nor `__setstate__`."""
    path = tmp_path / "old.pkl"
    message = Message("fine", [])
    message.text = "poison"
    path.write_bytes(pickle.dumps({"state": {"m": message}, "node": "n", "config": {}, "version": "1.0"}))
    assert StateGraph.load_checkpoint(path)["state"]["m"].text == "poison"


def test_what_could_not_be_read_again_is_not_saved(tmp_path: Path) -> None:
    """F9, H4: it is refused with the way to it, and nothing is written."""
    with pytest.raises(UnstorableValue, match=r"users\[1\]"):
        StateGraph().save_checkpoint(tmp_path / "x.pkl", {"users": [1, Unlisted()]}, "review")
    with pytest.raises(UnstorableValue, match=r"config\.lock"):
        StateGraph().save_checkpoint(tmp_path / "x.pkl", {}, "review", {"lock": object()})
    for state, node in ([], "review"), ({}, ""), ({}, None):
        with pytest.raises(UsageError):
            StateGraph().save_checkpoint(tmp_path / "x.pkl", state, node)  # type: ignore[arg-type]
    for path in (5, "", b"x.pkl", None):
        with pytest.raises(UsageError, match="given by its path"):
            StateGraph().save_checkpoint(path, {}, "review")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    """F7: and a State is a dict like any other."""
    graph, path = StateGraph(), str(tmp_path / "x.pkl")
    for number in (1, 2):
        graph.save_checkpoint(path, State({"n": number}), "review")
        assert graph.load_checkpoint(path)["state"] == {"n": number}
        assert type(graph.load_checkpoint(path)["state"]) is dict


# Resuming


@pytest.mark.parametrize(
    "settings", [{}, {"store": "memory://"}, {"interrupt_before": ["review"], "store": "memory://"}]
)
@pytest.mark.parametrize("way", ["resume", "invoke", "stream", "path"])
def test_a_manual_save_runs_its_node(tmp_path: Path, way: str, settings: dict[str, Any]) -> None:
    """F7: by every way in, with a store and without, whatever the interrupts are today."""
    ran = Ran()
    graph, path = build(ran, **settings), tmp_path / "manual.pkl"
    graph.save_checkpoint(path, {"value": 1}, "review", {"depth": 2, "timeout": 5})
    update, config = {"approved": True}, {"timeout": 60}
    if way == "resume":
        run = graph.resume_from_checkpoint(path, config=config, state_update=update)
    elif way == "stream":
        run = graph.stream(update, config=config, checkpoint=str(path))
    else:
        run = graph.invoke(update, config=config, checkpoint=path if way == "path" else str(path))
    events = list(run)
    assert [event["type"] for event in events] == ["state"] * 2 * (way == "stream") + ["final"]
    assert events[-1]["state"] == {"value": 1, "approved": True, "review": True, "publish": True}
    assert ran.nodes == ["review", "publish"]
    assert [config for *_, config in ran.seen] == [{"depth": 2, "timeout": 60}] * 2
    assert run.id == events[-1]["run_id"]


def test_a_run_resumes_from_its_file_in_a_new_graph(tmp_path: Path) -> None:
    """F3, F8, F6: without any store; the file exists before the event does."""
    ran = Ran()
    first = build(ran, interrupt_before=["review"], checkpoint_dir=str(tmp_path / "c")).invoke(
        {"value": 1}, config={"depth": 2}
    )
    event = next(first)
    path = Path(event["checkpoint_path"])
    assert path.exists()
    assert re.fullmatch(r"review_\d{13}\.pkl", path.name)
    assert (event["type"], event["node"], path.parent) == ("interrupt", "review", tmp_path / "c")
    assert list(first) == []
    found = StateGraph.load_checkpoint(path)
    assert (found["state"], found["config"]) == ({"value": 1, "prepare": True}, {"depth": 2})
    (final,) = build(ran).resume_from_checkpoint(path, {"timeout": 60}, {"approved": True})
    assert final["state"] == {"value": 1, "approved": True, "prepare": True, "review": True, "publish": True}
    assert (final["run_id"], ran.nodes) == (first.id, list(NAMES))
    assert ran.seen == [(1, 1, {"depth": 2}), *((1, step, {"depth": 2, "timeout": 60}) for step in (2, 3))]


def test_the_phase_is_in_the_file(tmp_path: Path) -> None:
    """F5: after `interrupt_after` it resumes with the next node; a node in both lists stops twice and runs once."""
    ran = Ran()
    stops = {"interrupt_before": ["review"], "interrupt_after": ["review"], "checkpoint_dir": tmp_path}
    (before,) = build(ran, **stops).invoke({})
    (after,) = build(ran, **stops).invoke(None, checkpoint=before["checkpoint_path"])
    assert (after["type"], after["node"], ran.nodes) == ("interrupt", "review", ["prepare", "review"])
    (final,) = build(ran).invoke(None, checkpoint=after["checkpoint_path"])
    assert (final["type"], ran.nodes) == ("final", list(NAMES))


def test_without_the_extra_key_a_file_runs_its_node(tmp_path: Path) -> None:
    """F7, F9: as files of the seeds' program do."""
    ran = Ran()
    (event,) = build(ran, interrupt_after=["review"], checkpoint_dir=tmp_path).invoke({"v": 1})
    found = pickle.loads(Path(event["checkpoint_path"]).read_bytes())
    del found["__limpet__"]
    old = tmp_path / "old.pkl"
    old.write_bytes(pickle.dumps(found))
    (final,) = build(ran).invoke(None, checkpoint=str(old))
    assert (final["type"], ran.nodes) == ("final", ["prepare", "review", "review", "publish"])


def test_two_interrupts_in_one_millisecond_have_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8: each run's event leads to its own."""
    monkeypatch.setattr(checkpoint_files.time, "time", lambda: 1733500000.5)
    graph = build(Ran(), interrupt_before=["review"], checkpoint_dir=tmp_path)
    paths = [event["checkpoint_path"] for n in range(12) for event in graph.invoke({"n": n})]
    assert Path(paths[0]).name == "review_1733500000500.pkl"
    assert Path(paths[1]).name == "review_1733500000500_1.pkl"
    assert [StateGraph.load_checkpoint(path)["state"]["n"] for path in paths] == list(range(12))
    assert len(list(tmp_path.iterdir())) == 12


def test_without_links_names_are_taken_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F8: some file systems have none."""

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    for number, expected in enumerate(("one", None, "two")):
        path = tmp_path / f"{expected or 'one'}.pkl"
        if expected is None:
            with pytest.raises(FileExistsError):
                atomic_files.create_file(path, b"no")
        else:
            atomic_files.create_file(path, b"%d" % number)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"one.pkl": b"0", "two.pkl": b"2"}


@pytest.mark.parametrize(
    "node", ["a/b", "../../up", ".hidden", "-rf", "x" * 300, "日本" * 200, "sp ace\0", "con?*"]
)
def test_any_node_gives_a_safe_file_name(tmp_path: Path, node: str) -> None:
    """F8: inside of the directory, whatever the node is called."""
    keeper = checkpoint_files.CheckpointFiles(tmp_path / "c")
    path = Path(keeper.save({"v": 1}, node, {}))
    assert path.parent == tmp_path / "c"
    assert re.fullmatch(r"\w[\w.-]*_\d+\.pkl", path.name)
    assert keeper.load(str(path))["node"] == node


def test_parallel_results_are_in_the_file_at_a_fan_in(tmp_path: Path) -> None:
    """F9, F12: plain dicts, in the order of the branches; and they are what the fan-in then gets."""
    graph = StateGraph(name="flows").add_node("split").set_entry_point("split")
    for name in ("text", "images"):
        graph.add_node(name, run=lambda node: {"by": node}).add_parallel_edge("split", name, "join")
    graph.add_fanin_node(
        "join", run=lambda parallel_results: {"all": [each["by"] for each in parallel_results]}
    )
    graph.set_finish_point("join").compile(interrupt_before=["join", "images"], checkpoint_dir=tmp_path)
    (inside,) = graph.invoke({"v": 1})
    assert "parallel_results" not in StateGraph.load_checkpoint(inside["checkpoint_path"])
    (stop,) = graph.invoke(None, checkpoint=inside["checkpoint_path"])
    found = pickle.loads(Path(stop["checkpoint_path"]).read_bytes())
    assert found["parallel_results"] == [{"v": 1, "by": "text"}, {"v": 1, "by": "images"}]
    assert [type(each) for each in found["parallel_results"]] == [dict, dict]
    assert found["node"] == "join"
    (final,) = graph.invoke(None, checkpoint=stop["checkpoint_path"])
    assert final["state"]["all"] == ["text", "images"]


def test_parallel_results_are_in_the_file_after_a_fan_in(tmp_path: Path) -> None:
    """F9, F12: what the fan-in was given, not what it made of it; and of no stop that comes later."""
    graph = StateGraph(name="flows").add_node("split").set_entry_point("split")
    for name in ("text", "images"):
        graph.add_node(name, run=lambda node: {"by": node}).add_parallel_edge("split", name, "join")
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"v": 2, "n": len(parallel_results)})
    graph.add_node("last").add_edge("join", "last").set_finish_point("last")
    graph.compile(interrupt_after=["split", "join", "last"], checkpoint_dir=tmp_path)
    files, given = [], {"input": {"v": 1}}
    for _ in range(3):
        (stop,) = graph.invoke(**given)
        files.append(pickle.loads(Path(stop["checkpoint_path"]).read_bytes()))
        given = {"input": None, "checkpoint": stop["checkpoint_path"]}
    assert [file["node"] for file in files] == ["split", "join", "last"]
    assert files[1]["parallel_results"] == [{"v": 1, "by": "text"}, {"v": 1, "by": "images"}]
    assert ["parallel_results" in file for file in files] == [False, True, False]
    (final,) = graph.invoke(**given)
    assert final["state"] == {"v": 2, "n": 2}


def test_a_question_is_answered_through_its_file(tmp_path: Path) -> None:
    """P1, F7: with `invoke`, as the answer."""

    def ask(ctx: NodeContext) -> dict[str, Any]:
        return {"ok": pause("Ship it?", choices=["yes", "no"])} if ctx.node == "review" else {}

    graph = build(ask, checkpoint_dir=tmp_path)
    (event,) = graph.invoke({})
    with pytest.raises(RunPaused):
        list(graph.resume_from_checkpoint(event["checkpoint_path"]))
    (final,) = build(ask).invoke("yes", checkpoint=event["checkpoint_path"])
    assert final["state"] == {"ok": "yes"}


def test_a_failed_run_has_a_file_too(tmp_path: Path) -> None:
    """F8: fix the node and resume."""

    def fail(ctx: NodeContext) -> None:
        if ctx.node == "review":
            raise ValueError("no")

    (event,) = build(fail, checkpoint_dir=tmp_path).invoke({})
    assert event["type"] == "error"
    ran = Ran()
    (final,) = build(ran).invoke(None, checkpoint=event["checkpoint_path"])
    assert (final["type"], ran.nodes) == ("final", ["review", "publish"])


def test_with_a_store_the_journal_continues(tmp_path: Path) -> None:
    """F3, F8: both are written; the file leads to the stored run while that is at this step, else to a new one."""
    ran, store = Ran(), MemoryStore()
    graph = build(ran, store=store, interrupt_before=["review"], checkpoint_dir=tmp_path)
    (event,) = graph.invoke({"v": 1}, run_id="r")
    assert Path(event["checkpoint_path"]).exists()
    first = graph.invoke({"decision": "yes"}, checkpoint=event["checkpoint_path"])
    (final,) = first
    assert (final["run_id"], store.head("r").status) == ("r", "completed")
    second = graph.invoke({"decision": "no"}, checkpoint=event["checkpoint_path"])
    (final,) = second
    assert final["state"]["decision"] == "no"
    assert second.id != "r"
    assert store.head(second.id).parent == "r"
    other = build(ran, store="memory://")
    assert other.invoke(None, checkpoint=event["checkpoint_path"]).result()["publish"] is True
    assert other.runs()[0].run_id == "r"


def test_a_graph_with_another_checkpointer_reads_files_by_path(tmp_path: Path) -> None:
    """F7, F11: a Path is a file; a str is the checkpointer's own reference."""
    ran = Ran()
    graph, path = build(ran, checkpointer=MemoryCheckpointer()), tmp_path / "x.pkl"
    graph.save_checkpoint(path, {}, "publish")
    assert list(graph.invoke(None, checkpoint=path))[-1]["type"] == "final"
    assert list(graph.resume_from_checkpoint(str(path)))[-1]["type"] == "final"
    with pytest.raises(UsageError, match="MemoryCheckpointer"):
        list(graph.invoke(None, checkpoint=str(path)))


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """F3: each with what to do."""
    with pytest.raises(DefinitionError, match=r"compile\(checkpoint_dir=…\)"):
        build(Ran(), interrupt_before=["review"])
    with pytest.raises(DefinitionError, match="not both"):
        build(Ran(), checkpoint_dir=tmp_path, checkpointer=MemoryCheckpointer())
    with pytest.raises(DefinitionError, match="needs a store"):
        build(Ran(), checkpoint_dir=tmp_path, interval=2)
    for wrong in ("", 5):
        with pytest.raises(DefinitionError, match="path of a directory"):
            build(Ran(), checkpoint_dir=wrong)
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="it is a file"):
        build(Ran(), checkpoint_dir=tmp_path / "file")
    with pytest.raises(UsageError, match="no directory to save"):
        checkpoint_files.CheckpointFiles().save({}, "a", {})
    assert "CheckpointFiles(" in repr(checkpoint_files.CheckpointFiles(tmp_path))


# Errors


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """F10: not found."""
    for missing in (tmp_path / "none.pkl", tmp_path):
        with pytest.raises(CheckpointNotFound) as caught:
            StateGraph.load_checkpoint(missing)
        assert caught.value.path == str(missing)
        with pytest.raises(CheckpointNotFound):
            list(build(Ran()).resume_from_checkpoint(missing))
    with pytest.raises(CheckpointNotFound):
        list(build(Ran()).invoke(None, checkpoint="checkpoints/none.pkl"))
    with pytest.raises(UsageError):
        StateGraph.load_checkpoint("a\0b")


WHOLE = {"state": {"v": 1}, "node": "review", "config": {}, "timestamp": 1.0, "version": "1.0"}


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", DamagedCheckpoint, "ends before"),
        (b"not a pickle at all", DamagedCheckpoint, "isn't a whole pickle"),
        (b"\x80", DamagedCheckpoint, "pickle"),
        (pickle.dumps([1]), DamagedCheckpoint, "holds a list"),
        (pickle.dumps({"state": {}}), DamagedCheckpoint, "node, config, version missing"),
        (pickle.dumps({**WHOLE, "version": "2.0"}), UnsupportedFormat, "'2.0'.*upgrade"),
        (pickle.dumps({**WHOLE, "version": 3}), UnsupportedFormat, "upgrade"),
        (pickle.dumps({**WHOLE, "state": [1]}), DamagedCheckpoint, "its state is"),
        (pickle.dumps({**WHOLE, "node": ""}), DamagedCheckpoint, "its node is"),
        (pickle.dumps({**WHOLE, "config": 5}), DamagedCheckpoint, "its config is"),
        (pickle.dumps({**WHOLE, "state": {"kind": datetime}}), CheckpointError, "state.kind"),
        (pickle.dumps(WHOLE) + b"more", DamagedCheckpoint, "something follows"),
        (pickle.dumps({**WHOLE, "__limpet__": "x"}), DamagedCheckpoint, "its end is missing"),
        (safe_pickle.dumps({**WHOLE, "__limpet__": "x"}), UsageError, "damaged under '__limpet__'"),
        (b"\x80\x02cfractions\nFraction\nX\x03\0\0\x001e9\x85R.", DamagedCheckpoint, "isn't a fraction"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(
    tmp_path: Path, content: bytes, error: type[LimpetError], words: str
) -> None:
    """F10: corrupt, truncated, of another version, without its keys; nothing runs."""
    ran, path = Ran(), tmp_path / "bad.pkl"
    path.write_bytes(content)
    with pytest.raises(error, match=words) as caught:
        list(build(ran).invoke(None, checkpoint=str(path)))
    assert str(path) in str(caught.value)
    assert ran.nodes == []


def test_a_node_that_is_gone_is_named(tmp_path: Path) -> None:
    """F10."""
    graph = build(Ran())
    graph.save_checkpoint(tmp_path / "x.pkl", {}, "vanished")
    with pytest.raises(DefinitionError, match="'vanished', which is no longer in the graph"):
        list(graph.resume_from_checkpoint(tmp_path / "x.pkl"))


def test_every_changed_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    """F10, H5: at each place of a file that a run has written."""
    (event,) = build(Ran(), interrupt_after=["review"], checkpoint_dir=tmp_path).invoke(
        {"v": "x" * 40, "n": [1, 2.5]}
    )
    path = Path(event["checkpoint_path"])
    whole = path.read_bytes()
    chance = random.Random(5)
    for place in range(len(whole)):
        for data in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :],
        ):
            path.write_bytes(data)
            with pytest.raises((DamagedCheckpoint, ForbiddenType)):
                StateGraph.load_checkpoint(path)


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid"), reason="permissions of a directory")
def test_a_directory_that_cannot_be_written_stops_the_run_without_a_path(tmp_path: Path) -> None:
    """F8, G9: as an error that says what to do."""
    closed = tmp_path / "closed"
    closed.mkdir()
    graph = build(Ran(), interrupt_before=["review"], checkpoint_dir=closed / "c")
    closed.chmod(0o500)
    try:
        if os.access(closed, os.W_OK):
            pytest.skip("this user may write everywhere")
        (event,) = graph.invoke({})
        assert event["type"] == "error"
        assert "checkpoint_path" not in event
        assert f"let this user read and write {closed}" in event["error"]
        with pytest.raises(StoreUnavailable, match="let this user"):
            graph.save_checkpoint(closed / "x.pkl", {}, "review")
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("failing", ["write", "fsync", "link"])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """F8, F10: wherever the writing fails; what was saved before is untouched."""
    graph = build(Ran(), interrupt_before=["review"], checkpoint_dir=tmp_path)
    graph.save_checkpoint(tmp_path / "kept.pkl", {"v": 1}, "review")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    (event,) = graph.invoke({})
    assert event["type"] == "error"
    assert "checkpoint_path" not in event
    assert "the disk is full; free some space" in event["error"]
    if failing != "link":
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            graph.save_checkpoint(tmp_path / "kept.pkl", {"v": 2}, "review")
    assert [file.name for file in tmp_path.iterdir()] == ["kept.pkl"]
    assert graph.load_checkpoint(tmp_path / "kept.pkl")["state"] == {"v": 1}


def test_what_the_system_forbids_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F8, F10: also for a user who may write everywhere."""
    graph = build(Ran(), interrupt_before=["review"], checkpoint_dir=tmp_path)

    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    (event,) = graph.invoke({})
    assert event["type"] == "error"
    assert "checkpoint_path" not in event
    assert f"let this user read and write {tmp_path}" in event["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_path_through_a_file_is_explained(tmp_path: Path) -> None:
    """F10."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="a file, not a directory"):
        StateGraph().save_checkpoint(tmp_path / "file" / "x.pkl", {}, "review")
    with pytest.raises(StoreUnavailable, match="it is a directory"):
        StateGraph().save_checkpoint(tmp_path, {}, "review")


# Files that mean harm


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def checkpoint_with(value: Any) -> bytes:
    return pickle.dumps({**WHOLE, "state": {"deep": [{"er": (value,)}]}})


def raw(tail: bytes) -> bytes:
    return b"\x80\x02" + tail + b"."


HARMFUL = {
    "reduce": (checkpoint_with(Evil()), "posix.system"),
    "global and reduce": (raw(b"cos\nsystem\nX\x0b\0\0\0touch pwned\x85R"), "os.system"),
    "stack global": (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch pwned\x85R.", "os.system"),
    "inst": (raw(b"(X\x0b\0\0\0touch pwnedios\nsystem\n"), "os.system"),
    "obj": (raw(b"(cos\nsystem\nX\x0b\0\0\0touch pwnedo"), "os.system"),
    "newobj": (raw(b"cUnlisted\nX\n)\x81"), "Unlisted.X"),
    "a name only": (raw(b"cos\nsystem\n"), "os.system"),
    "eval": (raw(b"cbuiltins\neval\nX\x01\0\0\x001\x85R"), "builtins.eval"),
    "exec by its old name": (raw(b"c__builtin__\nexec\nX\x01\0\0\x001\x85R"), "builtins.exec"),
    "import": (raw(b"cbuiltins\n__import__\nX\x02\0\0\0os\x85R"), "builtins.__import__"),
    "dotted": (b"\x80\x04\x8c\x08datetime\x8c\x12datetime.__class__\x93.", "datetime.datetime.__class__"),
    "an unlisted class": (checkpoint_with(Unlisted()), f"{__name__}.Unlisted"),
    "an unlisted function": (checkpoint_with(build), f"{__name__}.build"),
    "getattr": (
        raw(b"cbuiltins\ngetattr\ncdatetime\ndatetime\nX\t\0\0\0__class__\x86R"),
        "getattr, for '__class__'",
    ),
    "getattr of a value": (raw(b"cbuiltins\ngetattr\n]X\x06\0\0\0append\x86R"), "getattr, for 'append'"),
    "extension": (raw(b"\x82\x01"), "extension 1"),
    "persistent id": (raw(b"Pid\n"), "persistent id"),
    "attributes of a class": (raw(b"cuuid\nUUID\nN}X\x01\0\0\0xK\x01s\x86b"), "set attributes of uuid.UUID"),
    "attributes of a member": (
        raw(b"cuuid\nSafeUUID\nK\0\x85R}X\x01\0\0\0xK\x01sb"),
        "of a value of uuid.SafeUUID",
    ),
    "filled twice": (
        raw(b"cuuid\nUUID\n)\x81}X\x03\0\0\0intK\x01sb}X\x03\0\0\0intK\x02sb"),
        "attributes of a value",
    ),
    "keywords": (b"\x80\x04\x8c\x04uuid\x8c\x04UUID\x93)}\x92.", "keyword arguments"),
    "call of a value": (raw(b"K\x01)R"), "to call a value of builtins.int"),
    "call of a result": (raw(b"cdatetime\ntimedelta\n)R)R"), "to call a value of datetime.timedelta"),
    "append to a bytearray": (raw(b"cbuiltins\nbytearray\n)RK\x01a"), "add to a value of builtins.bytearray"),
    "items of a class": (raw(b"ccollections\nCounter\nK\x01K\x02s"), "add to collections.Counter"),
    "codec": (raw(b"c_codecs\nencode\nX\x01\0\0\0xX\x05\0\0\0rot13\x86R"), "_codecs.encode to 'rot13'"),
    "factory": (
        raw(b"ccollections\ndefaultdict\nccollections\ndeque\n\x85R"),
        "defaultdict of collections.deque",
    ),
}


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_file_that_means_harm_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """F9: whatever opcode it comes by, and however deep; nothing was run."""
    monkeypatch.chdir(tmp_path)
    content, named = HARMFUL[kind]
    Path("evil.pkl").write_bytes(content)
    with pytest.raises(ForbiddenType) as caught:
        StateGraph.load_checkpoint("evil.pkl")
    assert named in caught.value.type
    assert named in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["evil.pkl"]


def test_a_malicious_pickle_would_have_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: the test above means something."""
    monkeypatch.chdir(tmp_path)
    for kind in ("reduce", "global and reduce", "stack global", "inst", "obj"):
        pickle.loads(HARMFUL[kind][0])
        assert Path("pwned").exists(), kind
        Path("pwned").unlink()


def test_only_one_module_knows_pickle() -> None:
    """F9: and no other store's format is it. The crash-test kit hands the test's own objects to its own children."""
    root = Path(limpet.__file__).parent
    knowing = [
        path.name
        for path in root.rglob("*.py")
        if "testing" not in path.relative_to(root).parts
        and re.search(r"^\s*(import|from) pickle\b", path.read_text(), re.M)
    ]
    assert knowing == ["safe_pickle.py"]


def test_a_pickle_names_no_module_of_limpet() -> None:
    """F9: a module that moves never makes a file unreadable, for Limpet's reader and for `pickle.load` alike."""
    data = safe_pickle.dumps(Point(1, 2))
    named = {arg for opcode, arg, _ in pickletools.genops(data) if "UNICODE" in opcode.name}
    assert safe_pickle.NAME_IN_FILES in named
    assert not any(str(name).startswith("limpet.") for name in named)
    assert not list(Path(limpet.__file__).parents[1].rglob(f"{safe_pickle.NAME_IN_FILES}*"))
    assert safe_pickle.loads(data) == (Point(1, 2), True)
    assert pickle.loads(data) == Point(1, 2)
