"""The runs of a directory as this process knows them: found once, remembered, and looked at again when need be.

All of it happens under the lock of the run; `Stripe` has what is remembered under it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.errors import DamagedRecord, LimpetError, RunNotFound
from limpet.journal.store import RunHead
from limpet.stores.files.locks import Locks, Stripe
from limpet.stores.files.run_files import HEAD, JOURNAL, RunFiles, find, name_of, parsed

if TYPE_CHECKING:
    from logging import Logger

MOST_OPEN = 8
"""Journal files that are kept open under one lock."""
MOST_REMEMBERED = 2000
"""Runs that are remembered under one lock."""


class RunCache:
    """The runs in `directory`, under `locks`. `flush` says whether what is written is to reach the disk."""

    def __init__(self, directory: Path, locks: Locks, flush: bool) -> None:
        self.directory, self.flush = directory, flush
        self._locks = locks

    def take_in(self, stripe: Stripe) -> None:
        """If others have written under this lock, what is remembered is to be looked at again."""
        if not stripe.is_unchanged():
            stripe.all_known = False
            for run in stripe.runs.values():
                run.fresh = False

    def find(self, stripe: Stripe, run_id: str) -> RunFiles:
        """The run as it is now. Raises `RunNotFound`, `DamagedRecord`."""
        run: RunFiles | None = stripe.runs.get(run_id)
        if run is None:
            run = find(self.directory, self.flush, run_id)
            self.remember(stripe, run)
        elif not run.fresh or not run.is_in_place():
            try:
                run.refresh()
            except LimpetError:
                self._forget(stripe, run)
                raise
        stripe.opened.pop(run_id, None)
        stripe.opened[run_id] = run
        if len(stripe.opened) > MOST_OPEN:
            stripe.opened.pop(next(iter(stripe.opened))).close()
        return run

    def remember(self, stripe: Stripe, run: RunFiles) -> None:
        """Know a run that was found, or made, from now on."""
        if len(stripe.runs) >= MOST_REMEMBERED:
            stripe.forget()
        stripe.runs[run.head.run_id] = run

    def replace(self, stripe: Stripe, run: RunFiles, head: RunHead) -> None:
        """Give a run another head, and have others see it."""
        stripe.changed()
        run.replace_head(head)

    def remove(self, stripe: Stripe, run: RunFiles) -> None:
        """Remove a run, and have others see that."""
        stripe.changed()
        self._forget(stripe, run)
        run.remove()

    def remove_files(self, stripe: Stripe, run_id: str) -> None:
        """Remove a run that can't be read."""
        stripe.changed()
        name = name_of(run_id)
        (self.directory / f"{name}{HEAD}").unlink()
        for path in self.directory.glob(f"{name}.*{JOURNAL}"):
            path.unlink()

    def heads_under(self, stripe: Stripe, wanted: Callable[[RunHead], bool]) -> list[RunHead]:
        """The heads of the runs under a lock that are wanted. Of what can't be read at all, a warning says that it is
        left out.
        """
        if stripe.all_known:
            sought = [run_id for run_id, run in stripe.runs.items() if wanted(run.head)]
            with suppress(RunNotFound, DamagedRecord):  # somebody was at the files: look at all of them again
                return [self.find(stripe, run_id).head for run_id in sought]
        heads, known = [], {name_of(run_id): run_id for run_id in stripe.runs}
        for entry in os.scandir(self.directory):
            name = entry.name.removesuffix(HEAD)
            if name == entry.name or self._locks.stripe_of(name) is not stripe:
                continue
            head = self._head_in(stripe, Path(entry.path), known.get(name))
            if head is not None:
                heads.append(head)
        stripe.all_known = len(heads) == len(stripe.runs)
        return [*filter(wanted, heads)]

    def _head_in(self, stripe: Stripe, path: Path, run_id: str | None) -> RunHead | None:
        """The head of the run in a head file. Of a damaged run, what the file says, if that can be read: a warning
        says that it may be out of date, or that the run is left out.
        """
        stored = None
        try:
            stored = parsed(None, path.read_bytes())[0]
            run = self.find(stripe, run_id or stored.run_id)
            run.close()
            return run.head
        except (RunNotFound, FileNotFoundError):
            return None
        except DamagedRecord as damage:
            what = "left out of the list" if stored is None else "listed as its head file has it"
            _log().warning("%s is %s: %s", path, what, damage)
            return stored

    def _forget(self, stripe: Stripe, run: RunFiles) -> None:
        run.close()
        stripe.runs.pop(run.head.run_id, None)
        stripe.opened.pop(run.head.run_id, None)


def _log() -> Logger:
    from logging import getLogger

    return getLogger("limpet.stores")
