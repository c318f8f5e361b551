"""Crash points: where a process of a run can be killed, found in the log of the uninterrupted run.

`17:before`, `17:written` and `17:after` are around the seventeenth commit (the first creates the run): before it,
when it is durable but not acknowledged, and when the run knows. `call-3:inside` is half way through the third call
of a node, and `effect-2:done` right after the second effect was recorded.

In a chain, two more names are of use, as the numbers of commits and effects depend on timing where nodes run in
parallel: `layer-3:before`, `layer-3:written` and `layer-3:after` are around the third commit that ends a layer of a
workflow, and `effect-charge-2:done` is right after the second effect with the name "charge". A process counts from
its own start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from limpet.errors import UsageError

Notes = list[dict[str, Any]]
"""The lines of a log: see `watched_process`."""

KILLS_PER_RUN = 10
"""About how many processes of a run are killed at random moments before it ends."""
GROWTH = 1.05
"""How much longer each process may live than the one before, if it is killed at a random moment."""
MAX_RANDOM_DELAY = 0.002
"""Seconds between a note in the log and a random kill, at most: long enough for a write to be under way."""
MAX_CHAIN_TEXT = 4
"""Points of a chain that are shown."""

MOMENTS = {
    "before": "before",
    "written": "after the write, before the acknowledgement, of",
    "after": "after",
}


POINT_NAME = re.compile(
    r"(layer-)?\d+:(before|written|after)|call-\d+:inside|effect-(.+-)?\d+:done", re.DOTALL
)


class CrashPoint(NamedTuple):
    """A point at which a process is killed: its name, and in words where it is. `delay` is for inside a call.

    One that stands for a run whose processes are killed at several points has an argument, with which it can be
    `repeated`.
    """

    name: str
    where: str
    delay: float = 0.0
    repeated: str = ""


class KillMoment(NamedTuple):
    """When a process is killed: at a point, or from outside when the log has `notes` notes; after `delay` seconds."""

    point: str = ""
    delay: float = 0.0
    notes: int = 0


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


def chain_of(points: Sequence[str]) -> CrashPoint:
    """What stands for a run whose processes are killed at these points. Raises `UsageError` for any other names."""
    if isinstance(points, str) or not points or not all(isinstance(each, str) for each in points):
        raise UsageError(f"a chain is a list of points, one for each process, not {points!r}")
    for point in points:
        if POINT_NAME.fullmatch(point) is None:
            raise UsageError(
                f"{point!r} isn't a point of a chain; write 2:before, 2:written, 2:after, layer-2:before, "
                "call-2:inside, effect-2:done or effect-NAME-2:done"
            )
    name = ", ".join(points[:MAX_CHAIN_TEXT])
    if len(points) > MAX_CHAIN_TEXT:
        name += f", … ({len(points)} points)"
    return CrashPoint(name, "there, one process after the other", repeated=f"chains={[list(points)]!r}")


def random_moments(chance: Random, notes: int, log_length: Callable[[], int]) -> Iterator[KillMoment]:
    """Moments for one process after the other, spread over a run whose uninterrupted log has this many `notes`."""
    longest = max(notes / KILLS_PER_RUN * 2, 2.0)
    while True:
        wanted = log_length() + chance.randrange(1, int(longest) + 1)
        yield KillMoment(delay=chance.random() * MAX_RANDOM_DELAY, notes=wanted)
        # A run that saves seldom makes progress only if its processes live longer.
        longest *= GROWTH


def _saved_nodes(notes: Notes) -> dict[int, list[str]]:
    """The nodes that each commit saves, by the number of the commit. An acknowledgement lists all calls so far."""
    acknowledged = {each["number"]: each["calls"] for each in notes if each["note"] == "ack"}
    nodes = {each["call"]: each["node"] for each in notes if each["note"] == "start"}
    known: set[str] = set()
    found: dict[int, list[str]] = {}
    for note in notes:
        if note["note"] == "commit":
            calls = acknowledged.get(note["number"], ())
            found[note["number"]] = [nodes[call] for call in calls if call in nodes and call not in known]
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
