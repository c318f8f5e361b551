"""Crash points: where a process of a run can be killed, found in the log of the uninterrupted run.

`17:before`, `17:written` and `17:after` are around the seventeenth commit (the first creates the run): before it,
when it is durable but not acknowledged, and when the run knows. `call-3:inside` is half way through the third call
of a node, and `effect-2:done` right after the second effect was recorded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Notes = list[dict[str, Any]]
"""The lines of a log: see `watched_process`."""

MOMENTS = {
    "before": "before",
    "written": "after the write, before the acknowledgement, of",
    "after": "after",
}


class CrashPoint(NamedTuple):
    """A point at which a process is killed: its name, and in words where it is. `delay` is for inside a call."""

    name: str
    where: str
    delay: float = 0.0


def points_of(notes: Notes) -> list[CrashPoint]:
    """All points of an uninterrupted run, in the order in which it reaches them."""
    found: list[CrashPoint] = []
    durations = _durations(notes)
    saved_nodes = _saved_nodes(notes)
    effects = 0
    for note in notes:
        if note["note"] == "commit":
            number = note["number"]
            what = f"commit {number}{_description(number, saved_nodes.get(number, []))}"
            for moment, words in MOMENTS.items():
                found.append(CrashPoint(f"{number}:{moment}", f"{words} {what}"))
        elif note["note"] == "start":
            number = note["number"]
            where = f"inside of call {number}, of node {note['node']!r}"
            found.append(CrashPoint(f"call-{number}:inside", where, durations.get(number, 0.0) / 2))
        elif note["note"] == "effect":
            effects += 1
            where = f"right after effect {effects}, {note['name']!r} of node {note['node']!r}"
            found.append(CrashPoint(f"effect-{effects}:done", where))
    return found


def sample(points: list[CrashPoint], size: int) -> list[CrashPoint]:
    """A few of the points: at least one of each kind, and the others evenly spread."""
    if len(points) <= size:
        return points
    kinds: dict[str, list[CrashPoint]] = {}
    for point in points:
        kinds.setdefault(point.name.partition(":")[2], []).append(point)
    # Of each kind from another part of the run: of three kinds, one from its first, second and third quarter.
    chosen = {each[len(each) * (index + 1) // (len(kinds) + 1)] for index, each in enumerate(kinds.values())}
    others = [point for point in points if point not in chosen]
    spare = max(size - len(chosen), 0)
    chosen.update(others[len(others) * index // spare] for index in range(spare))
    return [point for point in points if point in chosen]


def _saved_nodes(notes: Notes) -> dict[int, list[str]]:
    """The nodes that each commit saves, by the number of the commit. An acknowledgement lists all calls so far."""
    acknowledged = {each["number"]: each["calls"] for each in notes if each["note"] == "ack"}
    nodes = {each["call"]: each["node"] for each in notes if each["note"] == "start"}
    known: set[str] = set()
    found: dict[int, list[str]] = {}
    for note in notes:
        if note["note"] == "commit":
            calls = acknowledged.get(note["number"], ())
            found[note["number"]] = [nodes[call] for call in calls if call not in known]
            known.update(calls)
    return found


def _description(number: int, nodes: list[str]) -> str:
    if number == 1:
        return " that creates the run"
    if not nodes:
        return ""
    names = ", ".join(map(repr, nodes))
    return f" that saves {'node' if len(nodes) == 1 else 'nodes'} {names}"


def _durations(notes: Notes) -> dict[int, float]:
    """How long each call took."""
    started: dict[str, tuple[int, float]] = {}
    found: dict[int, float] = {}
    for note in notes:
        if note["note"] == "start":
            started[note["call"]] = (note["number"], note["at"])
        elif note["note"] == "ended" and note["call"] in started:
            number, at = started.pop(note["call"])
            found[number] = note["at"] - at
    return found
