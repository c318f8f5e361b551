"""Suspects: runs that may have crashed their process are executed alone, one after the other.

What makes a run a suspect, and which crashes count against it, is in `sessions/trials.py`. Here is when a suspect
gets its turn. When a turn begins, the supervisor resumes nothing else, and asks the runs in progress to leave before
their next node. As soon as none is left, the suspect executes. Its turn ends with its first commit or when it stops,
and then the others continue. Turns take half of the time at most: the others get as long as the last turn took.

The suspect that crashed alone least often comes first: so a process that is killed again and again, for other
reasons, doesn't get the same innocent run quarantined.
"""

from __future__ import annotations

from collections.abc import Iterable

from limpet.journal.store import RunHead


class Suspects:
    """The suspects that wait in this process, and the one whose turn it is. The resumer's lock guards it.

    It reads no clock: `now` is given. `pause` is how many seconds the others get at least between two turns.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._waiting: dict[str, tuple[int, RunHead]] = {}
        """How often each of them crashed alone, and its head."""
        self._turn_began = 0.0
        self._next_turn = 0.0
        self.chosen: RunHead | None = None
        """The suspect whose turn it is: it executes, or waits until nothing else does."""

    @property
    def waiting(self) -> list[str]:
        """The ids of the suspects that wait for their turn, or have it."""
        return list(self._waiting)

    def add(self, head: RunHead, alone: int, now: float, chance: float) -> None:
        """A suspect was found that crashed alone so often.

        `chance`, a random number below 1, keeps several workers from making room for it all at once.
        """
        if not self._waiting:
            self._next_turn = max(self._next_turn, now + self._pause * chance)
        self._waiting[head.run_id] = (alone, head)

    def others(self, ready: Iterable[RunHead]) -> list[RunHead]:
        """These runs without the suspects that wait."""
        return [head for head in ready if head.run_id not in self._waiting]

    def choose(self, now: float, others_wait: bool) -> RunHead | None:
        """The suspect whose turn it is, if it is time for one, or if nothing else wants to execute."""
        is_time = now >= self._next_turn or not others_wait
        if self.chosen is None and self._waiting and is_time:
            _, self.chosen = min(self._waiting.values(), key=lambda each: each[0])
            self._turn_began = now
        return self.chosen

    def has_turn(self, run_id: str) -> bool:
        """Whether it is the turn of this run."""
        return self.chosen is not None and self.chosen.run_id == run_id

    def admits(self, run_id: str) -> bool:
        """Whether a run may begin to execute now."""
        return self.chosen is None or self.chosen.run_id == run_id

    def end_turn(self, run_id: str, now: float) -> None:
        """The turn of a run is over, if it had it: the run got further, has stopped, or another process has it."""
        if self.has_turn(run_id):
            self.chosen = None
            self._waiting.pop(run_id, None)
            self._next_turn = now + max(now - self._turn_began, self._pause)
