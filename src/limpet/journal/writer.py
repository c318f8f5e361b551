"""`JournalWriter`: turns what happens in a run into records, and pending records into commits.

It does no I/O. Records stay pending until the engine asks for a commit, and leave when the commit is acknowledged. So
a refused commit can be made again, with more records in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.open_parallel_section import Key
from limpet.journal.progress import Progress
from limpet.journal.record_shapes import read_summary
from limpet.journal.records import (
    bundle,
    memo_record,
    move_record,
    nested_record,
    snapshot_record,
    step_record,
)
from limpet.journal.snapshots import RECORD_WEIGHT, SnapshotPolicy
from limpet.journal.store import COMPLETED, ENDED, Commit, Labels, RunHead


class JournalWriter:
    """The writing side of one run's journal, for the holder of `fence`, after record number `sequence`.

    `weight` is that of the records since the last snapshot, as `read_progress_and_weight` returned it, and `size`
    that snapshot's own. `on_large` is called once, with the size, if the state becomes large.
    """

    __slots__ = (
        "_closed",
        "_envelope",
        "_pending",
        "_pending_snapshot",
        "_snapshot_sequence",
        "_snapshots",
        "fence",
        "newest_snapshot",
        "on_large",
        "recorded_posts",
        "run_id",
        "sequence",
        "takes",
    )

    def __init__(self, run_id: str, fence: int, sequence: int, weight: int = 0, size: int = 0) -> None:
        self.run_id = run_id
        self.fence = fence
        self.sequence = sequence
        self.newest_snapshot = 1
        """The number of the newest snapshot, as far as this writer knows."""
        self.takes = 0
        """The number of the newest post that the pending records take in; 0 for none."""
        self.recorded_posts = 0
        """The number of the newest post of which a record was made, although a commit with it may be refused."""
        self._envelope = Envelope(run_id)
        self.on_large: Callable[[int], None] | None = None
        self._snapshots = SnapshotPolicy(weight, size)
        self._pending: list[bytes] = []
        """Records that aren't part of a commit yet."""
        self._closed: list[bytes] = []
        """Records in their envelopes, as a commit contained them. A refused commit leaves them here, unchanged."""
        self._pending_snapshot = 0
        """How many of the pending records are before and including the snapshot; 0 if none is a snapshot."""
        self._snapshot_sequence = 0
        """The sequence number of the snapshot among the closed records; 0 if none is a snapshot."""

    @property
    def pending(self) -> int:
        """How many records wait to be acknowledged."""
        return len(self._pending) + len(self._closed)

    def add_step(self, progress: Progress, delta: bytes, following: str | None) -> None:
        """A node completed; `progress` is already past it."""
        record = step_record(progress, delta, following)
        # What `add_record` and `snapshot_if_due` do, without two more calls at each step.
        self._pending.append(record)
        snapshots = self._snapshots
        snapshots.weight += len(record) + RECORD_WEIGHT
        if snapshots.weight >= snapshots.next_check:
            self.snapshot_if_due(progress)

    def add_move(self, progress: Progress, changes: Mapping[str, Any], at: float) -> None:
        """Something else happened: add its record and apply it to `progress`."""
        record = move_record(progress, changes, at)
        progress.move(changes)
        self.add_record(record)

    def add_memo(self, root: Progress, path: Sequence[Key], key: str, value: Any, at: float) -> None:
        """A node wants a result kept: add its record and apply it. Raises `UnstorableValue`."""
        progress = root.branch_at(path)
        record = memo_record(progress, key, value, at)
        progress.memos[key] = value
        self.add_record_at(root, path, at, record)

    def add_record(self, record: bytes) -> None:
        """Add an encoded record of the run."""
        self._pending.append(record)
        self._snapshots.weight += len(record) + RECORD_WEIGHT

    def add_record_at(self, root: Progress, path: Sequence[Key], began: float, record: bytes) -> None:
        """Add an encoded record of the branch at `path`, or of the run if `path` is empty."""
        if path:
            record = nested_record(root, path, began, record)
        self.add_record(record)

    def add_snapshot(self, progress: Progress) -> None:
        """Add a snapshot of `progress`: no record before it is needed any longer."""
        self._add_snapshot(snapshot_record(progress))

    def snapshot_if_due(self, progress: Progress) -> None:
        """Add a snapshot if it is worth its bytes. No node may be changing the state meanwhile."""
        if self._snapshots.weight < self._snapshots.next_check:
            return
        snapshot = snapshot_record(progress)
        if self._snapshots.has_become_large(snapshot) and self.on_large is not None:
            self.on_large(len(snapshot))
        if self._snapshots.worthwhile(snapshot):
            self._add_snapshot(snapshot)

    def commit(
        self,
        status: str | None = None,
        summary: Summary | None = None,
        purge: bool = False,
        due: float | None = None,
        ignores_posts: bool = False,
        takes: int = 0,
    ) -> Commit:
        """All pending records as a commit. They stay pending until they are acknowledged.

        What happened since the last commit becomes one record in the store, or two where a snapshot is among it: a
        restore reads from the snapshot on, so the snapshot begins the second. Records of a commit that was refused
        come first and are not encoded again: their checksums fit their numbers already. `takes` is for a commit that
        takes in more posts than the records say, if it is accepted.
        """
        closed = self._closed
        pending = self._pending
        if len(pending) == 1:  # nearly always
            closed.append(self._envelope.close(self.sequence + len(closed) + 1, pending[0]))
        elif pending:
            before_snapshot = max(self._pending_snapshot - 1, 0)
            for part in (pending[:before_snapshot], pending[before_snapshot:]):
                if part:
                    closed.append(self._envelope.close(self.sequence + len(closed) + 1, bundle(part)))
        pending.clear()
        if self._pending_snapshot:
            self._pending_snapshot = 0
            self._snapshot_sequence = self.sequence + len(closed)
            self.newest_snapshot = self._snapshot_sequence
        note = labels = None
        if summary is not None:
            note = summary.note(self.sequence + len(closed))
            labels = summary.labels
        return Commit(
            self.run_id,
            self.fence,
            self.sequence,
            closed.copy(),
            self._snapshot_sequence,
            status,
            note,
            purge,
            due,
            takes or self.takes,
            ignores_posts,
            labels,
        )

    def acknowledge(self, count: int) -> None:
        """The first `count` records of the last commit are durable: forget them."""
        self.sequence += count
        self.takes = 0
        del self._closed[:count]
        if self._snapshot_sequence <= self.sequence:
            self._snapshot_sequence = 0

    def _add_snapshot(self, snapshot: bytes) -> None:
        self._pending.append(snapshot)
        self._pending_snapshot = len(self._pending)
        self._snapshots.start_over()


TRACEBACK_KEPT = 4000
"""How many characters of a traceback, from its end, are stored with a failed run."""


class Summary(NamedTuple):
    """What a run's head says about the run, so that listing runs reads no journal; and what of it can be searched."""

    described: dict[str, Any]
    labels: Labels

    def note(self, sequence: int) -> bytes:
        """The bytes for the head. They say which record is the newest that they take into account."""
        return encode({**self.described, "sequence": sequence})


def summary(progress: Progress) -> Summary:
    """The summary of a run as it is now."""
    described: dict[str, Any] = {
        "step": progress.step,
        "node": progress.current_node(),
        "phase": progress.phase,
        "reason": progress.reason,
        "error": progress.error,
        "questions": [question.to_data() for question in progress.open_questions()],
    }
    if progress.deadline is not None:
        described["deadline"] = progress.deadline
    waits_for = ""
    if progress.status not in ENDED and (waits := progress.all_waits()):
        described["waits"] = [wait.to_data() for wait in waits]
        waits_for = waits[0].kind
    if progress.has_begun:
        described["begun"] = True
    if progress.mailbox:
        described["mailbox"] = {box: len(letters) for box, letters in progress.mailbox.items()}
    if progress.child_of is not None:
        described["child_of"] = progress.child_of
    settings = progress.meta.get("settings")
    if progress.status == COMPLETED and isinstance(settings, dict) and settings.get("preserve") is False:
        described["prunable"] = True
    node = "" if progress.done else progress.current_node()
    return Summary(
        described, Labels(node, (progress.error or {}).get("type", ""), waits_for, progress.fingerprint)
    )


def has_begun(head: RunHead) -> bool:
    """Whether a process has executed a run, so that it doesn't count for rates any more.

    The fence alone doesn't tell: a run is also claimed to be queued, cancelled or retried. And a run that was forked
    at a later step is a new one.
    """
    if head.holder is not None:
        return True
    if head.fence <= 1:
        return False
    begun = None
    with suppress(ValueError):  # a note that can't be read: then it counts
        begun = read_summary(head.note).get("begun")
    if begun is None:
        # A process that crashed while it executed the first node has left nothing behind.
        return head.crashes > 0
    return bool(begun)


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
