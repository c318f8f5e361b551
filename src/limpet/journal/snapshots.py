"""Snapshots: what one holds, and when it is worth its bytes.

A snapshot is written when reading the records since the last one would clearly cost more than reading the
state whole. A record weighs its bytes plus a fixed amount for being a record. So superseded values and many tiny
records soon lead to a snapshot, and an append-only history of large items hardly ever does. That keeps three things
in proportion: what is written (linear in what changed), the size of the journal, and the time that a resume takes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from typing import Any

from limpet.journal.progress import PATH_KEPT, Progress
from limpet.journal.waits import DONE, PostWait, Question

RECORD_WEIGHT = 256
"""What reading one more record costs, in bytes of a record that cost as much to read."""

SNAPSHOT_FACTOR = 8
"""How many times more the records must weigh than the snapshot that would replace them."""

MIN_WEIGHT = 64 * 1024
"""Below this weight of records a snapshot isn't considered: reading them takes no time to speak of."""

REPEATED = "repeated"
"""The field of a snapshot that says how many records, from this one on, are a repetition of earlier ones.

It isn't part of a progress. Deleting old checkpoints writes newer ones again; a follower gets their events once.
"""

LARGE_SNAPSHOT = 500_000
"""How many bytes the whole state of a run may have before that is worth a warning."""


class SnapshotPolicy:
    """Decides when a run's journal gets its next snapshot.

    `weight` is that of the records since the last one. From `next_check` on, a snapshot is measured, and taken if it
    is `worthwhile`. The writer adds to the one and compares it with the other itself: that happens for every record.

    To know what a snapshot would weigh, the state has to be encoded whole. So that isn't done at every step: after
    a snapshot was found too large, the next check is due when the records weigh enough to justify one of that size.
    All checks together thus cost a fraction (one in `SNAPSHOT_FACTOR`) of the writing.

    A check is also due where the state may have become large, so that this can be reported. `size` is that of the
    state when it was last measured.
    """

    __slots__ = ("next_check", "size", "warned", "weight")

    def __init__(self, weight: int = 0, size: int = 0) -> None:
        self.weight = weight
        self.size = size
        self.warned = False
        """Whether it was noticed that the state is large: once is enough."""
        self.next_check = self._limited(max(weight, MIN_WEIGHT))
        """From which weight on a snapshot is measured."""

    def worthwhile(self, snapshot: bytes) -> bool:
        """Whether the records weigh enough for this snapshot to replace them. If not, puts off the next check."""
        needed = SNAPSHOT_FACTOR * (len(snapshot) + RECORD_WEIGHT)
        if self.weight > needed:
            return True
        self.next_check = self._limited(needed + 1)
        return False

    def has_become_large(self, snapshot: bytes) -> bool:
        """Whether this snapshot is the first that is found to be large."""
        self.size = len(snapshot)
        if self.warned or self.size <= LARGE_SNAPSHOT:
            return False
        self.warned = True
        return True

    def start_over(self) -> None:
        """A snapshot was written."""
        self.weight = 0
        self.next_check = self._limited(MIN_WEIGHT)

    def _limited(self, check: int) -> int:
        """The weight of the next check, which is no later than where the state may have become large."""
        if self.warned:
            return check
        room = LARGE_SNAPSHOT - self.size
        if room >= 0:
            # Not at every step of a state that is just below the limit.
            room = max(room, MIN_WEIGHT)
        return min(check, self.weight + max(room, 0))


def snapshot_fields(progress: Progress) -> dict[str, Any]:
    """All of a progress but its state, as data. Empty fields are left out: they are empty from the start."""
    data = {name: value for name in _PLAIN_FIELDS if (value := getattr(progress, name))}
    if progress.path:
        data["path"] = list(progress.path)
    if progress.questions:
        data["questions"] = [each.to_data() for each in progress.questions]
    if progress.waits:
        data["waits"] = [each.to_data() for each in progress.waits]
    if progress.section is not None:
        branches = []
        for key, child in progress.section.children.items():
            if child.start is None:  # one that hasn't begun is described by the opening
                branches.append([key, *_branch_data(child)])
        data["section"] = [progress.section.to_data(), branches]
    return data


def _branch_data(branch: Progress) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """A branch as data: all but its state, the state or what differs in it, and the keys deleted from it."""
    data = {**snapshot_fields(branch), "step": branch.step}
    del data["run_id"]
    state = dict(branch.state) if branch.base is None else branch.changed_values()
    deleted = [key for key in branch.changed if key not in branch.state]
    return data, state, deleted


def restore_snapshot(progress: Progress, data: dict[str, Any], state: dict[str, Any]) -> None:
    """Make a progress what it was when the snapshot was taken."""
    blank = Progress("", "", "", "", {})
    for name in _PLAIN_FIELDS:
        setattr(progress, name, data.get(name, getattr(blank, name)))
    progress.state = state
    progress.path = deque(data.get("path", ()), PATH_KEPT)
    progress.questions = [Question(**each) for each in data.get("questions", ())]
    progress.waits = [PostWait(**each) for each in data.get("waits", ())]
    progress.section = None
    if "section" in data:
        opening, branches = data["section"]
        section = progress.open_section(opening)
        for key, inner, different, deleted in branches:
            _restore_branch(section.children[key], {**inner, "run_id": progress.run_id}, different, deleted)


def _restore_branch(
    branch: Progress, data: dict[str, Any], different: dict[str, Any], deleted: list[str]
) -> None:
    branch.start = None
    branch.changed = dict.fromkeys([*different, *deleted])
    state = different
    if branch.base is not None and data["node"] != DONE:  # a branch that is done has only what differs
        inherited = {name: value for name, value in branch.base.items() if name not in branch.changed}
        state = inherited | different
    restore_snapshot(branch, data, state)
    branch.step = data["step"]


# The fields that are stored as they are. The others are stored apart (state, path, questions, waits, section), belong
# to every record (step, crashes), or follow from the section that a branch is in (base, start, changed).
_PLAIN_FIELDS = [
    each.name
    for each in fields(Progress)
    if each.name
    not in ("state", "path", "questions", "waits", "step", "crashes", "section", "base", "start", "changed")
]
