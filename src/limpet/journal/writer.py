"""The ledger: turns what happened in a run into commits, and decides when a snapshot is worth its bytes.

It does no I/O. Records wait in it until the engine asks for a commit; they leave it when the commit is
acknowledged, so a refused one can be made again with more added.

A snapshot is written when reading the records since the last one would clearly cost more than reading the
state whole. A record weighs its bytes plus a fixed amount for being one. The state isn't measured at
every step: it is looked at when the records weigh as much as it did at the last look would justify, so all
the looking together costs a fraction of the writing. Superseded values and many tiny records thus bring a
snapshot on, and an append-only history of large items hardly does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.encoding.splice import bundled
from limpet.journal.open_section import Key
from limpet.journal.progress import BUNDLE, Progress
from limpet.journal.store import Commit, OnSignal

RECORD_WEIGHT = 256
SNAPSHOT_FACTOR = 8
LEAST_WEIGHT = 64 * 1024


class JournalWriter:
    """The writing side of one run's journal, for the holder of `fence`, after record `sequence`."""

    __slots__ = (
        "_closed",
        "_look_at",
        "_pending",
        "_seal",
        "_snapshot",
        "_weight",
        "_whole",
        "fence",
        "run_id",
        "sequence",
    )

    def __init__(self, run_id: str, fence: int, sequence: int, weight: int = 0) -> None:
        self.run_id, self.fence, self.sequence = run_id, fence, sequence
        self._seal = Envelope(run_id)
        self._pending: list[bytes] = []
        self._closed: list[bytes] = []
        self._snapshot = self._whole = 0
        self._weight = weight
        self._look_at = max(weight, LEAST_WEIGHT)

    @property
    def pending(self) -> int:
        """How many records wait to be committed."""
        return len(self._pending) + len(self._closed)

    def step(self, progress: Progress, delta: bytes, following: str | None) -> None:
        """Note that a node completed; `progress` is already past it."""
        record = progress.step_record(delta, following)
        self._pending.append(record)
        self._weight += len(record) + RECORD_WEIGHT
        if self._weight >= self._look_at:
            self.consider(progress)

    def move(
        self, progress: Progress, changes: Mapping[str, Any], at: float, delta: bytes | None = None
    ) -> None:
        """Note that something else happened, and move `progress` on by it.

        `delta` is a change of the state that goes with it and that the live state has already seen.
        """
        record = progress.move_record(changes, at, delta)
        progress.move(changes)
        self.note(record)

    def note(self, record: bytes) -> None:
        """Note a record as it is."""
        self._pending.append(record)
        self._weight += len(record) + RECORD_WEIGHT

    def put(self, root: Progress, path: Sequence[Key], began: float, record: bytes) -> None:
        """Note a record of the run whose progress is `root`, or of the branch of it that `path` leads to."""
        self.note(root.nested_record(path, began, record) if path else record)

    def memo(self, root: Progress, path: Sequence[Key], key: str, value: Any, at: float) -> None:
        """Note a result to be kept, and keep it in the progress. Raises `UnstorableValue`."""
        progress = root.descend(path)
        record = progress.memo_record(key, value, at)
        progress.memos[key] = value
        self.put(root, path, at, record)

    def whole(self, progress: Progress) -> None:
        """Note all of `progress`, so that nothing before it counts any more."""
        self._begin_anew(progress.snapshot_record())

    def commit(
        self,
        status: str | None = None,
        note: bytes | None = None,
        purge: bool = False,
        on_signal: OnSignal = OnSignal.REFUSE,
        due: float | None = None,
    ) -> Commit:
        """All that is pending, as a commit. It stays pending until `acknowledged`.

        What happened since the last commit is one record, or two where one is whole: then that begins the second.
        Those of a commit that was refused are as they were, and come before it.
        """
        closed, bodies, whole = self._closed, self._pending, self._snapshot
        if len(bodies) == 1:
            closed.append(self._seal.close(self.sequence + len(closed) + 1, bodies[0]))
        elif bodies:
            parts = [bodies[: whole - 1], bodies[whole - 1 :]] if whole > 1 else [bodies]
            for part in parts:
                closed.append(self._seal.close(self.sequence + len(closed) + 1, _together(part)))
        bodies.clear()
        if whole:
            self._snapshot, self._whole = 0, self.sequence + len(closed)
        records = closed.copy()
        return Commit(
            self.run_id,
            self.fence,
            self.sequence,
            records,
            self._whole,
            status,
            note,
            purge,
            on_signal,
            due,
        )

    def acknowledged(self, commit: Commit) -> None:
        """A commit is durable: forget what it held."""
        self.taken(len(commit.records))

    def taken(self, count: int) -> None:
        """So many records, of those that were in a commit, are durable."""
        self.sequence += count
        del self._closed[:count]
        if self._whole <= self.sequence:
            self._whole = 0

    def consider(self, progress: Progress) -> None:
        """Write a snapshot if it is worth its bytes. No node may have its hands on the state meanwhile."""
        if self._weight < self._look_at:
            return
        whole = progress.snapshot_record()
        worth = SNAPSHOT_FACTOR * (len(whole) + RECORD_WEIGHT)
        if self._weight > worth:
            self._begin_anew(whole)
        else:
            self._look_at = worth + 1

    def _begin_anew(self, whole: bytes) -> None:
        self._pending.append(whole)
        self._snapshot = len(self._pending)
        self._weight, self._look_at = 0, LEAST_WEIGHT


def _together(bodies: list[bytes]) -> bytes:
    return bodies[0] if len(bodies) == 1 else bundled(_BUNDLE, bodies)


_BUNDLE = encode(BUNDLE)


TRACEBACK_KEPT = 4000
"""How many characters of a traceback, from its end, are stored with a failed run."""


def summary(progress: Progress) -> bytes:
    """What a run's head says about the run, so that listing runs reads no journal."""
    return encode(
        {
            "step": progress.step,
            "node": progress.place(),
            "phase": progress.phase,
            "reason": progress.reason,
            "error": progress.error,
            "questions": [question.to_data() for question in progress.open_questions()],
        }
    )


def error_data(error: BaseException, node: str, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """An error as plain data: its type, message and traceback, each through `hide`, and the node it came from."""
    from traceback import format_exception

    text = hide("".join(format_exception(error)))
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return {
        "type": name,
        "message": _encodable(hide(_text_of(error))),
        "node": node,
        "traceback": _encodable(text[-TRACEBACK_KEPT:]),
    }


def error_line(error: BaseException) -> str:
    """An error in one line, with the notes that were added to it."""
    parts = [_text_of(error), *(f"({note})" for note in getattr(error, "__notes__", ()))]
    text = " ".join(part for part in parts if part)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text_of(error: BaseException) -> str:
    # A user's exception may have a `__str__` that raises; that must not hide the failure itself.
    try:
        return str(error)
    except Exception:
        return "(its text can't be read)"


def _encodable(text: str) -> str:
    """The text without lone surrogates, which UTF-8, and so the journal, can't hold."""
    return text.encode("utf-8", "backslashreplace").decode()
