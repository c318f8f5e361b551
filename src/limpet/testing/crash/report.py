"""What a crash matrix found: how each killed run compares with the uncut one, and an account of it to be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from textwrap import wrap
from typing import Any, NamedTuple

Notes = list[dict[str, Any]]

LONGEST = 300
"""Characters of a value that are shown of it."""
MOST_POINTS = 8
"""Points that are listed for a finding."""

ADVICE = {
    "effect": (
        "A node that was cut off runs again. Hand ctx.idempotency_key to the service, so that it counts the call "
        "once, and record it with the key: effects.record(name, ctx.idempotency_key). Keep it with once(key, "
        "function) where the node goes on afterwards: it isn't repeated then once its result is saved, though in the "
        "moment before it may be. An effect that may come twice is named in repeatable=[…]"
    ),
    "key": "A key that the node makes up is a new one each time; ctx.idempotency_key is the same for every attempt",
    "missing": (
        "Something made the resumed run believe that it was done: a file or a service that was told before it was, "
        "or a result that was saved before"
    ),
    "state": (
        "A resumed run is in a new process, and finds there what nodes returned, nothing else: keep what later nodes "
        "need in the state, not in globals, closures or objects"
    ),
    "failed": (
        "The node doesn't find what an earlier one left in its process, or can't bear to run again after it was "
        "cut off: let it make what it needs, and cope with what it has done before"
    ),
    "again": "This is a defect of Limpet, or of something that changed its store: please report it",
    "late": "It waits for something that died with the process. timeout=… lets it take longer",
}


class Finding(NamedTuple):
    """Something that isn't as in the uncut run: its kind, and in words what and where."""

    kind: str
    text: str


class Expected(NamedTuple):
    """What the uncut run came to."""

    state: Mapping[str, str]
    notes: Notes


class Point(NamedTuple):
    """A point at which a process is killed: its name, and in words where that is. `delay` is for within a call."""

    name: str
    where: str
    delay: float = 0.0


class Killed(NamedTuple):
    """What came of one point: whether the process died there, how the run ended then, and what isn't right."""

    point: Point
    reached: bool
    findings: list[Finding]


def points_of(notes: Notes) -> list[Point]:
    """All points of an uncut run, in the order in which it comes to them."""
    found: list[Point] = []
    acked = {each["number"]: each["calls"] for each in notes if each["note"] == "ack"}
    places = {each["call"]: each["node"] for each in notes if each["note"] == "start"}
    told: set[str] = set()
    durations = _durations(notes)
    effects = 0
    for note in notes:
        if note["note"] == "commit":
            number = note["number"]
            new = [places[call] for call in acked.get(number, ()) if call not in told]
            told.update(acked.get(number, ()))
            where = "that creates the run" if number == 1 else f"that saves {_named(new)}" if new else ""
            for moment in ("before", "written", "after"):
                found.append(
                    Point(f"{number}:{moment}", f"{MOMENTS[moment]} commit {number} {where}".rstrip())
                )
        elif note["note"] == "start":
            where = f"inside of call {note['number']}, of node {note['node']!r}"
            found.append(
                Point(f"call-{note['number']}:inside", where, durations.get(note["number"], 0.0) / 2)
            )
        elif note["note"] == "effect":
            effects += 1
            where = f"right after effect {effects}, {note['name']!r} of node {note['node']!r}"
            found.append(Point(f"effect-{effects}:done", where))
    return found


MOMENTS = {"before": "before", "written": "after the write, before the acknowledgement, of", "after": "after"}


def sample(points: list[Point], size: int) -> list[Point]:
    """A few of the points: of each kind at least one, and else evenly spread."""
    if len(points) <= size:
        return points
    kinds: dict[str, list[Point]] = {}
    for point in points:
        kinds.setdefault(point.name.partition(":")[2], []).append(point)
    chosen = {each[len(each) * (index + 1) // (len(kinds) + 1)] for index, each in enumerate(kinds.values())}
    spare, rest = max(size - len(chosen), 0), [point for point in points if point not in chosen]
    chosen.update(rest[len(rest) * index // spare] for index in range(spare))
    return [point for point in points if point in chosen]


def compare(
    expected: Expected,
    state: Mapping[str, str],
    notes: Notes,
    ignore: Collection[str],
    repeatable: Collection[str],
) -> list[Finding]:
    """What differs between a run that was killed and the uncut one."""
    return [
        *_differences(expected.state, state, ignore),
        *_ran_again(notes),
        *_effects(expected.notes, notes, repeatable),
    ]


def _differences(
    expected: Mapping[str, str], found: Mapping[str, str], ignore: Collection[str]
) -> Iterable[Finding]:
    for key in dict.fromkeys([*expected, *found]):
        if key in ignore or expected.get(key) == found.get(key):
            continue
        uncut, killed = expected.get(key), found.get(key)
        was = "has no such key" if uncut is None else f"has {_short(uncut)}"
        now = "has no such key" if killed is None else f"has {_short(killed)}"
        yield Finding("state", f"state[{key!r}]: the uncut run {was}, the resumed one {now}")


def _ran_again(notes: Notes) -> Iterable[Finding]:
    saved: set[str] = set()
    for note in notes:
        if note["note"] == "ack":
            saved.update(note["calls"])
        elif note["note"] == "start" and note["call"] in saved:
            yield Finding(
                "again", f"node {note['node']!r} ran again after it was saved (call {note['call']})"
            )


def _effects(expected: Notes, found: Notes, repeatable: Collection[str]) -> Iterable[Finding]:
    was, now = _counted(expected), _counted(found)
    nodes = {
        (each["name"], each["key"]): each["node"] for each in [*found, *expected] if each["note"] == "effect"
    }
    keys = Counter(name for name, key in was if key is not None)
    for effect in sorted(was.keys() | now.keys(), key=repr):
        name, key = effect
        node = f" of node {nodes[effect]!r}" if nodes[effect] else ""
        if now[effect] > was[effect] and key is not None and name not in repeatable:
            times = f"there were {keys[name]} with other keys" if keys[name] else "there was none"
            text = f"effect {name!r}{node} came with the key {key!r}; in the uncut run {times}"
            yield Finding("key" if keys[name] else "effect", text)
        elif now[effect] > was[effect] and name not in repeatable:
            text = f"effect {name!r}{node} happened {now[effect]} times, {was[effect]} in the uncut run"
            yield Finding("effect", text)
        elif now[effect] < was[effect] and key is None:
            text = f"effect {name!r}{node} happened {now[effect]} times, {was[effect]} in the uncut run"
            yield Finding("missing", text)
        elif now[effect] < was[effect]:
            yield Finding("missing", f"effect {name!r}{node} with the key {key!r} is missing")


def _counted(notes: Notes) -> Counter[tuple[str, str | None]]:
    """How often each effect counts: with a key once, whatever happens."""
    effects = [(each["name"], each["key"]) for each in notes if each["note"] == "effect"]
    counted = Counter(effects)
    return Counter({effect: 1 if effect[1] is not None else count for effect, count in counted.items()})


class Account:
    """What a crash matrix found. `ok` says whether all is well; `str()` of it is to be read.

    `commits` is how many the uncut run made, `points` at how many points a process was to be killed, `killed` at
    how many one was, `killings` what came of each.
    """

    def __init__(self, what: str, commits: int, killings: list[Killed], how: str = "") -> None:
        self.what, self.commits, self.killings, self._how = what, commits, killings, how

    @property
    def points(self) -> int:
        return len(self.killings)

    @property
    def killed(self) -> int:
        return sum(each.reached for each in self.killings)

    @property
    def ok(self) -> bool:
        return not any(each.findings for each in self.killings)

    def __str__(self) -> str:
        counts = f"killed at {self.killed} of {self.points} points"
        headline = f"{self.what}: {counts}, {self.commits} commits in the uncut run"
        if self.ok:
            return f"{headline}; every resumed run ended as the uncut one."
        bad = sum(bool(each.findings) for each in self.killings)
        grouped: dict[Finding, list[Point]] = {}
        for killing in self.killings:
            for finding in dict.fromkeys(killing.findings):
                grouped.setdefault(finding, []).append(killing.point)
        lines = [f"{headline}; at {bad} of them the resumed run didn't end as the uncut one.", ""]
        advised: set[str] = set()
        for finding, points in sorted(grouped.items(), key=lambda each: list(ADVICE).index(each[0].kind)):
            lines += [
                f"- {finding.text}",
                *(f"    point={point.name}: killed {point.where}" for point in points[:MOST_POINTS]),
            ]
            if len(points) > MOST_POINTS:
                lines.append(f"    … and at {len(points) - MOST_POINTS} more points")
            if finding.kind not in advised:
                advised.add(finding.kind)
                lines += wrap(
                    f"→ {ADVICE[finding.kind]}.", 100, initial_indent="    ", subsequent_indent="      "
                )
        all_points = [point for points in grouped.values() for point in points]
        first = min(all_points, key=lambda point: point.delay > 0.0)  # one that is exact, if there is one
        return "\n".join(
            [
                *lines,
                "",
                f"To see one of them again: point={first.name!r}{self._how.format(point=first.name)}",
            ]
        )

    def __repr__(self) -> str:
        return f"<Account: {self.killed} of {self.points} points, {'ok' if self.ok else 'not ok'}>"


def _durations(notes: Notes) -> dict[int, float]:
    """How long each call took."""
    began: dict[str, tuple[int, float]] = {}
    found: dict[int, float] = {}
    for note in notes:
        if note["note"] == "start":
            began[note["call"]] = note["number"], note["at"]
        elif note["note"] == "ended" and note["call"] in began:
            number, at = began.pop(note["call"])
            found[number] = note["at"] - at
    return found


def _named(nodes: list[str]) -> str:
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(map(repr, nodes))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
