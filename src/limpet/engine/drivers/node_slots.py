"""The slots of limits that the calls of one run have: asked for before a call, and released when it ends.

A call that gets no slot waits, as one that waits for a message does. The run is stored with its place in the limit's
line. When it is its turn, a post makes the run due, and the call asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet, ref

from limpet.engine.leases.held_lease import HeldLease, renewals
from limpet.engine.leases.inbox_checks import CHECK_INTERVAL
from limpet.engine.leases.limit_slots import LimitClient, SlotRequest, SlotWait, limits_of
from limpet.engine.loop.driver_commands import (
    AcquireSlots,
    AdmitRun,
    Cancelled,
    Command,
    Failed,
    GiveUpTurns,
    ReleaseSlots,
    Waiting,
)
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import LimpetError, StoreError, StoreUnavailable
from limpet.journal.waits import SLOT, PostWait, ticket_of

if TYPE_CHECKING:
    from limpet.engine.sessions.session import Session

LONGEST_LOOK_FOR_TURN: Final = 5.0
"""Seconds, at most, until a run that stands in line asks again, should it get no post that it is its turn."""

SHORTEST_LOOK: Final = 0.05
LONGEST_LOOK: Final = 0.5
"""Seconds between two looks at the lines of limits, for runs that wait in this process: at least, and at most."""


class NodeSlots:
    """The slots of one run that is open here. Its driver calls this, one call at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._limits: LimitClient = limits_of(session.compiled.need_client("limits"))
        self._held: dict[NodeContext | None, SlotRequest] = {}
        """What is held, by call; None stands for the run as a whole."""
        self._run_wait: SlotWait | None = None
        """Where the run as a whole stands in line."""
        # The rate of a limit counts a run once, when it is first executed.
        self._counts = not session.has_begun

    def carry_out(self, command: Command) -> Any:
        """Do what the loop asks, and return its answer."""
        if type(command) is AcquireSlots:
            return self.acquire(command.tasks)
        if type(command) is AdmitRun:
            return self.admit() if command.wanted else self._dismiss()
        if type(command) is GiveUpTurns:
            for limit in command.limits:
                self._limits.give_up_turns(limit, self._session.id, command.tickets)
            return None
        assert type(command) is ReleaseSlots
        self.release(command.tasks)
        return None

    def acquire(self, tasks: Sequence[NodeContext]) -> list[Any]:
        """For each call None, if it has slots of all its limits now, or its outcome: above all a `Waiting`."""
        session = self._session
        if session.stop.asked or session.held is None:
            return [Cancelled() for _ in tasks]
        requests: dict[NodeContext | None, SlotRequest] = {
            task: _request(session.held, task) for task in tasks
        }
        # Before they are asked for: if this is interrupted, it isn't known which of them were granted.
        self._held.update(requests)
        try:
            answers = self._ask(list(requests.values()))
        except LimpetError as problem:
            return [Failed(problem, again=isinstance(problem, StoreError)) for _ in tasks]
        if answers is None:
            return [Cancelled() for _ in tasks]
        outcomes: list[Any] = []
        for task, wait in zip(tasks, answers, strict=True):
            if wait is None:
                outcomes.append(None)
                continue
            del self._held[task]  # it keeps its place in line, also if the run leaves this process
            outcomes.append(Waiting(PostWait(SLOT, wait.limit, wait.ticket, task.scope.place(task.node))))
        if not session.is_supervised and any(outcomes):
            LineService.of(self._limits).serve(session.held)
        return outcomes

    def admit(self) -> float | Failed | None:
        """None if the run has slots of its own limits now, else for how many seconds it waits until it asks again.

        It stands in line, and gets a post when it is its turn. A `Failed`, if its limits can't be kept.
        """
        session = self._session
        if session.held is None:
            return None  # it is about to stop
        names = tuple(limit.name for limit in session.compiled.limits)
        request = SlotRequest(session.held.lease, "", names, counts=self._counts, wait=self._run_wait)
        self._held[None] = request
        try:
            self._limits.check_store()
            self._limits.declare(session.compiled.limits)
            (self._run_wait,) = self._limits.acquire([request], stands_in_line=True)
        except LimpetError as problem:
            if isinstance(problem, StoreUnavailable) and session.compiled.on_save_error == "wait":
                return CHECK_INTERVAL
            return Failed(problem, again=False)
        if self._run_wait is None:
            self._counts = False
            return None
        del self._held[None]
        LineService.of(self._limits).serve(session.held)
        return LONGEST_LOOK_FOR_TURN

    def _dismiss(self) -> None:
        self.release([None])

    def release(self, tasks: Sequence[NodeContext | None]) -> None:
        """These calls have ended. If the store can't be reached, their slots are released later."""
        requests = [self._held.pop(task) for task in tasks if task in self._held]
        if requests:
            self._limits.release(requests)
        if self._limits.has_debts and self._session.held is not None:
            LineService.of(self._limits).serve(self._session.held)

    def close(self) -> None:
        """The run is no longer driven here: release what is left."""
        self.release(list(self._held))
        if self._run_wait is not None:
            self._limits.leave_line(*self._run_wait)
            self._run_wait = None

    def _ask(self, requests: list[SlotRequest]) -> list[SlotWait | None] | None:
        """What each request got; None if the run is asked to stop while its store can't be reached."""
        session = self._session
        while True:
            try:
                self._limits.check_store()
                self._limits.declare(session.compiled.plan.limits)
                return self._limits.acquire(requests, stands_in_line=True)
            except StoreUnavailable:
                if session.compiled.on_save_error != "wait":
                    raise
                if session.stop.asked:
                    return None
            sleep(CHECK_INTERVAL)


def _request(held: HeldLease, task: NodeContext) -> SlotRequest:
    """What a call asks for. The same call asks with the same key, in whichever process it is made again."""
    call = f"{task.scope.prefix}{task.step}/{task.scope.place(task.node)}"
    waited = ticket_of(task.scope.progress)
    return SlotRequest(
        held.lease, call, task.plan_node.limits, wait=None if waited is None else SlotWait(*waited)
    )


class LineService:
    """Serves the lines of limits for as long as runs of this process wait in them, or owe slots: see `Renewals`.

    Supervisors do so for the runs that they resume. But a run that a caller executes may have no supervisor at all.
    """

    def __init__(self, limits: LimitClient) -> None:
        # Weakly, as `_services` has this service for as long as there are these limits.
        self._limits = ref(limits)
        self._waiting: WeakSet[HeldLease] = WeakSet()
        self._waiting_lock = Lock()
        self._asked = 0
        """How often a run was to be served."""
        self._looking = Lock()
        self.interval = SHORTEST_LOOK
        """Seconds until the next look."""

    @staticmethod
    def of(limits: LimitClient) -> LineService:
        """That of the limits of one store."""
        with _services_lock:
            return _services.setdefault(limits, LineService(limits))

    def serve(self, held: HeldLease) -> None:
        """Serve the lines for as long as this run is under way here, and something waits."""
        with self._waiting_lock:
            self._asked += 1
            self._waiting.add(held)
        renewals.watch(self)

    def has_leases(self) -> bool:
        """Whether a run that waits in a line, or owes slots, is under way."""
        with self._waiting_lock:
            waiting = list(self._waiting)
        return any(held.is_in_use and not held.lost for held in waiting)

    def do_regularly(self) -> None:
        """Look, unless the last look still waits for the store. If it fails, the next one will do."""
        limits = self._limits()
        if limits is None or self._looking.locked():
            return
        with self._looking, suppress(StoreError):
            asked = self._asked
            due = limits.serve_lines()
            if due is not None:
                self.interval = min(max(due - limits.now(), SHORTEST_LOOK), LONGEST_LOOK)
                return
            self.interval = LONGEST_LOOK
            with self._waiting_lock:
                if asked == self._asked and not limits.has_debts:
                    self._waiting.clear()


_services: WeakKeyDictionary[LimitClient, LineService] = WeakKeyDictionary()
_services_lock = Lock()
