"""The files of a `checkpoint_dir` are deleted by policy: the newest of each run are kept, and old ones expire."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from limpet import DefinitionError, MemoryCheckpointer, Retention, StateGraph, UsageError, pause
from limpet.stores.user_stores.checkpoint_files import CheckpointFiles


def asking(**settings: Any) -> StateGraph:
    """Nodes that ask, one after the other; the last fails."""

    def fail(state: Any) -> None:
        raise ValueError("as it should")

    graph = StateGraph(name="asking")
    names = ["a", "b", "c", "d"]
    for name in names:
        graph.add_node(name, run=lambda state, node: {node: pause(f"{node}?")})
    graph.add_node("fail", run=fail)
    for source, target in zip(names, [*names[1:], "fail"], strict=True):
        graph.add_edge(source, target)
    graph.set_entry_point("a")
    graph.set_finish_point("fail")
    return graph.compile(**settings)


def stops(graph: StateGraph, count: int, run_id: str) -> list[str]:
    """The paths of the files that a run wrote at its first stops."""
    (event,) = graph.invoke({}, run_id=run_id)
    paths = [event["checkpoint_path"]]
    for _ in range(count - 1):
        (event,) = graph.invoke("yes", checkpoint=paths[-1])
        paths.append(event["checkpoint_path"])
    return paths


def kept(folder: Path) -> set[str]:
    return {str(path) for path in folder.glob("*.pkl")}


@pytest.mark.parametrize("store", [None, "memory://"])
def test_the_newest_files_of_each_run_are_kept(tmp_path: Path, store: Any) -> None:
    """F14: by keep=N, also over a resume by another object; other runs and other files are left alone."""
    mine = tmp_path / "mine.pkl"
    mine.write_bytes(b"not a checkpoint of a run")
    alike = tmp_path / "a_1234567890123.pkl"
    alike.write_bytes(b"named like one")
    settings: dict[str, Any] = {"checkpoint_dir": tmp_path} | ({"store": store} if store else {})
    others = stops(asking(**settings), 3, "other")
    paths = stops(asking(keep=2, **settings), 2, "r")
    again = asking(keep=2, checkpoint_dir=tmp_path)
    for _ in range(2):
        (event,) = again.invoke("yes", checkpoint=paths[-1])
        paths.append(event["checkpoint_path"])
    assert kept(tmp_path) == {*others, *paths[-2:], str(mine), str(alike)}
    (event,) = again.invoke("yes", checkpoint=paths[-1])
    assert event["type"] == "error"


def aged(paths: list[str], seconds: int) -> list[str]:
    """The files under names that say that they were written earlier."""
    renamed = []
    for number, path in enumerate(map(Path, paths), len(kept(Path(paths[0]).parent))):
        node, _, written = path.stem.partition("_")
        # Each gets a number of its own: another run's file of the same millisecond may have been renamed before.
        renamed.append(path.with_name(f"{node}_{int(written[:13]) - seconds * 1000}_{number}.pkl"))
        path.rename(renamed[-1])
    return list(map(str, renamed))


def test_files_expire_by_the_policy_of_the_graph(tmp_path: Path) -> None:
    """F14: by hand, with the reason; paused ones only if the policy says so."""
    graph = asking(checkpoint_dir=tmp_path, retention=Retention(failed="1h"))
    paused = aged(stops(graph, 1, "p"), 7200)
    failed = aged(stops(graph, 5, "f"), 7200)
    young = stops(graph, 5, "y")
    would = graph.cleanup(dry_run=True)
    assert [(each.run_id, each.status, each.file) for each in would] == [("f", "failed", failed[-1])]
    assert kept(tmp_path) == {*paused, *failed, *young}
    assert graph.cleanup() == would
    assert "kept for 1 h" in would[0].reason
    assert kept(tmp_path) == {*paused, *failed[:-1], *young}
    assert {each.file for each in graph.cleanup(Retention(paused="1h"))} == {*paused, *failed[:-1]}
    assert kept(tmp_path) == set(young)
    assert [each.file for each in graph.cleanup(Retention(newest=0))] == young[-1:]


@pytest.mark.parametrize("store", [None, "memory://"])
def test_files_expire_by_their_age_alone(tmp_path: Path, store: Any) -> None:
    """F14: cleanup_expired() deletes and counts them, with a store or without; those of paused runs if asked to."""
    settings: dict[str, Any] = {"checkpoint_dir": tmp_path} | ({"store": store} if store else {})
    graph = asking(**settings)
    paused = aged(stops(graph, 1, "p"), 7200)
    failed = aged(stops(graph, 5, "f"), 7200)
    young = stops(graph, 1, "y")
    assert graph.cleanup_expired(3) == 0
    assert graph.cleanup_expired(1) == 1
    assert kept(tmp_path) == {*paused, *failed[:-1], *young}
    assert graph.cleanup_expired(1, "paused") == 5
    assert kept(tmp_path) == set(young)
    with pytest.raises(UsageError, match="hours"):
        graph.cleanup_expired(-1)


def test_a_checkpointer_that_only_loads_files_has_none_to_delete(tmp_path: Path) -> None:
    """F14: it has no directory."""
    graph = asking(checkpointer=CheckpointFiles())
    assert graph.cleanup(Retention(paused=0)) == []
    assert graph.cleanup_expired(0, "paused") == 0


def test_files_expire_in_the_background_when_a_run_stops(tmp_path: Path) -> None:
    """F14: without a script of the user's."""
    old = aged(stops(asking(checkpoint_dir=tmp_path), 3, "old"), 90_000)
    (new,) = stops(asking(checkpoint_dir=tmp_path, retention=Retention(paused="1d")), 1, "new")
    deadline = monotonic() + 30
    while kept(tmp_path) != {new} and monotonic() < deadline:
        sleep(0.01)
    assert kept(tmp_path) == {new}
    assert len(old) == 3


def test_files_of_another_graph_stay(tmp_path: Path) -> None:
    """F14, P12: a policy is for the runs of its graph."""
    paths = stops(asking(checkpoint_dir=tmp_path), 2, "r")
    other = StateGraph(name="other").add_node("a", lambda state: {})
    other.set_entry_point("a")
    other.set_finish_point("a")
    other.compile(checkpoint_dir=tmp_path, retention=Retention(paused=0.0, newest=0))
    assert other.cleanup() == []
    assert kept(tmp_path) == set(paths)


def test_a_checkpointer_of_the_users_takes_no_policy() -> None:
    """F14: it can't delete, so a setting that asks for that is a mistake and not ignored."""
    for settings in ({"keep": 3}, {"retention": Retention(paused="1d")}):
        with pytest.raises(DefinitionError, match="a checkpointer has no delete"):
            asking(checkpointer=MemoryCheckpointer(), **settings)
