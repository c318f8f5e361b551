"""Where a call takes place: what the calls of a run, or of one branch of it, share; and the lock of its journal.

And the call that is under way here: `pause`, `sleep` and `once` find it through a context variable, so that they work
at any depth of the user's own functions, in threads that copy the context and in asyncio tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack, overload

from limpet.durations import Moment, Span
from limpet.engine.node_context.branch_result import BranchResult
from limpet.engine.node_context.questions import NOT_GIVEN, Choices, PauseOptions
from limpet.errors import UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.reducers import copy_containers
from limpet.graphs.secrets import SecretMasker
from limpet.journal.encoding.codec import detached_value
from limpet.journal.open_parallel_section import Key, states_with_tasks
from limpet.journal.progress import Progress
from limpet.journal.waits import PostWait
from limpet.threads.workers import Monitor

if TYPE_CHECKING:
    from datetime import datetime

    from limpet.engine.node_context.child_runs import ChildRequest
    from limpet.engine.node_context.emit import OutputTaker
    from limpet.engine.node_context.node_context import NodeContext
    from limpet.graphs.workflow.flow import Flow
    from limpet.observe.opentelemetry.spans import StepSpan, Stretch


T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")

CURRENT: ContextVar[NodeContext | None] = ContextVar("limpet.task", default=None)
"""The call that is under way."""

KeepResult = Callable[["Scope", str, Any], None]
"""Stores the result of a `once()` durably: `keep_result(scope, key, value)`."""
TakeLetter = Callable[["Scope", PostWait], None]
"""Takes what a call waits for, durably: see `sessions/node_saves.py`."""


class ChildRuns(Protocol):
    """The child runs of a run, as the calls of its nodes see them: see `child_runs.py`."""

    def start(self, graph: Any, request: ChildRequest) -> Any:
        """Start a child, or find it; returns its handle."""
        ...

    def handle_of(self, run_id: str, graph: Any) -> Any:
        """The handle of a child of this graph."""
        ...

    def join(self, scope: Scope, wait: PostWait, handle: Any) -> Any:
        """The result of a child, once it has ended. Raises `ChildFailed`, and `PostAwaited` until then."""
        ...


class JournalLock:
    """Guards a run's journal, and the end of a call: only its holder writes there.

    While nodes run in parallel, the loop holds it all the time, except when it waits. A `once()` in another thread
    writes while the loop waits. That the loop holds it is a mark, `held_by_loop`, because it does so from one command
    to the next: an interrupt can't leave it held, since the driver takes the mark away at the end in any case.
    Without `threads`, nothing is locked.
    """

    __slots__ = ("_lock", "_released", "_threads", "held_by_loop")

    def __init__(self, threads: bool = False) -> None:
        self._threads = threads
        self._released: Monitor | None = None
        self._lock = Lock()
        self.held_by_loop = False

    def acquire(self) -> None:
        """Acquire it for the loop, once no node writes."""
        # Before the mark is made, because a node that sees the mark waits for this. Most runs never need it.
        if self._released is None:
            self._released = Monitor()
        with self._lock:
            self.held_by_loop = True

    def try_acquire(self) -> bool:
        """Acquire it for the loop if no node writes, and say whether that is so."""
        if self._lock.locked():
            return False
        self.acquire()
        return True

    def release(self) -> None:
        """The loop releases it."""
        self.held_by_loop = False
        if self._released is not None:
            self._released.notify()

    def forget_threads(self) -> None:
        """In a forked child, which has one thread: any other that held this doesn't exist, and never releases it."""
        self._threads = False
        self.held_by_loop = False

    def call_unlocked(self, call: Callable[..., T], *args: Any) -> T:
        """Call a user's function from the loop, without the lock.

        The function may wait for a node that in turn waits for this lock; holding it would be a deadlock.
        """
        if not self.held_by_loop:
            return call(*args)
        self.release()
        try:
            return call(*args)
        finally:
            self.acquire()

    def call_as_either(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function for the loop, if that has the lock; else for a node."""
        if self.held_by_loop:
            return call(*args)
        return self.call_locked(call, *args)

    def call_locked(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function for a node, with the lock, once the loop has released it."""
        if not self._threads:
            return call(*args)
        while True:
            with self._lock:
                if not self.held_by_loop:
                    return call(*args)
            assert self._released is not None
            self._released.wait_for(lambda: not self.held_by_loop)


class RunServices(NamedTuple):
    """What a run offers to the calls of all its nodes, in branches too."""

    root: Progress
    """The progress of the whole run."""
    keep_result: KeepResult | None
    """None where the run has no store."""
    journal_lock: JournalLock
    store_clock: Callable[[], float]
    """The store's clock, by which sleeps end and deadlines pass."""
    masker: SecretMasker
    is_cancelled: Callable[[], bool] = bool
    """Whether the run was cancelled."""
    take_letter: TakeLetter | None = None
    """None where nothing can be posted to the run: it has no store, or one without that ability."""
    output: Callable[[], OutputTaker | None] = lambda: None
    """What takes the items that nodes emit, made when the first one does; None where nothing takes them."""
    children: Callable[[], ChildRuns] | None = None
    """The child runs; None where nothing can be posted to the run."""
    stretch: Stretch | None = None
    """The span of the run in this process; None if it isn't traced."""


class Scope:
    """What the calls in a run, or in one branch of it, share.

    Of a branch, `outer` is the progress that opened it, `path` the keys that lead to it from the run, and `branch`
    the names on that path, with `/`. `prefix` makes the numbers of its steps different from those of all other
    branches. `in_layer` says that this is a task of a workflow: a branch of one node, which has its name.
    `current_call` is the call under way: a call that ended may change nothing more. `layers_ahead` is what a
    workflow's planner remembers from one layer to the next, and `flow` is the planner of a workflow that runs as data
    flow: for the workflow itself, and for its tasks. `stretch` is the span of the run, if it is traced, and
    `span_around` that of the node in whose graph these calls are.
    """

    __slots__ = (
        "branch",
        "current_call",
        "flow",
        "in_layer",
        "layers_ahead",
        "outer",
        "path",
        "plan",
        "prefix",
        "progress",
        "root",
        "services",
        "span_around",
        "stretch",
    )

    def __init__(self, services: RunServices, plan: Plan, progress: Progress) -> None:
        self.services = services
        self.root = services.root
        self.plan = plan
        self.progress = progress
        self.outer: Progress | None = None
        self.path: tuple[Key, ...] = ()
        self.branch = ""
        self.prefix = ""
        self.in_layer = False
        self.current_call: NodeContext | None = None
        self.layers_ahead: Any = None
        self.flow: Flow | None = None
        self.stretch = services.stretch
        self.span_around: StepSpan | None = None

    def branch_scope(self, key: Key, plan: Plan) -> Scope:
        """The scope of one of the branches that are open here."""
        section = self.progress.section
        assert section is not None
        scope = Scope(self.services, plan, section.children[key])
        scope.outer = self.progress
        scope.path = (*self.path, key)
        scope.branch = self.place(section.label(key))
        scope.prefix = f"{self.prefix}{section.step}."
        scope.in_layer = section.layer is not None
        if section.flow is not None:
            scope.flow = self.flow
        if self.stretch is not None:
            scope.span_around = self.span_around
            if section.inside and self.current_call is not None:
                scope.span_around = getattr(self.current_call, "step_span", None)
        return scope

    @property
    def reported_branch(self) -> str:
        """The branch that events name: for a task, the one that its workflow is in."""
        if self.in_layer:
            return self.branch.rpartition("/")[0]
        return self.branch

    def place(self, node: str) -> str:
        """The full name of a node here: the names of the branches around it, and its own."""
        if self.in_layer:
            return self.branch
        if self.branch:
            return f"{self.branch}/{node}"
        return node

    def without_secrets(self, text: str) -> str:
        """The text with the secrets of the states around here masked."""
        states: list[Mapping[str, Any]] = [self.progress.state, self.root.state, self.root.config]
        if self.outer is not None:
            states += states_with_tasks(self.outer)
        return self.services.masker.hide(text, states)

    def results(self) -> list[BranchResult]:
        """The results of the branches that were opened here, in the order they were declared in."""
        section = self.progress.section
        if section is None or section.inside:
            return []
        opener = self.plan.nodes[section.source].section
        sub = None if opener is None else opener.inner
        # The fan-in gets copies of the lists and dicts at the top: those of the state may grow once it is done.
        base = copy_containers(self.progress.state)
        secrets = self.services.masker.names
        found = []
        for index, (key, child) in enumerate(section.children.items()):
            if sub is None or child.error:
                data = child.branch_state(base)
            else:
                data = sub.outputs_of(child.state)
            result = BranchResult(
                data,
                branch=section.label(key),
                index=index,
                error=detached_value(child.error),
                started=child.began,
                ended=child.at,
                run_id=child.run_id,
                checkpoint_node=child.made_by,
                changed=None if child.base is None else child.changed,
                secrets=secrets,
            )
            found.append(result)
        return found

    def joined_results(self) -> list[dict[str, Any]] | None:
        """The results as plain dicts that share nothing, once all branches are done; None without branches."""
        section = self.progress.section
        if section is None or section.inside or section.layer is not None:
            return None
        if not all(child.done for child in section.children.values()):
            return None
        return [detached_value(dict(result)) for result in self.results()]


@overload
def pause(prompt: str, *, schema: type[T], choices: Choices = None, **more: Unpack[PauseOptions]) -> T: ...
@overload
def pause(
    prompt: str,
    *,
    schema: type[T],
    choices: Choices = None,
    default: D = ...,
    on_timeout: Callable[[], D] | None = None,
    **more: Unpack[PauseOptions],
) -> T | D: ...
@overload
def pause(prompt: str, *, choices: Iterable[T], **more: Unpack[PauseOptions]) -> T: ...
@overload
def pause(
    prompt: str,
    *,
    choices: Iterable[T],
    default: D = ...,
    on_timeout: Callable[[], D] | None = None,
    **more: Unpack[PauseOptions],
) -> T | D: ...
@overload
def pause(
    prompt: str,
    *,
    schema: Mapping[str, Any] | None = None,
    choices: Choices = None,
    default: Any = ...,
    on_timeout: Callable[[], Any] | None = None,
    **more: Unpack[PauseOptions],
) -> Any: ...
def pause(
    prompt: str,
    *,
    choices: Any = None,
    schema: Any = None,
    key: str | None = None,
    deadline: Moment | None = None,
    default: Any = NOT_GIVEN,
    on_timeout: Callable[[], Any] | None = None,
    secret: bool = False,
) -> Any:
    """Pause the run until its question is answered, and return the answer.

    Inside a node. The run is saved with status `paused`, and the process may end. `resume(run_id, answer)`
    runs the node again from its first line, and this call then returns the answer. An answer must be one
    of `choices`, if given, and fit `schema`: a type, a JSON Schema dict or a pydantic model. Questions are
    distinguished by their order in the node, or by `key`. A `secret` answer is never in events, logs or summaries.

    `deadline` is until when it can be answered: seconds, a `timedelta`, or a `datetime`. If no answer has arrived by
    then, the node runs again and this call returns `default`, or what `on_timeout()` returns, or raises
    `DeadlinePassed`. A supervisor does that when the time has come; without one, it happens when the run is next
    resumed.
    """
    return current("pause").pause(
        prompt,
        choices=choices,
        schema=schema,
        key=key,
        deadline=deadline,
        default=default,
        on_timeout=on_timeout,
        secret=secret,
    )


def sleep(duration: Span | None = None, *, until: datetime | None = None, key: str | None = None) -> None:
    """Let time pass, durably: a number of seconds (or a `timedelta`), or until a `datetime`.

    Inside a node. The call of the node ends here, and when the time has come the node is called again from its
    first line; this call then returns at once. So keep earlier results with `once`. The process may end
    meanwhile: a process that resumes the run waits for the rest, and under a supervisor no process holds the
    run while it sleeps. Sleeps are distinguished by their order in the node, or by `key`.
    """
    current("sleep").sleep(duration, until=until, key=key)


def once(key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` and keep its result durably, so that it isn't called again when the node is.

    Inside a node. After a pause, a crash or a failed attempt, the call with the same `key` in the same step
    returns the kept result. With an async function, await what this returns.
    """
    return current("once").once(key, function, *args, **kwargs)


def current(what: str) -> NodeContext:
    """The call that is under way here. Raises `UsageError` outside of a node."""
    ctx = CURRENT.get()
    if ctx is None:
        raise UsageError(f"{what}() must be called inside a running node, in the process of the run")
    return ctx


def leave_run(root: Progress, before: NodeContext | None) -> None:
    """A run is no longer driven here: its call isn't under way any more, and the one `before` is again.

    A run that its caller has dropped is closed when Python deletes it, which may happen inside a node of another run:
    then that node stays the current one.
    """
    ctx = CURRENT.get()
    if ctx is not None and ctx.scope.root is root:
        CURRENT.set(before)
