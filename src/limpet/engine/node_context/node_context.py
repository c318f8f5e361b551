"""One call of one node. It is also the `ctx` that the node may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from limpet.durations import Moment, Span, moment_of, seconds_of
from limpet.engine.node_context.call_scope import Scope
from limpet.engine.node_context.kept_results import call_once
from limpet.engine.node_context.questions import (
    NOT_GIVEN,
    CallAbandoned,
    Choices,
    Pause,
    PauseOptions,
    Sleep,
    check_can_keep_answer,
    check_timeout_arguments,
    default_answer,
    question_for,
    question_id_of,
    returned_answer,
)
from limpet.errors import UsageError
from limpet.graphs.edges import CaughtError
from limpet.graphs.plan import PlanNode
from limpet.graphs.secrets import MASK
from limpet.graphs.state import NodeState, State
from limpet.journal.encoding.codec import detached_value, encode
from limpet.journal.waits import SHORTEST_WAIT
from limpet.threads.awaiting import in_thread

if TYPE_CHECKING:
    from datetime import datetime

    from limpet.engine.node_context.child_runs import ChildOptions
    from limpet.engine.node_context.emit import CallNumbers
    from limpet.graph_methods import GraphMethods
    from limpet.graphs.workflow.state import TaskResult
    from limpet.graphs.workflow.task_report import TaskReport
    from limpet.handle import RunHandle

T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")
S = TypeVar("S", bound=State)


class NodeContext:
    """What a node may know about its call, and may do in it; also what a driver needs to make the call."""

    __slots__ = (
        "_asked",
        "_emitted",
        "_receives",
        "_slept",
        "_started",
        "attempt",
        "began",
        "plan_node",
        "scope",
        "state",
        "step",
        "step_span",
        "task_report",
        "used_keys",
    )

    def __init__(self, scope: Scope, plan_node: PlanNode, state: NodeState, attempt: int, step: int) -> None:
        self.scope = scope
        self.plan_node = plan_node
        self.state = state
        self.attempt = attempt
        self.step = step
        """The number of the step that this call will complete, in a branch counted within it. The first is 1."""
        self.used_keys: set[str] | None = None  # the keys that `once` was given; None while it wasn't called
        self.task_report: TaskReport | None = None  # what a task has reported besides its result

    # These stay unset until they are needed: a call is made at every step, and each assignment would cost.
    _asked: int  # how many questions it has asked
    _emitted: CallNumbers  # how it numbers what it emits
    _receives: dict[tuple[str, str], int]  # how often it has received of each name, and with which keys
    _slept: int  # how many times it has slept
    _started: int  # how many child runs it has started
    began: float  # when the call began, by the loop's clock; set where the loop reports calls
    step_span: Any  # its span; set where the run is traced, when the call is about to be made

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.scope.progress.run_id

    @property
    def node(self) -> str:
        """The name of the node."""
        return self.plan_node.name

    @property
    def visit(self) -> int:
        """How many times the run, or the branch, has arrived at this node, this time included."""
        return self.scope.progress.visits.get(self.node, 0) + 1

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the config: what `invoke(config=…)` was given, merged over what was saved with the run."""
        copied: dict[str, Any] = detached_value(self.scope.root.config)
        return copied

    @property
    def branch(self) -> str | None:
        """The branch that this call is in, or the node whose graph it is in: the names on the way, with `/`."""
        return self.scope.branch or None

    @property
    def index(self) -> int | None:
        """Which item of a map this call is about, from 0."""
        path = self.scope.path
        return path[-1] if path and isinstance(path[-1], int) else None

    @property
    def error(self) -> CaughtError | None:
        """The error of another node, if an error edge led to this one."""
        caught = self.scope.progress.caught
        if not caught:
            return None
        return CaughtError(*caught)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this step of this run or branch, and no other: for outside services."""
        scope = self.scope
        return f"{self.run_id}/{scope.prefix}{self.step}/{scope.place(self.node)}"

    def call(self) -> Any:
        """Call the node's function with what it takes."""
        function = self.plan_node.function
        if function is None:
            return None
        return function.call(**function.arguments(self.offer))

    def offer(self, thing: str) -> Any:
        """One of the things that a function may take, by its name."""
        match thing:
            case "state" if self.plan_node.workflow_task is None:
                return self.state
            case "config":
                return self.config
            case "node":
                return self.node
            case "graph":
                return self.scope.plan.graph
            case "ctx":
                return self
            case "parallel_results":
                return self.scope.results()
            case "error":
                return self.error
            case _:
                assert self.plan_node.workflow_task is not None, f"a node can't take {thing!r}"
                return self.plan_node.workflow_task.argument(self, thing)

    @overload
    def pause(
        self, prompt: str, *, schema: type[T], choices: Choices = None, **more: Unpack[PauseOptions]
    ) -> T: ...
    @overload
    def pause(
        self,
        prompt: str,
        *,
        schema: type[T],
        choices: Choices = None,
        default: D = ...,
        on_timeout: Callable[[], D] | None = None,
        **more: Unpack[PauseOptions],
    ) -> T | D: ...
    @overload
    def pause(self, prompt: str, *, choices: Iterable[T], **more: Unpack[PauseOptions]) -> T: ...
    @overload
    def pause(
        self,
        prompt: str,
        *,
        choices: Iterable[T],
        default: D = ...,
        on_timeout: Callable[[], D] | None = None,
        **more: Unpack[PauseOptions],
    ) -> T | D: ...
    @overload
    def pause(
        self,
        prompt: str,
        *,
        schema: Mapping[str, Any] | None = None,
        choices: Choices = None,
        default: Any = ...,
        on_timeout: Callable[[], Any] | None = None,
        **more: Unpack[PauseOptions],
    ) -> Any: ...
    def pause(
        self,
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
        """See `limpet.pause`."""
        check_timeout_arguments(deadline is not None, default, on_timeout)
        self._check_open("pause")
        question_id = self._next_question_id(key)
        services = self.scope.services
        check_can_keep_answer(services.keep_result is not None, secret and services.masker.plain_text)
        limit = None if deadline is None else self._deadline_of(question_id, deadline)
        text = self.scope.without_secrets(str(prompt))
        question = question_for(
            question_id, text, self.scope.place(self.node), choices, schema, limit, secret
        )
        progress = self.scope.progress
        if question_id in progress.answers:
            answer = progress.answers[question_id]
            if secret:
                services.masker.remember(answer)
            found = returned_answer(question, answer, schema)
        elif limit is not None and question_id in progress.timers and limit <= services.store_clock():
            # The timer exists once the question was taken back at its deadline. A question asked for the first time
            # has none: it pauses the run even if its deadline has passed already.
            answer = found = default_answer(question, default, on_timeout, self.run_id)
        else:
            encode(question.to_data(), "question")  # refuses here what the journal couldn't store later
            raise Pause(question)
        if self.scope.plan.layers is not None:
            reported = MASK if secret else detached_value(answer)
            self._report_for("pause").answered(question_id, question.prompt, reported)
        return found

    def _next_question_id(self, key: str | None) -> str:
        """The id of the next question: the same whenever this node asks it in this step."""
        if key is not None and (not isinstance(key, str) or key.isdigit()):
            raise UsageError(f"pause(key={key!r}): a key is a str; numbers are for questions without a key")
        self._asked = getattr(self, "_asked", 0) + 1
        step = f"{self.scope.prefix}{self.step}"
        return question_id_of(self.scope.place(self.node), step, key or str(self._asked))

    def _deadline_of(self, question_id: str, deadline: Moment) -> float:
        """Until when a question can be answered. It is computed when the question is first asked, and then kept."""
        known = self.scope.progress.timers.get(question_id)
        return known or moment_of(deadline, self.scope.services.store_clock(), "pause(deadline=…)")

    def sleep(
        self, duration: Span | None = None, *, until: datetime | None = None, key: str | None = None
    ) -> None:
        """See `limpet.sleep`."""
        self._check_open("sleep")
        if (duration is None) == (until is None):
            raise UsageError("sleep(seconds) or sleep(until=datetime): give one of them")
        if until is not None and not hasattr(until, "tzinfo"):
            raise UsageError(f"sleep(until=…) takes a datetime with a time zone, not {until!r}")
        self._slept = getattr(self, "_slept", 0) + 1
        timer = f"sleep:{key or self._slept}"
        now = self.scope.services.store_clock()
        # A sleep that began in an earlier call of the node ends when that call decided, not later.
        wake_at = self.scope.progress.timers.get(timer)
        if wake_at is None and until is not None:
            wake_at = moment_of(until, now, "sleep()")
        elif wake_at is None:
            wake_at = now + seconds_of(duration, "sleep()")
        if wake_at - now > SHORTEST_WAIT:
            raise Sleep(timer, wake_at)

    def once(self, key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `limpet.once`."""
        self._check_open("once")
        if not isinstance(key, str):
            raise UsageError(f"once(key, function, …): the key must be a str, not {key!r}")
        kept: T = call_once(self, key, function, args, kwargs)
        return kept

    def receive(
        self, name: str, *, deadline: Moment | None = None, default: Any = NOT_GIVEN, key: str | None = None
    ) -> Any:
        """See `limpet.receive`."""
        from limpet.engine.node_context.messages import receive_message

        return receive_message(self, name, key, deadline, default)

    async def areceive(
        self, name: str, *, deadline: Moment | None = None, default: Any = NOT_GIVEN, key: str | None = None
    ) -> Any:
        """`receive` without blocking the event loop while the message is saved as received."""
        from limpet.engine.node_context.messages import areceive_message

        return await areceive_message(self, name, key, deadline, default)

    def emit(self, data: Any) -> None:
        """See `limpet.emit`."""
        from limpet.engine.node_context.emit import emit_data

        emit_data(self, data)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """See `limpet.progress`."""
        from limpet.engine.node_context.emit import report_progress

        report_progress(self, done, total, message)

    def start(
        self, graph: GraphMethods[S], input: Any = None, **options: Unpack[ChildOptions]
    ) -> RunHandle[S]:
        """Start a child run, or find the one with this `key` that this call started before; returns its handle."""
        from limpet.engine.node_context.child_runs import start_child

        started: RunHandle[S] = start_child(self, graph, input, options)
        return started

    async def astart(
        self, graph: GraphMethods[S], input: Any = None, **options: Unpack[ChildOptions]
    ) -> RunHandle[S]:
        """`start` without blocking the event loop."""
        from limpet.engine.node_context.child_runs import start_child

        started: RunHandle[S] = await in_thread(start_child, self, graph, input, options)
        return started

    @overload
    def join(self, child: RunHandle[S], graph: GraphMethods[S] | None = None) -> S: ...
    @overload
    def join(self, child: str, graph: GraphMethods[S]) -> S: ...
    @overload
    def join(self, child: str) -> Any: ...
    def join(self, child: Any, graph: Any = None) -> Any:
        """The final State of a child run, by its handle or id. Until it has ended, no process holds this run."""
        from limpet.engine.node_context.child_runs import join_child

        return join_child(self, child, graph)

    @overload
    async def ajoin(self, child: RunHandle[S], graph: GraphMethods[S] | None = None) -> S: ...
    @overload
    async def ajoin(self, child: str, graph: GraphMethods[S]) -> S: ...
    @overload
    async def ajoin(self, child: str) -> Any: ...
    async def ajoin(self, child: Any, graph: Any = None) -> Any:
        """`join` without blocking the event loop."""
        return await in_thread(self.join, child, graph)

    def check(self) -> None:
        """Stop this call here if the run was cancelled, or if the call took longer than its timeout.

        For a long sync node, which nothing can interrupt: call it in its loops. It raises what isn't an `Exception`,
        so that `except Exception` doesn't catch it; `finally` and `with` work as usual. The call doesn't count as an
        attempt, and a resume runs the node again. While a worker is being stopped it does nothing: there, nodes may
        finish.
        """
        if self.scope.services.is_cancelled() or self.scope.current_call is not self:
            raise CallAbandoned(
                f"run {self.run_id!r} was cancelled, or this call of node {self.node!r} is over"
            )

    def close(self) -> None:
        """End the call: what still runs of it, in a thread that was left behind, can keep nothing more."""
        self.scope.services.journal_lock.call_as_either(setattr, self.scope, "current_call", None)

    def _check_open(self, what: str) -> None:
        """Raise `UsageError` if the call is over, so that it can't do `what` any more."""
        if self.scope.current_call is not self:
            raise UsageError(f"{what}(): the call of node {self.node!r} that this belongs to is over")

    def add_message(self, message: Any, /) -> None:
        """Add a message to the workflow's, when the task completes."""
        self._report_for("add_message").message(message)

    def add_decision(self, decision: str | Mapping[str, Any], /, **details: Any) -> None:
        """Add a decision to the workflow's, when the task completes: a text or a dict, with optional details."""
        self._report_for("add_decision").decide(decision, details)

    def add_context(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Merge values into the workflow's context, when the task completes."""
        report = self._report_for("add_context")
        if values is not None:
            report.share(values)
        report.share(more)

    def add_task(
        self,
        name: str,
        run: str | None = None,
        depends_on: Any = None,
        *,
        optional: Any = (),
        arguments: Mapping[str, Any] | None = None,
        before: Iterable[str] = (),
        may_fail: bool = False,
    ) -> None:
        """Decide that the run has one more task, which runs the code of the task or template `run`.

        It can depend on any existing task; without `depends_on`, it depends on those that parameters of its function
        name. Those named in `before` will depend on it, or only optionally where it `may_fail`. This takes effect
        when the layer is done, if the task that calls it completes. Raises `UsageError` if the workflow can't have
        such a task.
        """
        given = {
            "name": name,
            "run": run,
            "depends_on": depends_on,
            "optional": optional,
            "arguments": arguments,
            "before": before,
            "may_fail": may_fail,
        }
        self._report_for("add_task").add_task(given)

    def skip(self, *tasks: str, reason: str = "") -> None:
        """Decide that tasks which depend on this one are skipped; their records say so, and why.

        Raises `UsageError` for a task that the workflow doesn't have, or that may have begun.
        """
        self._report_for("skip").skip(tasks, self.scope.without_secrets(reason))

    def skip_layers(self, count: int = 1, reason: str = "") -> None:
        """Decide that the next layers of the workflow are skipped, where layers are barriers."""
        self._report_for("skip_layers").skip_layers(count, self.scope.without_secrets(reason))

    def _add_result(self, result: TaskResult) -> None:
        """Report what a task returned besides its value. Raises `UsageError` for what can't be reported."""
        self._report_for("TaskResult").add_result(result)

    def _add_inner_decisions(self, final: Mapping[str, Any]) -> None:
        """The graph inside of this task is done: if that is a workflow, its decisions were made in this task."""
        if "dag" in final and final.get("decisions"):
            self._report_for("a workflow").add_inner_decisions(final)

    def _report_for(self, what: str) -> TaskReport:
        """The report of this call, to be added to. Raises `UsageError` outside of a workflow."""
        self._check_open(what)
        layers = self.scope.plan.layers
        if layers is None:
            raise UsageError(
                f"{what} is for a task of a workflow; node {self.node!r} returns what it changes"
            )
        if self.task_report is None:
            from limpet.graphs.workflow.task_report import report_of

            self.task_report = report_of(self, layers)
        return self.task_report
