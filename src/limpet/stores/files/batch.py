"""Commits to several runs in files, written together: all of them land, or none does."""

from __future__ import annotations

from collections.abc import Sequence

from limpet.journal.store import RunHead
from limpet.stores.atomic_files import explain
from limpet.stores.files.locks import Stripe
from limpet.stores.files.run_files import RunFiles


class Batch:
    """Commits of one call: all written, then all flushed; if either fails, none of them was.

    A purge replaces a head, which can't be taken back. So purges come last, and one that fails does so
    alone: `failed` has them by their numbers.
    """

    def __init__(self) -> None:
        self.failed: dict[int, Exception] = {}
        self._written: dict[str, tuple[Stripe, RunFiles, bytes, int, RunHead | None]] = {}
        self._purged: dict[str, tuple[int, Stripe, RunFiles, RunHead]] = {}

    def has(self, run_id: str) -> bool:
        """Whether a commit of this run is on its way."""
        return run_id in self._written or run_id in self._purged

    def purge(self, number: int, stripe: Stripe, run: RunFiles, head: RunHead) -> None:
        """Drop a run's journal and give it a new head, when all else has landed."""
        self._purged[run.head.run_id] = number, stripe, run, head

    def write(self, stripe: Stripe, run: RunFiles, records: Sequence[bytes], head: RunHead | None) -> None:
        """Write a commit's frame. Raises `ValueError` if it is too large, `OSError`."""
        if not records and head is None:
            return
        stripe.changed()
        try:
            self._written[run.head.run_id] = stripe, run, b"", 0, None
            made = run.write([*records], head)
        except ValueError:
            del self._written[run.head.run_id]
            raise
        except BaseException:
            self._undo()
            raise
        self._written[run.head.run_id] = stripe, run, made, len(records), head

    def land(self) -> None:
        """Flush what was written, and count it in."""
        try:
            for _, run, *_ in self._written.values():
                run.sync()
        except BaseException:
            self._undo()
            raise
        for _, run, made, count, head in self._written.values():
            run.accept(made, count, head)
        self._written.clear()
        for number, stripe, run, head in self._purged.values():
            stripe.changed()
            try:
                run.purge(head)
            except OSError as error:
                self.failed[number] = explain(error, run.head_path)
        self._purged.clear()

    def _undo(self) -> None:
        for _, run, *_ in self._written.values():
            run.undo()
        self._written.clear()
        self._purged.clear()
