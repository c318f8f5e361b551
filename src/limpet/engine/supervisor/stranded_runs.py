"""Runs that are due, and that a supervisor can't execute. It can help some of them all the same.

A run whose deadline has passed fails, whichever its queue is, whether its graph is known, and whether there is room
for it: that needs no code of it.

A child run whose graph isn't known may have a parent whose graph is. Then the node of the parent that waits for the
child is called again. It names the graph of the child again, in `ctx.start` or `ctx.join`, and from then on the graph
is known here, or to the supervisor that resumes the parent. So the code comes
from that node, never from stored data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from limpet.engine.leases.ending import end_held_run
from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.run_lifecycle import FAIL, RESUME, next_status
from limpet.engine.loop.stop_errors import changes_at_deadline
from limpet.engine.operations.run_info import list_all
from limpet.engine.supervisor.lanes import ServedLanes
from limpet.engine.supervisor.log import log
from limpet.engine.supervisor.run_picker import RunPicker
from limpet.engine.supervisor.skipped_runs import SkippedRuns
from limpet.errors import AlreadyCompleted, Conflict, LimpetError, RunNotFound, StoreUnavailable
from limpet.journal.inbox import call_again_post
from limpet.journal.reader import ViewedTail, read_progress
from limpet.journal.record_shapes import read_summary
from limpet.journal.run_filter import UNHELD, Cursor, RunFilter
from limpet.journal.store import ENDED, PAUSED, RUNNING, Lane, RunHead
from limpet.journal.waits import CHILD_RUN
from limpet.observe import events
from limpet.observe.hub import Emit

LOOK_INTERVAL = 10.0
"""Seconds between two looks for such runs."""
PAGE_SIZE = 500
"""How many runs one look lists; the next one continues from there."""
OVERDUE_GRACE = 5.0
"""Seconds that a run whose deadline has passed is left to supervisors that can resume it, and tell its observers."""
FIRST_REPEAT = 60.0
"""Seconds until a parent is asked for the same graph again. Each time takes twice as long as the one before."""
LONGEST_REPEAT = 3600.0
"""Seconds, at most, until a parent is asked again."""


class _Question(NamedTuple):
    """How a graph was asked for: by which child runs, and when the next may be."""

    children: frozenset[str]
    next_time: float
    interval: float


class _Waiting(NamedTuple):
    """A child run, and its parent, which waits for it."""

    child: RunHead
    parent: RunHead


class StrandedRuns:
    """Looks now and then for runs that are due, and that this supervisor can't execute.

    `emit_for` gives the observers of a graph, by its name.
    """

    def __init__(
        self,
        client: LeaseClient,
        served: ServedLanes,
        picker: RunPicker,
        skipped: SkippedRuns,
        emit_for: Callable[[str], Emit | None],
    ) -> None:
        self._client = client
        self._served = served
        self._picker = picker
        self._interval = min(client.ttl, LOOK_INTERVAL)
        self._skipped = skipped
        self._emit_for = emit_for
        self._graphs: frozenset[str] = frozenset()
        self._next_look = 0.0
        self._after: Cursor | None = None
        self._asked: dict[str, _Question] = {}
        self._logged: set[Lane] = set()
        """The lanes of which a run was logged."""

    def look_soon(self) -> None:
        """Look when next asked to, however short ago the last look was."""
        self._next_look = 0.0

    def look(self) -> None:
        """Look if it is time, or if a graph has become known."""
        if monotonic() < self._next_look and self._graphs.issuperset(self._served.graphs):
            return
        self._next_look = monotonic() + self._interval
        self.help(self._next_page())

    def help(self, heads: Sequence[RunHead]) -> None:
        """Do what helps these runs, which are due and which no living process executes."""
        self._graphs = frozenset(self._served.graphs)
        children: list[RunHead] = []
        for head in heads:
            if self._served.serves(head.lane) and self._picker.room_for(head.graph) > 0:
                continue  # it is resumed, and fails then if it is overdue
            if self._failed_as_overdue(head) or head.graph in self._graphs:
                continue
            if not self._served.serves_queue(head.queue):
                continue  # other workers are for it
            # Remembered only to be reported, and logged once for its lane: when its graph is known, it is resumed.
            reason = f"graph {head.graph!r} isn't known to this supervisor"
            self._skipped.skip(head.run_id, reason, 0.0, is_logged=head.lane not in self._logged)
            self._logged.add(head.lane)
            if _described(head).get("child_of") is not None:
                children.append(head)
        if children and self._client.store.abilities.takes_part:
            for graph, waiting in self._waiting_parents(children).items():
                self._ask_for(graph, waiting)

    def _next_page(self) -> list[RunHead]:
        """Some of the runs that are due and that no process holds: each look lists the next ones."""
        which = RunFilter(
            (RUNNING, PAUSED), is_due=True, lease_states=UNHELD, after=self._after, limit=PAGE_SIZE
        )
        found = list_all(self._client.store, which)
        self._after = None
        if len(found) == PAGE_SIZE:
            self._after = found[-1][0].cursor
        for head, problem in found:
            if problem is not None:  # its key is missing
                self._skipped.skip(head.run_id, str(problem))
        return [head for head, problem in found if problem is None]

    def _failed_as_overdue(self, head: RunHead) -> bool:
        """Fail a run whose deadline has passed. Returns whether it needs nothing else."""
        deadline = _described(head).get("deadline")
        if deadline is None or deadline + OVERDUE_GRACE > self._client.now():
            return False
        try:
            reason = fail_overdue(self._client, head)
        except (Conflict, RunNotFound):
            return True  # another process has it, or it was deleted
        except StoreUnavailable:
            raise
        except LimpetError as problem:
            self._skipped.skip(head.run_id, str(problem))
            return True
        if reason is not None:
            log().info("run %s of %s: %s", head.run_id, head.graph, reason)
            emit = self._emit_for(head.graph)
            if emit is not None:
                emit(events.RUN_FAIL, head.graph, {"run_id": head.run_id, "node": None, "error": reason})
        return True

    def _waiting_parents(self, children: Sequence[RunHead]) -> dict[str, list[_Waiting]]:
        """The runs of known graphs that wait for these child runs, by the graph of what they wait for.

        A parent whose graph isn't known either has to become known first, by the run that waits for it.
        """
        found: dict[str, list[_Waiting]] = {}
        seen = {child.run_id for child in children}
        while children:
            parents = self._client.store.heads([str(child.parent) for child in children])
            next_children = []
            for child, parent in zip(children, parents, strict=True):
                if parent is None or parent.status in ENDED or not _may_wait(parent, child):
                    continue
                if parent.graph in self._graphs:
                    found.setdefault(child.graph, []).append(_Waiting(child, parent))
                elif parent.parent is not None and parent.run_id not in seen:
                    seen.add(parent.run_id)
                    next_children.append(parent)
            children = next_children
        return found

    def _ask_for(self, graph: str, waiting: Sequence[_Waiting]) -> None:
        """Have one of these parents call the node again that can name this graph: another one each time."""
        now = monotonic()
        asked = self._asked.get(graph, _Question(frozenset(), 0.0, FIRST_REPEAT / 2))
        if now < asked.next_time:
            return
        untried = [each for each in waiting if each.child.run_id not in asked.children]
        child, parent = (untried or waiting)[0]
        post = call_again_post(parent.run_id, child.run_id, f"{child.fence}.{parent.fence}")
        with suppress(RunNotFound, AlreadyCompleted):
            self._client.store.post(parent.run_id, post.key, post.body)
        log().info(
            "run %s is called again, to name graph %r of its child %s", parent.run_id, graph, child.run_id
        )
        tried = asked.children if untried else frozenset()
        interval = min(asked.interval * 2, LONGEST_REPEAT)
        self._asked[graph] = _Question(tried | {child.run_id}, now + interval, interval)


@releases_if_interrupted
def fail_overdue(client: LeaseClient, known: RunHead) -> str | None:
    """Claim a run and mark it as failed, as the process would that executes it. Returns why it failed.

    None if its deadline hasn't passed after all, or if it has ended. `known` is its head, as it was just read. Raises
    `Conflict` if another process has the run, and `RunNotFound`.
    """
    with client.holding(known.run_id, known=known) as held:
        tail = ViewedTail(*held.read())
        progress = read_progress(tail)
        if tail.head.status in ENDED or progress.deadline is None or progress.deadline > held.now():
            return None
        # A supervisor that has the graph resumes a paused run to let it fail.
        status = next_status(next_status(tail.head.status, RESUME), FAIL)
        end_held_run(
            client, held, tail.head, progress, lambda now: {"status": status, **changes_at_deadline(now)}
        )
        return str(progress.reason)


def _may_wait(parent: RunHead, child: RunHead) -> bool:
    """Whether a run waits for this child. While a process holds it, only that knows what it waits for."""
    waits = _described(parent).get("waits", ())
    return parent.holder is not None or (CHILD_RUN, child.run_id) in {
        (wait["kind"], wait["name"]) for wait in waits
    }


def _described(head: RunHead) -> dict[str, Any]:
    """What the head of a run says of it; nothing, if that can't be read."""
    try:
        return read_summary(head.note)
    except ValueError:
        return {}
