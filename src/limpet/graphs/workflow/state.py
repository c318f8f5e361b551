"""The state of a workflow: the records of its tasks, and the messages, decisions and context they added.

It is plain data under a few keys, each with a reducer, so that a layer adds to it and stores only what it added.
`WorkflowState` has properties that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from limpet.errors import UnknownKey, UsageError, did_you_mean
from limpet.graphs.reducers import Reducer, append, merge
from limpet.graphs.secrets import MASKED
from limpet.graphs.state import LiveState, State, TrackedState
from limpet.journal.encoding.user_types import register_type

TASK_COMPLETED: Final = "completed"
TASK_FAILED: Final = "failed"
TASK_SKIPPED: Final = "skipped"
TASK_STATUSES: Final = (TASK_COMPLETED, TASK_FAILED, TASK_SKIPPED)

REDUCERS: Final[Mapping[str, Reducer]] = {
    "messages": append,
    "tasks": merge,
    "decisions": append,
    "context": merge,
    "dag": merge,
}
OPEN_TO_UPDATES: Final = ("messages", "decisions", "context")
"""The keys that a caller may add to when it resumes or forks a run."""


class TaskRecord(NamedTuple):
    """The outcome of one task.

    `status` is `completed`, `failed` (if the task is safe to fail) or `skipped`, with the `reason`. `timestamp` is
    when that was, in seconds since the epoch, `duration` how many seconds the last attempt took. A task that isn't
    done has no record. The result of a `secret` one is masked in its `repr`.
    """

    id: str
    status: str
    result: Any = None
    timestamp: float = 0.0
    duration: float = 0.0
    attempts: int = 0
    layer: int = 0
    reason: str | None = None
    error: dict[str, Any] | None = None
    secret: bool = False

    def __repr__(self) -> str:
        values = self._asdict()
        if self.secret:
            values["result"] = MASKED
        else:
            del values["secret"]
        return f"TaskRecord({', '.join(f'{name}={value!r}' for name, value in values.items())})"


class TaskResult:
    """What a task may return instead of its bare result, with messages, decisions, context or changes of tasks.

    `value` is the result. `messages` and `decisions` are lists of entries to add, `context` a dict to merge into the
    workflow's. `add_tasks` are dicts with the arguments of `ctx.add_task`; `skip` names tasks to skip.
    """

    __slots__ = ("add_tasks", "context", "decisions", "messages", "skip", "value")

    def __init__(
        self,
        value: Any = None,
        *,
        messages: Iterable[Any] = (),
        decisions: Iterable[Any] = (),
        context: Mapping[str, Any] | None = None,
        add_tasks: Iterable[Mapping[str, Any]] = (),
        skip: Iterable[str] = (),
    ) -> None:
        self.value = value
        self.messages = messages
        self.decisions = decisions
        self.context = {} if context is None else context
        self.add_tasks = add_tasks
        self.skip = skip


class TaskResults(dict[str, Any]):
    """Results of tasks by name. A name that isn't among them is an `UnknownKey`, which suggests another."""

    __slots__ = ("_unfinished",)

    def __init__(self, results: Mapping[str, Any], unfinished: Mapping[str, str]) -> None:
        super().__init__(results)
        self._unfinished = unfinished
        """The statuses of the tasks that have no result, by name."""

    def __missing__(self, key: str) -> NoReturn:
        reason = f"there is no result of task {key!r}"
        if key in self._unfinished:
            reason += f": it is {self._unfinished[key]}"
        else:
            reason += did_you_mean(key, [*self, *self._unfinished])
        raise UnknownKey(key, (), reason=reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskResults, (dict(self), dict(self._unfinished))


register_type(
    TaskResults,
    name="limpet.TaskResults",
    to=lambda results: results.__reduce__()[1],
    restore=lambda parts: TaskResults(*parts),
)


class WorkflowState(State):
    """The state of a workflow's run: a dict of plain data, with properties that read it.

    `messages`, `decisions` and `context` are what tasks have added, `tasks` their records by name, `results` the
    results of those that completed. `inputs` is what the run was started with, `dag` has all of its tasks as data.
    """

    __slots__ = ()

    @property
    def inputs(self) -> dict[str, Any]:
        """What the run was started with."""
        return dict(self.get("inputs") or {})

    @property
    def messages(self) -> list[Any]:
        """The messages of tasks, in the order of layers and, in a layer, of the tasks."""
        return list(self.get("messages") or ())

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions of tasks, handlers and users, in the same order."""
        return list(self.get("decisions") or ())

    @property
    def context(self) -> dict[str, Any]:
        """The values that tasks share."""
        return dict(self.get("context") or {})

    @property
    def tasks(self) -> dict[str, TaskRecord]:
        """The records of the tasks that are done, by name."""
        return {name: TaskRecord(**data) for name, data in (self.get("tasks") or {}).items()}

    @property
    def results(self) -> dict[str, Any]:
        """The results of the tasks that completed, by name."""
        tasks = self.get("tasks") or {}
        completed = {name: data["result"] for name, data in tasks.items() if data["status"] == TASK_COMPLETED}
        return TaskResults(
            completed, {name: data["status"] for name, data in tasks.items() if name not in completed}
        )

    @property
    def checkpoint_id(self) -> str | None:
        """The id of the checkpoint that this state was saved as, if it was."""
        return getattr(self, "_saved", None)

    def check(self) -> None:
        """Raise a `UsageError` that lists what is invalid in this state, if anything is."""
        wrong = [*_wrong_shapes(self)] or [*_wrong_records(self)]
        if wrong:
            raise UsageError("this isn't a valid state of a workflow: " + "; ".join(wrong))

    def _blank(self) -> State:
        return WorkflowState.__new__(WorkflowState)

    def __reduce__(self) -> tuple[Any, ...]:
        provenance = (self.run_id, self.checkpoint_node, self._at, self.checkpoint_id)
        return _restore, (dict(self), *provenance, getattr(self, "_secrets", None))

    def __repr__(self) -> str:
        done = ", ".join(f"{name} {data['status']}" for name, data in (self.get("tasks") or {}).items())
        return f"<WorkflowState of run {self.run_id}: {done or 'nothing done yet'}>"


class LiveWorkflowState(LiveState, WorkflowState):
    """The state of a workflow's run as the engine has it."""

    __slots__ = ()


class WorkflowStateView(TrackedState, WorkflowState):
    """The state of a workflow's run as tasks and conditions get it: each value that they read is a copy."""

    __slots__ = ()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError("a task can't change the state; it returns its result, and adds more through ctx")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse


def _restore(
    data: dict[str, Any],
    run_id: str,
    node: str | None,
    at: float,
    saved: str | None,
    secrets: frozenset[str] | None = None,
) -> WorkflowState:
    made = WorkflowState(data, run_id=run_id, checkpoint_node=node, timestamp=at)
    made._saved = saved
    if secrets:
        made._secrets = secrets
    return made


register_type(
    WorkflowState,
    name="limpet.WorkflowState",
    to=lambda state: state.__reduce__()[1],
    restore=lambda stored: _restore(*stored),
)


def _wrong_shapes(state: State) -> Iterable[str]:
    for key, kind in (
        ("messages", list),
        ("decisions", list),
        ("tasks", dict),
        ("context", dict),
        ("dag", dict),
    ):
        if type(state.get(key)) is not kind:
            yield f"{key!r} is {type(state.get(key)).__name__}, not {kind.__name__}"


def _wrong_records(state: State) -> Iterable[str]:
    dag = state["dag"]
    tasks = state["tasks"]
    for name, data in tasks.items():
        status = data.get("status") if isinstance(data, dict) else None
        if name not in dag:
            yield f"task {name!r} has a record but isn't one of its tasks"
        elif not isinstance(data, dict):
            yield f"the record of task {name!r} is {type(data).__name__}, not dict"
        elif data.get("id") != name or status not in TASK_STATUSES:
            yield f"the record of task {name!r} says id {data.get('id')!r} and status {status!r}"
        elif status == TASK_SKIPPED and not data.get("reason"):
            yield f"task {name!r} was skipped without a reason"
        elif status == TASK_COMPLETED:
            for needed in dag[name].get("depends_on", ()):
                other = tasks.get(needed)
                if isinstance(other, dict) and other.get("status") != TASK_COMPLETED:
                    yield f"task {name!r} completed although {needed!r}, which it needs, didn't"
