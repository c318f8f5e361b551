"""How long runs are kept once they have stopped: `Retention` is the policy, `Cleaner` applies one in the background.

`find_expired` and `delete_expired` are the one place where a policy is applied: `graph.cleanup()`, the background
clean-up of `compile(retention=…)`, `Cleaner` and the command line call them. `expire_by_age` is the short form for an
age alone; for all graphs, a store does it in one call. `clean_checkpoints` is the same for checkpoint files.

A fork has its own copy of everything, so a policy may delete the run that it was made from.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeGuard

from limpet.defaults import CLEANUP_INTERVAL, RETENTION_HOURS
from limpet.durations import UNITS, seconds_in_text
from limpet.errors import Conflict, RunNotFound, UsageError
from limpet.journal.run_filter import UNHELD, RunFilter, list_in_pages
from limpet.journal.store import ENDED, PAUSED, STATUSES, RunHead, Store
from limpet.stores.heads import is_held
from limpet.stores.opening import open_store
from limpet.threads.workers import Monitor, start_thread

if TYPE_CHECKING:
    from types import TracebackType

Duration = float | timedelta | str
"""Seconds, a timedelta, or a text such as "90s", "30m", "12h", "7d", "2w"."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long runs stay that no process advances: for each status, the time since the run last changed.

    None, the default, keeps runs of that status without limit. So paused and running runs are deleted
    only if you give a time for these. `newest` is how many ended runs of each graph are kept at most, whatever
    their age. A run that a process holds always stays. Times are seconds, timedeltas, or texts such as "7d",
    and are seconds when you read them. Raises `UsageError` for values that make no sense, and for a policy that
    would never delete a run.
    """

    completed: Duration | None = None
    failed: Duration | None = None
    cancelled: Duration | None = None
    paused: Duration | None = None
    running: Duration | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        for status in STATUSES:
            object.__setattr__(self, status, _seconds(status, getattr(self, status)))
        if self.newest is not None and (type(self.newest) is not int or self.newest < 0):
            raise UsageError(
                f"Retention: newest must be a whole number of at least 0, or None, not {self.newest!r}"
            )
        if not self.statuses:
            raise UsageError(
                "Retention: give a time for a status, or newest; else it would never delete a run"
            )

    @property
    def statuses(self) -> tuple[str, ...]:
        """The statuses of runs that the policy may delete."""
        counted = ENDED if self.newest is not None else ()
        return tuple(status for status in STATUSES if status in counted or self.age(status) is not None)

    def age(self, status: str) -> float | None:
        """For how many seconds a run of this status is kept; None means without limit."""
        found: float | None = getattr(self, status)
        return found


class Expired(NamedTuple):
    """A run that has expired by a policy, and why. `updated` is when it last changed, in seconds since the epoch.

    `file` is the path, if it is a checkpoint file that has expired, and not a run in a store.
    """

    run_id: str
    graph: str
    status: str
    updated: float
    reason: str
    file: str = ""


def find_expired(
    store: Store, policy: Retention, graph: str | None = None, clock: Callable[[], float] = time
) -> list[Expired]:
    """The runs that have expired by a policy, of this graph or of all; nothing is changed.

    Ages are by `clock`, which is this machine's unless you give another.
    """
    found: list[Expired] = []
    ended: Counter[str] = Counter()
    now = clock()
    for head in list_in_pages(_without_encryption(store), RunFilter(statuses=policy.statuses, graph=graph)):
        if head.status in ENDED:
            ended[head.graph] += 1
        if is_held(head, now):
            continue
        reason = _reason(head, policy, now, ended[head.graph])
        if reason:
            found.append(_expired(head, reason))
    return found


def delete_expired(store: Store, which: Iterable[Expired]) -> list[Expired]:
    """Delete these runs, except those that have changed since they were found; returns the deleted ones."""
    inner = _without_encryption(store)
    deleted = []
    for each in which:
        try:
            head = inner.head(each.run_id)
            if (head.status, head.updated) == (each.status, each.updated):
                inner.delete(each.run_id)
                deleted.append(each)
        except (RunNotFound, Conflict):
            pass  # another process has deleted the run, or resumes it
    return deleted


def expired_files(checkpointer: Any, policy: Retention, graph: str) -> list[Expired]:
    """The checkpoint files of a graph that have expired by a policy; none if its checkpointer doesn't write files.

    A file counts as a run that last changed when the file was written. Nothing is changed.
    """
    from limpet.stores.user_stores.checkpoint_files import CheckpointFiles

    if not isinstance(checkpointer, CheckpointFiles) or checkpointer.directory is None:
        return []
    found: list[Expired] = []
    ended = 0
    now = time()
    for each in checkpointer.written.newest_first():
        if each.graph != graph or each.status not in policy.statuses:
            continue
        ended += each.status in ENDED
        written = each.written[0] / 1000
        reason = _reason_by(each.status, graph, policy, now - written, ended)
        if reason:
            found.append(Expired(each.run_id, graph, each.status, written, reason, str(each.path)))
    return found


def delete_files(which: Iterable[Expired]) -> list[Expired]:
    """Delete these files; returns those that were deleted. Raises `StoreUnavailable`."""
    from pathlib import Path

    from limpet.stores.atomic_files import explain

    deleted = []
    for each in which:
        path = Path(each.file)
        try:
            path.unlink()
        except FileNotFoundError:
            continue  # another process has deleted it
        except OSError as error:
            raise explain(error, path) from error
        deleted.append(each)
    return deleted


def expire_by_age(
    store: Store,
    max_age_hours: float,
    statuses: Iterable[str],
    graph: str | None = None,
    checkpointer: Any = None,
) -> int:
    """Delete the runs of these statuses that haven't changed for this many hours; returns how many.

    They are those of this graph, or of all. If the graph has a `checkpointer` that writes files, those files expire
    like runs, and are counted. Raises `UsageError` for a wrong age or status.
    """
    wanted = (statuses,) if isinstance(statuses, str) else tuple(statuses)
    unknown = [status for status in wanted if status not in STATUSES]
    if unknown or not _is_number(max_age_hours) or max_age_hours < 0:
        raise UsageError(f"cleanup_expired() takes hours from 0 and statuses of {', '.join(STATUSES)}")
    seconds = max_age_hours * 3600
    if graph is None:
        return store.expire(seconds, wanted)
    if not wanted:
        return 0
    ages: dict[str, Any] = dict.fromkeys(wanted, seconds)
    policy = Retention(**ages)
    runs = delete_expired(store, find_expired(store, policy, graph))
    return len(runs) + len(delete_files(expired_files(checkpointer, policy, graph)))


def clean_checkpoints(
    directory: str | os.PathLike[str],
    *,
    older_than: float | timedelta | str | None = None,
    newest: int | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Delete checkpoint files of a directory that are too old, or aren't among the newest; returns their paths.

    A file's age is by the time in the name that a run gave it; files with other names stay. `older_than` is in
    seconds, a timedelta, or a text such as "7d". With `dry_run`, nothing is deleted. Raises `UsageError`, and
    `StoreUnavailable` where a file can't be deleted.
    """
    from limpet.stores.atomic_files import explain
    from limpet.stores.user_stores.checkpoint_files import checkpoint_directory, written_at

    max_age = Retention(paused=older_than, newest=newest).age(PAUSED)
    now = time() * 1000
    dated = [(written_at(path), path) for path in checkpoint_directory(directory).glob("*.pkl")]
    by_runs = [(written, path) for written, path in dated if written is not None]
    deleted = []
    for number, (written, path) in enumerate(sorted(by_runs, reverse=True)):
        too_old = max_age is not None and now - written[0] >= max_age * 1000
        too_many = newest is not None and number >= newest
        if not (too_old or too_many):
            continue
        try:
            if not dry_run:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise explain(error, path) from error
        deleted.append(str(path))
    return deleted


class Cleaner:
    """Deletes runs that ended long ago: at once, and then `every` this many seconds until it is stopped.

    A run is deleted if it has one of the `statuses`, no process holds it, and it has not changed for
    `max_age_hours` (None: its age doesn't matter) or isn't among the `keep_runs` newest (None: their number
    doesn't matter). Paused and running runs stay, unless you name these statuses as well. Instead of these,
    `retention` is a policy by status and graph, for the runs of `graph` or of all. `store` is whatever
    `open_store` takes.

    Use it with `with`, or `start` and `stop` it. It works in a daemon thread, which ends with the process. Errors are
    logged in `limpet.upkeep`, and the next round tries again. Raises `UsageError` for a policy that makes no sense.
    """

    def __init__(
        self,
        store: Any,
        *,
        every: float = CLEANUP_INTERVAL,
        max_age_hours: float | None = RETENTION_HOURS,
        statuses: Iterable[str] = ENDED,
        keep_runs: int | None = None,
        retention: Retention | None = None,
        graph: str | None = None,
    ) -> None:
        self.retention = retention
        self.graph = graph
        self.statuses = (statuses,) if isinstance(statuses, str) else tuple(statuses)
        self.every = every
        self.max_age_hours = max_age_hours
        self.keep_runs = keep_runs
        mistakes = list(self._mistakes())
        if mistakes:
            raise UsageError(f"a Cleaner can't work like this: {'; '.join(mistakes)}")
        self.store = open_store(store)
        self._changed = Monitor()
        self._newest = 0
        """How many threads were started. Only the newest one works."""
        self._is_started = False
        self._worked_by: int | None = None

    @property
    def running(self) -> bool:
        """Whether it works in the background now."""
        return self._is_started

    def clean(self) -> int:
        """Delete expired runs now, in this thread; returns how many. Raises what the store raises."""
        if self.retention is not None:
            return len(delete_expired(self.store, find_expired(self.store, self.retention, self.graph)))
        count = 0
        if self.max_age_hours is not None:
            count += expire_by_age(self.store, self.max_age_hours, self.statuses)
        if self.keep_runs is not None:
            count += len(delete_expired(self.store, self._beyond(self.keep_runs)))
        return count

    def start(self) -> Self:
        """Start to work in the background. If it is already working, nothing changes."""
        with self._changed.lock:
            if not self._is_started:
                self._newest += 1
                start_thread(self._work, "limpet-cleaner", self._newest)
                self._is_started = True
        return self

    def stop(self, timeout: float | None = 10.0) -> None:
        """Stop the work in the background. Waits up to `timeout` seconds for a call to the store to end."""
        self._is_started = False
        self._newest += 1
        self._changed.notify()
        if self._worked_by != threading.get_ident():
            self._changed.wait_for(lambda: self._worked_by is None, timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _work(self, number: int) -> None:
        self._worked_by = threading.get_ident()
        try:
            self._clean_until_stopped(number)
        finally:
            if self._worked_by == threading.get_ident():
                self._worked_by = None
            self._changed.notify()

    def _clean_until_stopped(self, number: int) -> None:
        import logging

        log = logging.getLogger("limpet.upkeep")
        while number == self._newest:
            try:
                count = self.clean()
                if count:
                    log.info("deleted %d expired runs of %r", count, self.store)
            except Exception:
                log.warning("couldn't clean up %r; will try again", self.store, exc_info=True)
            self._changed.wait_for(lambda: number != self._newest, self.every)

    def _beyond(self, newest: int) -> list[Expired]:
        """The runs without a holder that aren't among the newest ones, of all graphs together."""
        which = RunFilter(statuses=self.statuses, lease_states=UNHELD)
        reason = f"not among the {newest} newest runs"
        found = list_in_pages(_without_encryption(self.store), which)
        return [_expired(head, reason) for head in islice(found, newest, None)]

    def _mistakes(self) -> Iterable[str]:
        unknown = [status for status in self.statuses if status not in STATUSES]
        if unknown or not self.statuses:
            yield f"statuses must be some of {', '.join(STATUSES)}, not {list(self.statuses)!r}"
        if not _is_number(self.every) or not 0 < self.every <= threading.TIMEOUT_MAX:
            yield f"every must be a number of seconds above 0, not {self.every!r}"
        if self.max_age_hours is not None and not (
            _is_number(self.max_age_hours) and self.max_age_hours >= 0
        ):
            yield f"max_age_hours must be a number of at least 0, or None, not {self.max_age_hours!r}"
        if self.keep_runs is not None and (type(self.keep_runs) is not int or self.keep_runs < 0):
            yield f"keep_runs must be a whole number of at least 0, or None, not {self.keep_runs!r}"
        if self.retention is not None:
            if (self.max_age_hours, self.statuses, self.keep_runs) != (RETENTION_HOURS, ENDED, None):
                yield "give retention, or max_age_hours, statuses and keep_runs"
            if not isinstance(self.retention, Retention):
                yield f"retention must be a Retention, such as Retention(completed='7d'), not {self.retention!r}"
        elif self.graph is not None:
            yield "graph goes with retention"
        if self.max_age_hours is None and self.keep_runs is None:
            yield "give max_age_hours or keep_runs, else it would never delete a run"


def _without_encryption(store: Store) -> Store:
    """The store inside of an encrypted one: finding and deleting runs needs no key, so it works without one."""
    inner: Store = getattr(store, "inner", store)
    return inner


def _expired(head: RunHead, reason: str) -> Expired:
    return Expired(head.run_id, head.graph, head.status, head.updated, reason)


def _reason(head: RunHead, policy: Retention, now: float, number: int) -> str:
    """Why a run has expired; empty if it hasn't. `number` counts the ended runs of its graph, from the newest."""
    return _reason_by(head.status, head.graph, policy, now - head.updated, number)


def _reason_by(status: str, graph: str, policy: Retention, age: float, number: int) -> str:
    kept = policy.age(status)
    if kept is not None and age >= kept:
        return f"{status}, and unchanged for {_in_units(age)}; kept for {_in_units(kept)}"
    if policy.newest is not None and status in ENDED and number > policy.newest:
        return f"not among the {policy.newest} newest ended runs of {graph!r}"
    return ""


def _in_units(seconds: float) -> str:
    """A time in the largest unit that fits, such as "1.5 h"."""
    unit = next((unit for unit in "dhm" if seconds >= UNITS[unit]), "s")
    return f"{seconds / UNITS[unit]:.1f}".removesuffix(".0") + f" {unit}"


def _seconds(status: str, given: object) -> float | None:
    if given is None:
        return None
    seconds: object = given
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, str):
        seconds = seconds_in_text(given)
    if _is_number(seconds) and seconds >= 0:
        return float(seconds)
    raise UsageError(
        f"Retention: {status} must be a number of seconds (at least 0), a timedelta, a text such as '12h' or '7d', "
        f"or None, not {given!r}"
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
