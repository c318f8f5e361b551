"""Comparison: what differs between a run that was killed and resumed, and an uninterrupted one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from limpet.testing.crash.crash_points import Notes
from limpet.testing.crash.report import Finding

MAX_VALUE_TEXT = 300
"""Characters of a value that are shown."""


class UninterruptedRun(NamedTuple):
    """The final state of the uninterrupted run, each value as text, and its log."""

    state: Mapping[str, str]
    notes: Notes


def compare(
    expected: UninterruptedRun,
    state: Mapping[str, str],
    notes: Notes,
    ignore: Collection[str],
    repeatable: Collection[str],
) -> list[Finding]:
    """What differs: keys of the state, but for those to ignore, calls that ran again, and effects."""
    return [
        *_state_findings(expected.state, state, ignore),
        *_calls_after_save(notes),
        *_effect_findings(expected.notes, notes, repeatable),
    ]


def _state_findings(
    expected: Mapping[str, str], found: Mapping[str, str], ignore: Collection[str]
) -> Iterable[Finding]:
    for key in dict.fromkeys([*expected, *found]):
        if key in ignore or expected.get(key) == found.get(key):
            continue
        uninterrupted = _value_in_words(expected.get(key))
        resumed = _value_in_words(found.get(key))
        text = f"state[{key!r}]: the uninterrupted run {uninterrupted}, the resumed one {resumed}"
        yield Finding("state", text)
    before = [key for key in expected if key in found and key not in ignore]
    after = [key for key in found if key in expected and key not in ignore]
    if before != after:
        orders = f"{before} in the uninterrupted run, {after} in the resumed one"
        yield Finding("state", f"the keys of the state have another order: {orders}")


def _value_in_words(value: str | None) -> str:
    if value is None:
        return "has no such key"
    if len(value) > MAX_VALUE_TEXT:
        return f"has {value[:MAX_VALUE_TEXT]}… ({len(value)} characters)"
    return f"has {value}"


def _calls_after_save(notes: Notes) -> Iterable[Finding]:
    """Calls that ran again although they were saved, or had ended in the same process."""
    saved: set[str] = set()
    saved_before: set[str] = set()
    started: dict[str, str] = {}
    attempts: dict[str, int] = {}
    ended: set[tuple[str, int]] = set()
    for note in notes:
        match note["note"]:
            case "process":
                ended.clear()
                saved_before = set(saved)
            case "ack":
                saved.update(note["calls"])
            case "event" if note["node"] in started:
                saved.add(started[note["node"]])
            case "start":
                call = note["call"]
                started[note["node"]] = call
                attempts[call] = note.get("attempt", 1)
                if call in saved:
                    text = f"node {note['node']!r} ran again after it was saved (call {call})"
                    yield Finding("again", text)
                elif (call, attempts[call]) in ended:
                    text = (
                        f"node {note['node']!r} ran again in the process in which it had ended (call {call})"
                    )
                    yield Finding("again", text)
            case "ended" if note["finished"] and note["call"] in attempts:
                ended.add((note["call"], attempts[note["call"]]))
            case "effect" if note.get("call") in saved_before:
                text = f"effect {note['name']!r} of node {note['node']!r} happened after the node was saved"
                yield Finding("again", text)


def repeated_calls(expected: Notes, found: Notes) -> int:
    """How many calls of nodes there were beyond those of the uninterrupted run."""
    before = Counter(note["call"] for note in expected if note["note"] == "start")
    after = Counter(note["call"] for note in found if note["note"] == "start")
    return (after - before).total()


def _effect_findings(expected: Notes, found: Notes, repeatable: Collection[str]) -> Iterable[Finding]:
    before = _count_effects(expected)
    after = _count_effects(found)
    nodes = {
        (each["name"], each["key"]): each["node"] for each in [*found, *expected] if each["note"] == "effect"
    }
    keys = Counter(name for name, key in before if key is not None)
    for effect in sorted(before.keys() | after.keys(), key=repr):
        name, key = effect
        what = f"effect {name!r}"
        if nodes[effect]:
            what = f"effect {name!r} of node {nodes[effect]!r}"
        times = f"{what} happened {after[effect]} times, {before[effect]} in the uninterrupted run"
        if after[effect] > before[effect]:
            if name in repeatable:
                continue
            if key is None:
                yield Finding("effect", times)
            elif keys[name]:
                others = f"in the uninterrupted run there were {keys[name]} with other keys"
                yield Finding("key", f"{what} has the key {key!r}; {others}")
            else:
                text = f"{what} has the key {key!r}; in the uninterrupted run there was none"
                yield Finding("effect", text)
        elif after[effect] < before[effect]:
            if key is None:
                yield Finding("missing", times)
            else:
                yield Finding("missing", f"{what} with the key {key!r} is missing")


def _count_effects(notes: Notes) -> Counter[tuple[str, str | None]]:
    """How often each effect counts. With a key it counts once: the service that gets the key ignores repetitions."""
    counted = Counter((each["name"], each["key"]) for each in notes if each["note"] == "effect")
    for name, key in counted:
        if key is not None:
            counted[name, key] = 1
    return counted
