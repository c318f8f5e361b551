"""The child runs of a run that is open here: starting them, looking at them, and what ends with their parent."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from limpet.durations import Moment, moment_of
from limpet.engine.leases.child_posts import unfinished_children
from limpet.engine.node_context.call_scope import Scope
from limpet.engine.node_context.child_runs import ChildRequest
from limpet.engine.node_context.questions import CallAbandoned, PostAwaited
from limpet.engine.sessions.start import StartRequest, deadline_for, queue_for, tag_names
from limpet.errors import ChildFailed, RunNotFound
from limpet.graphs.state import State
from limpet.journal.reader import read_progress
from limpet.journal.record_shapes import read_summary
from limpet.journal.store import CANCELLED, COMPLETED, ENDED, RunHead
from limpet.journal.waits import PostWait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.engine.drivers.child_threads import ChildThreads
    from limpet.engine.sessions.compiled_graph import CompiledGraph
    from limpet.engine.sessions.session import Session

RECHECK_INTERVALS = (0.2, 1.0, 15.0)
"""Seconds until a child is looked at again that has posted its end, and hadn't ended; each next time, and then always
the last. Its process is just about to end it, or has crashed. A child of another run posts nothing here."""


class SessionChildren:
    """The child runs of one session. Nodes call it from their threads.

    `executor` is what executes them in this process. A run that a supervisor has resumed has none.
    """

    def __init__(self, session: Session, executor: ChildThreads | None) -> None:
        self._session = session
        self._handles: dict[str, Any] = {}
        """The handles of children by id, as far as nodes of this session have had them."""
        self._begun: set[str] = set()
        self._lock = Lock()
        self._own_queue: str | None = None
        """The queue of the session's run, once it is known."""
        self.executor = executor

    @property
    def is_executing(self) -> bool:
        """Whether this process executes children."""
        return self.executor is not None and self.executor.busy

    def leave(self) -> None:
        """The run is no longer driven here: what is executed for it is released."""
        if self.executor is not None:
            self.executor.leave()

    def start(self, graph: Any, request: ChildRequest) -> Any:
        """Start a child, or find it; returns its handle. Raises what `start` of a graph raises."""
        session = self._session
        if session.stop.cancels:
            raise CallAbandoned
        compiled = graph.compiled()
        start = StartRequest(
            request.input,
            request.config,
            request.run_id,
            tag_names(request.tags),
            deadline=self._deadline(deadline_for(compiled, request.deadline)),
            child_of=session.id,
            queue=self._queue(compiled, request.queue),
        )
        client = session.compiled.need_client("start")
        handle = graph._start_child(client, start, request.priority, request.delay)
        with self._lock:
            self._handles[request.run_id] = handle
        self._make_known(graph)
        return handle

    def handle_of(self, run_id: str, graph: Any) -> Any:
        """The handle of a child of this graph."""
        self._make_known(graph)
        return graph._child_handle(self._session.compiled.need_client("join"), run_id)

    def join(self, scope: Scope, wait: PostWait, handle: Any) -> State:
        """The result of a child that has ended. `handle` is its handle, if the caller has it.

        Raises `ChildFailed`, and `PostAwaited` for one that hasn't ended.
        """
        session = self._session
        child = wait.name
        with self._lock:
            is_known = child in self._handles
            if handle is not None:
                self._handles.setdefault(child, handle)
            handle = self._handles.get(child)
        try:
            head = session.compiled.need_client("join").store.head(child)
            if handle is None:
                handle = self._handle_by_name(child, head.graph)
            if head.status == COMPLETED:
                return self._result(head, handle)
        except RunNotFound:
            raise ChildFailed(child, "deleted", "was deleted, or never existed", session.id) from None
        if head.status in ENDED:
            raise self._failure(head)
        is_own = head.parent == session.id
        if is_own and handle is not None and not is_known:
            self._find_siblings(head.graph, handle)
        self._begin_here()
        raise PostAwaited(_next_look(wait, scope.progress.received, is_own, scope.services.store_clock()))

    def _handle_by_name(self, run_id: str, name: str) -> Any:
        """The handle of a child that another node or process has started, if this graph knows that of the child."""
        graph = getattr(self._session.compiled.plan.graph, "_child_graphs", {}).get(name)
        if graph is None:
            return None
        handle = self.handle_of(run_id, graph)
        with self._lock:
            return self._handles.setdefault(run_id, handle)

    def _find_siblings(self, graph: str, handle: Any) -> None:
        """Know the other children of a graph, too, which an earlier node has started, maybe in another process.

        They will be joined next, one by one; so they are executed at once, as those that were started here are.
        """
        if self.executor is None or handle._compiled is None:
            return
        client = self._session.compiled.need_client("join")
        found = [head.run_id for head in unfinished_children(client, self._session.id) if head.graph == graph]
        with self._lock:
            for run_id in reversed(found):  # the oldest first
                if run_id not in self._handles:
                    self._handles[run_id] = handle._compiled.plan.graph._child_handle(client, run_id)

    def _deadline(self, given: Moment | None) -> Moment | None:
        """The deadline of a child: the given one, or that of its parent if it is earlier."""
        latest = self._session.progress.deadline
        if latest is None:
            return given
        if given is not None:
            latest = min(latest, moment_of(given, self._session.lifecycle.context.clocks.store(), "deadline"))
        return datetime.fromtimestamp(latest, UTC)

    def _queue(self, compiled: CompiledGraph, given: str | None) -> str:
        """The queue of a child: the given one, that of its graph, or else that of its parent."""
        if given is not None or compiled.queue is not None:
            return queue_for(compiled, given)
        if self._own_queue is None:
            self._own_queue = self._session.compiled.need_client("start").head(self._session.id).queue
        return self._own_queue

    def _make_known(self, graph: Any) -> None:
        """A node names the graph of a child: a supervisor that has resumed the run can execute it from now on."""
        if self._session.on_child_graph is not None:
            self._session.on_child_graph(graph)

    def _begin_here(self) -> None:
        """Have this process execute the children that it knows, if no supervisor has it execute the run itself."""
        if self.executor is None:
            return
        with self._lock:
            found = [each for each in self._handles.items() if each[0] not in self._begun]
            self._begun.update(self._handles)
        for child, handle in found:
            if handle._compiled is not None:
                self.executor.execute(child, handle._compiled)

    def _result(self, head: RunHead, handle: Any) -> State:
        """The final state of a child: of the kind that its graph has, if its handle is known here."""
        if handle is not None:
            found: State = handle.state
            return found
        progress = read_progress(self._session.compiled.need_client("join").store.read(head.run_id))
        state = State(progress.state_so_far(), run_id=head.run_id, checkpoint_node=progress.made_by)
        if secrets := frozenset(map(str, progress.meta.get("secrets", ()))):
            state._secrets = secrets
        return state

    def _failure(self, head: RunHead) -> ChildFailed:
        reason = ""
        with suppress(ValueError):
            reason = read_summary(head.note).get("reason") or ""
        what = "was cancelled"
        if head.status != CANCELLED:
            what = f"failed: {reason or head.error}"
        failed = ChildFailed(head.run_id, head.status, what, self._session.id)
        return failed.with_advice(
            f"get({head.run_id!r}).retry() hands it back to the workers; then retry this run", "retry"
        )


def _next_look(wait: PostWait, received: Mapping[str, Any], is_own: bool, now: float) -> PostWait:
    """What to wait for until a child is looked at again, which has been looked at as often as `received` says."""
    for number, seconds in enumerate(RECHECK_INTERVALS):
        if is_own and wait.received_as not in received:
            break
        is_own = True
        # The key says how often, so that the next intervals are longer.
        wait = wait._replace(key=f"{wait.key.partition('.')[0]}.{number}", deadline=now + seconds)
    return wait
