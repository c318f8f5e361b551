"""A task: one call of one node. It is also the `ctx` that the node may ask for.

`pause` and `once` reach the task that is running through a context variable, so that they work at any
depth of the user's own calls, in threads that copy the context and in asyncio tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from limpet.durations import Moment, Span, moment_of
from limpet.engine.node_context.questions import NOT_GIVEN, Pause, Sleep, question_for, read_answer
from limpet.engine.node_context.scope import Scope
from limpet.engine.node_context.speaking import Speaking
from limpet.errors import DeadlinePassed, UsageError
from limpet.graphs.plan import PlanNode
from limpet.graphs.secrets import MASK
from limpet.graphs.state import NodeState
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.copies import detached_value
from limpet.journal.waits import Question

if TYPE_CHECKING:
    from datetime import datetime

    from limpet.graphs.workflow.task_report import TaskReport

CURRENT: ContextVar[NodeContext | None] = ContextVar("limpet.task", default=None)

T = TypeVar("T")
P = ParamSpec("P")


class NodeContext(Speaking):
    """What a node may know about the call it is in, and what a driver needs to make it."""

    __slots__ = ("_asked", "_slept", "attempt", "began", "plan_node", "scope", "state", "step", "used")

    def __init__(self, scope: Scope, plan_node: PlanNode, state: NodeState, attempt: int, step: int) -> None:
        self.scope = scope
        self.plan_node = plan_node
        self.state = state
        self.attempt = attempt
        self.step = step
        """The number of the step that this call will complete. The first is 1."""
        self.used: set[str] | None = None
        """The keys of the results that it has got; None while it hasn't asked for any."""
        self.said: TaskReport | None = None
        """What a task of a workflow has said besides its result, if it has."""

    _asked: int
    """How many questions it has asked; unset while that is none."""
    _slept: int
    """How often it has slept, likewise."""
    began: float
    """When the call began, by the loop's clock; known where somebody watches."""

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
        """How many times the run has come to this node, this time included."""
        return self.scope.progress.visits.get(self.node, 0) + 1

    @property
    def config(self) -> dict[str, Any]:
        """What `invoke(config=…)` was given, over what was saved with the run: a copy of your own."""
        copied: dict[str, Any] = detached_value(self.scope.root.config)
        return copied

    @property
    def branch(self) -> str | None:
        """The branch that this call is in, or the node whose graph it is in: the names on the way, with `/`."""
        return self.scope.branch or None

    @property
    def index(self) -> int | None:
        """Which item of a map this call is about, from 0."""
        key = self.scope.path[-1] if self.scope.path else None
        return key if isinstance(key, int) else None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this step of this run, and for no other: hand it to outside services."""
        scope = self.scope
        return f"{self.run_id}/{scope.prefix}{self.step}/{scope.place(self.node)}"

    def call(self) -> Any:
        """Call the node's function with what it takes."""
        function = self.plan_node.function
        return None if function is None else function.call(**function.arguments(self.offer))

    def offer(self, thing: str) -> Any:
        """One of the things that a function may take, by its name."""
        match thing:
            case "state" if self.plan_node.work is None:
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
            case _:
                assert self.plan_node.work is not None, f"nobody offers {thing!r}"
                return self.plan_node.work.offer(self, thing)

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
        if deadline is None and (default is not NOT_GIVEN or on_timeout is not None):
            raise UsageError("pause(default=…) and pause(on_timeout=…) are for when a deadline= has passed")
        if default is not NOT_GIVEN and on_timeout is not None:
            raise UsageError("pause(): give default= or on_timeout=, not both")
        self._check_open("pause")
        if key is not None and key.isdigit():
            raise UsageError(f"pause(key={key!r}): numbers are for questions without a key; use a word")
        self._asked = getattr(self, "_asked", 0) + 1
        place = self.scope.place(self.node)
        name = (key or str(self._asked)).replace(":", "::")  # so that no two ids are the same
        question_id = f"{place.replace(':', '::')}:{self.scope.prefix}{self.step}:{name}"
        if self.scope.keep is None:
            raise UsageError(
                "pause() needs a store to keep the run in: compile(store=…), or a CheckpointConfig with an interval"
            )
        if secret and self.scope.masker.plain_text:
            raise UsageError(
                "pause(secret=True): the store would keep the answer in plain text; give compile(encryption=…), set "
                "LIMPET_ENCRYPTION_KEY, or allow it with compile(allow_plain_text_secrets=True)"
            )
        limit = None if deadline is None else self._limit(question_id, deadline)
        question = question_for(
            question_id, self._discreet(str(prompt)), place, choices, schema, limit, secret
        )
        if question_id in self.scope.progress.answers:
            answer = self.scope.progress.answers[question_id]
            if secret:
                self.scope.masker.remember(answer)
            try:
                found = read_answer(detached_value(answer), schema)
            except ValueError as problem:
                why = "" if secret else f": {problem}"
                raise Pause(question, f" (the last answer was refused{why})") from problem
        elif limit is not None and question_id in self.scope.progress.timers and limit <= self.scope.timer():
            answer = found = self._unanswered(question, default, on_timeout)
        else:
            encode(question.to_data(), "question")
            raise Pause(question)
        if self.scope.plan.layers is not None:
            told = MASK if secret else detached_value(answer)
            self._saying("pause").answered(question_id, question.prompt, told)
        return found

    def sleep(
        self, duration: Span | None = None, *, until: datetime | None = None, key: str | None = None
    ) -> None:
        """See `limpet.sleep`."""
        self._check_open("sleep")
        if (duration is None) == (until is None):
            raise UsageError("sleep(seconds) or sleep(until=datetime): give one of them")
        if until is not None and not hasattr(until, "tzinfo"):
            raise UsageError(f"sleep(until=…) takes a datetime that knows its zone, not {until!r}")
        self._slept = getattr(self, "_slept", 0) + 1
        timer = f"sleep:{key or self._slept}"
        known, now = self.scope.progress.timers.get(timer), self.scope.timer()
        if known is None:
            known = moment_of(duration if until is None else until, now, "sleep()")
        if known > now:
            raise Sleep(timer, known)

    def _limit(self, question_id: str, deadline: Moment) -> float:
        """Until when a question can be answered: that is settled when it is first asked."""
        known = self.scope.progress.timers.get(question_id)
        return moment_of(deadline, self.scope.timer(), "pause(deadline=…)") if known is None else known

    def _unanswered(self, question: Question, default: Any, on_timeout: Callable[[], Any] | None) -> Any:
        """What counts as the answer to a question that nobody answered in time."""
        if default is not NOT_GIVEN:
            return default
        if on_timeout is not None:
            return on_timeout()
        raise DeadlinePassed(f"nobody answered {question.prompt!r} in time", self.run_id)

    def _discreet(self, text: str) -> str:
        """The text without what is secret in the states around here."""
        scope = self.scope
        outer = [] if scope.outer is None else [scope.outer.state]
        return scope.masker.hide(text, [scope.progress.state, *outer, scope.root.state, scope.root.config])

    def once(self, key: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """See `limpet.once`."""
        self._check_open("once")
        if not isinstance(key, str):
            raise UsageError(f"once(key, function, …): the key is a str, not {key!r}")
        self._check_unused(key)
        if key in self.scope.progress.memos:
            awaited, kept = self.scope.progress.memos[key]
            self._used(key)
            return _ready(detached_value(kept)) if awaited else detached_value(kept)
        value = function(*args, **kwargs)
        if hasattr(value, "__await__"):
            return self._kept_later(key, value)
        return self._kept(key, value, awaited=False)

    async def _kept_later(self, key: str, awaitable: Any) -> Any:
        from asyncio import to_thread

        value = await awaitable
        return await to_thread(self._kept, key, value, awaited=True)

    def _kept(self, key: str, value: Any, *, awaited: bool) -> Any:
        with self.scope.journal_lock:
            self._check_open("once")
            self._check_unused(key)
            memo = [awaited, detached_value(value)]
            if self.scope.keep is None:
                self.scope.progress.memos[key] = memo
            else:
                encode(value, f"once({key!r})")
                self.scope.keep(self.scope, key, memo)
            self._used(key)
        return value

    def close(self) -> None:
        """The call is over: what still runs of it, in a thread that was left behind, can keep nothing more."""
        if self.scope.journal_lock.held_by_loop:
            self.scope.task = None
            return
        with self.scope.journal_lock:
            self.scope.task = None

    def _check_unused(self, key: str) -> None:
        """A key stands for one result in one call of the node; else one would be taken for another."""
        if self.used is None:
            self.used = set()
        elif key in self.used:
            raise UsageError(f"once(): node {self.node!r} has used the key {key!r} before; give each its own")

    def _used(self, key: str) -> None:
        assert self.used is not None
        self.used.add(key)

    def _check_open(self, what: str) -> None:
        if self.scope.task is not self:
            raise UsageError(f"{what}(): the call of node {self.node!r} that this belongs to is over")


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
    """Stop the run until somebody answers, and return the answer.

    Inside a node. The run is saved with status `paused`, and the process may end. `resume(run_id, answer)`
    runs the node again from its first line, and this call then returns the answer. An answer must be one
    of `choices`, if given, and fit `schema`: a type, a JSON Schema dict or a pydantic model. Questions are
    told apart by their order in the node, or by `key`. A `secret` answer is never in events, logs or summaries.

    `deadline` is until when it can be answered: seconds, a `timedelta`, or a `datetime`. If nobody has by then, the
    node runs again and this call returns `default`, or what `on_timeout()` returns, or raises `DeadlinePassed`. A
    supervisor sees to that when the time has come; without one, it happens when the run is next resumed.
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
    """Let time pass, durably: so many seconds (or a `timedelta`), or until a `datetime`.

    Inside a node. The call of the node ends here, and when the time has come it is called again from its first line;
    this then returns at once. So keep what came before with `once`. The process may end meanwhile: whoever resumes
    the run waits for the rest, and under a supervisor the run lies in the store, held by nobody. Sleeps are
    told apart by their order in the node, or by `key`.
    """
    current("sleep").sleep(duration, until=until, key=key)


def once(key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` and keep its result durably, so that it isn't called again when the node is.

    Inside a node. After a pause, a crash or a failed attempt, the call with the same `key` in the same step
    returns the kept result. With an async function, await what this returns.
    """
    kept: T = current("once").once(key, function, *args, **kwargs)
    return kept


async def _ready(value: Any) -> Any:
    return value


def current(what: str) -> NodeContext:
    """The task that is running here. Raises `UsageError` outside of a node."""
    task = CURRENT.get()
    if task is None:
        raise UsageError(
            f"{what}() works inside a node of a running graph, in its own process, and none is running here"
        )
    return task
