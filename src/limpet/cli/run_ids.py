"""Ids of runs as they are typed and shown: whole, or by a beginning that no other id has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from limpet.engine.operations.run_info import list_all
from limpet.errors import DamagedRecord, KeyMissing, RunNotFound, UnsupportedFormat, UsageError, did_you_mean
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Store

SHORT_ID = 8
"""How many characters of an id are shown at least, where there isn't room for all of it."""

LONGEST_WHOLE_ID = 24
"""How many characters of an id that a person chose are always shown."""

SUGGESTED_FROM = 1000
"""Among how many of the newest ids one is looked for that may have been meant."""

MAX_LISTED = 5
"""How many ids a message names."""

GENERATED = re.compile("[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What an id looks like that no person chose. They are of the same length, so none is the beginning of another."""


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """For each of these ids a beginning that no other of them has.

    An id that a person chose stays whole if it isn't long, as its beginning may be the id of another run.
    """
    ordered = sorted(set(ids))
    found = {}
    for number, run_id in enumerate(ordered):
        if len(run_id) <= LONGEST_WHOLE_ID and GENERATED.fullmatch(run_id) is None:
            found[run_id] = run_id
            continue
        neighbours = (*ordered[max(number - 1, 0) : number], *ordered[number + 1 : number + 2])
        needed = max((_common(run_id, other) + 1 for other in neighbours), default=0)
        found[run_id] = run_id[: max(needed, SHORT_ID)]
    return found


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return number
    return min(len(one), len(other))


def whole_id(store: Store, typed: str, any_prefix: bool) -> str:
    """The id of the run that was typed: an id, or the beginning of just one.

    Where a script may have typed the id of a run that is gone, `any_prefix` is false: then only a long beginning of
    an id that was generated counts, which is hardly the id of another run. Raises `RunNotFound`, `UsageError`.
    """
    try:
        store.head(typed)
        return typed
    except RunNotFound:
        pass
    except (DamagedRecord, KeyMissing, UnsupportedFormat):
        return typed  # it is there: the command says what is wrong with it
    ids = newest_ids(store)
    matching = [run_id for run_id in ids if typed and run_id.startswith(typed)]
    if len(matching) > 1:
        listed = ", ".join(map(repr, matching[:MAX_LISTED]))
        more = f" and {len(matching) - MAX_LISTED} more" if len(matching) > MAX_LISTED else ""
        raise UsageError(f"the ids of several runs begin with {typed!r}: {listed}{more}; give more of it")
    is_unmistakable = len(typed) >= SHORT_ID and GENERATED.fullmatch(matching[0]) if matching else False
    if matching and (any_prefix or is_unmistakable):
        return matching[0]
    if matching:
        raise RunNotFound(typed, f"{matching[0]!r} begins so; outside of a terminal, give the whole id")
    raise RunNotFound(typed, did_you_mean(typed, ids[:SUGGESTED_FROM]).removeprefix("; "))


def newest_ids(store: Store, limit: int | None = None) -> list[str]:
    """The ids of the runs in a store, newest first; of runs that can't be read, too."""
    return [head.run_id for head, _ in list_all(store, RunFilter(limit=limit))]


def typable(ids: Iterable[str]) -> list[str]:
    """Those of the ids that a shell takes as they are, and for one word when it completes them."""
    return [run_id for run_id in ids if re.fullmatch(r"[\w./+-]+", run_id, re.ASCII) and run_id[0] != "-"]
