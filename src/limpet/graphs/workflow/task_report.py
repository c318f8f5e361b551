"""What a task reports besides its result: messages, decisions, context, and changes to the tasks still to run.

A change is a decision too. It takes effect when the task is done, or with barriers when its layer is. It reaches only
tasks that can't have begun by then. A task reports through its `ctx`, or by returning a `TaskResult`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from limpet.errors import UsageError, did_you_mean
from limpet.graphs.workflow.order import ancestors
from limpet.graphs.workflow.state import TaskResult
from limpet.journal.encoding.codec import encode

if TYPE_CHECKING:
    from limpet.graphs.workflow.layers import Layers

ADD_TASK: Final = "add_task"
SKIP_TASKS: Final = "skip_tasks"
SKIP_LAYERS: Final = "skip_layers"
ANSWER: Final = "answer"
DECISION: Final = "decision"
REFUSED: Final = "refused"

_ADD_TASK_KEYS: Final = ("name", "run", "depends_on", "optional", "arguments", "before", "may_fail")


class TaskReport:
    """What one call reports besides its result. It counts when the call completes, and is stored with its result.

    `layers` are the workflow's, and `state` is its state as the task sees it: changes to the workflow are checked
    against them. `is_flow` says that the workflow runs as data flow.
    """

    __slots__ = ("_is_flow", "_layers", "_state", "by", "context", "decisions", "messages", "tasks")

    def __init__(
        self,
        by: str,
        layers: Layers | None = None,
        state: Mapping[str, Any] | None = None,
        is_flow: bool = False,
    ) -> None:
        self.by = by
        self.messages: list[Any] = []
        self.decisions: list[dict[str, Any]] = []
        self.context: dict[str, Any] = {}
        self.tasks: dict[str, Any] = {}
        """The tasks to be added, by name."""
        self._layers = layers
        self._state = state
        self._is_flow = is_flow

    def message(self, message: Any) -> None:
        """Add a message."""
        self.messages.append(message)

    def decide(self, decision: Any, details: Mapping[str, Any]) -> None:
        """Add a decision: a text, or a dict. Raises `UsageError` for anything else."""
        if isinstance(decision, Mapping):
            data = {**decision, **details}
        elif isinstance(decision, str):
            data = {"decision": decision, **details}
        else:
            raise UsageError(f"a decision must be a str or a dict, not {type(decision).__name__}")
        _check_keys("a decision", data)
        self.decisions.append({**data, "kind": DECISION, "by": self.by})

    def share(self, values: Mapping[str, Any]) -> None:
        """Merge values into the context. Raises `UsageError` unless they are a dict by name."""
        if not isinstance(values, Mapping):
            raise UsageError(f"context must be a dict to be merged, not {type(values).__name__}")
        _check_keys("the context", values)
        self.context.update(values)

    def answered(self, question_id: str, prompt: str, answer: Any) -> None:
        """Add the answer to a question; a secret answer is given as a mask."""
        decision = {
            "kind": ANSWER,
            "by": self.by,
            "question": question_id,
            "prompt": prompt,
            "answer": answer,
        }
        self.decisions.append(decision)

    def add_task(self, given: Any) -> None:
        """Decide that the workflow has one more task. Raises `UsageError` if it can't have it."""
        assert self._layers is not None
        assert self._state is not None
        task = task_to_add(given)
        infer = given.get("depends_on") is None
        spec = self._layers.check_new_task(
            task, self._known_tasks, self._state["inputs"], self.by, infer=infer
        )
        if infer and spec.depends_on:
            task["depends_on"] = list(spec.depends_on)
        self._refuse_out_of_reach("add_task(before=…)", task.get("before", ()))
        encode(task, f"add_task({task['name']!r})")
        decision = {**task, "kind": ADD_TASK, "by": self.by}
        self.decisions.append(decision)
        self.tasks[task["name"]] = decision

    def skip(self, tasks: Iterable[str], reason: str) -> None:
        """Decide that tasks are skipped. Raises `UsageError` for a task that the workflow doesn't have."""
        names = list(tasks)
        known = self._known_tasks
        for name in names:
            if not isinstance(name, str) or name not in known:
                raise UsageError(f"skip(): there is no task {name!r}{did_you_mean(name, known)}")
        self._refuse_out_of_reach("skip()", names)
        self.decisions.append({"kind": SKIP_TASKS, "by": self.by, "tasks": names, "reason": reason})

    def skip_layers(self, count: int, reason: str) -> None:
        """Decide that the next layers are skipped. Raises `UsageError` where no layer waits for another."""
        if self._is_flow:
            raise UsageError(
                "skip_layers(): the workflow runs as data flow, so no layer waits for the one before; "
                "make it Workflow(layers=True), or skip() the tasks"
            )
        if type(count) is not int or count < 1:
            raise UsageError(f"skip_layers() takes a whole number of at least 1, not {count!r}")
        self.decisions.append({"kind": SKIP_LAYERS, "by": self.by, "layers": count, "reason": reason})

    def add_result(self, result: TaskResult) -> None:
        """Add what a task returned besides its value. Raises `UsageError` for what can't be added."""
        for kind in ("messages", "decisions", "skip", "add_tasks"):
            given = getattr(result, kind)
            if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
                raise UsageError(f"{kind} of a TaskResult must be a list, not {type(given).__name__}")
        self.messages += result.messages
        for decision in result.decisions:
            self.decide(decision, {})
        self.share(result.context)
        for task in result.add_tasks:
            self.add_task(task)
        if skipped := list(result.skip):
            self.skip(skipped, "")

    def add_inner_decisions(self, final: Mapping[str, Any]) -> None:
        """Add what was decided in a workflow that this task ran, given its final state."""
        for each in final["decisions"] or ():
            self.decisions.append({**each, "by": f"{self.by}/{each['by']}"})

    @property
    def has_more_than_answers(self) -> bool:
        """Whether anything is reported besides answers, which any function may ask for."""
        if self.messages or self.context:
            return True
        return any(each["kind"] != ANSWER for each in self.decisions)

    def update(self) -> dict[str, Any]:
        """All of it as an update of the state, without what is empty."""
        update: dict[str, Any] = {
            "messages": self.messages,
            "decisions": self.decisions,
            "context": self.context,
        }
        return {key: value.copy() for key, value in update.items() if value}

    def _refuse_out_of_reach(self, what: str, names: Iterable[str]) -> None:
        """Raise `UsageError` if a task of a data flow may have begun, because it doesn't depend on this one."""
        if not self._is_flow:
            return
        known = self._known_tasks
        for name in names:
            if name not in self.tasks and self.by not in ancestors(known, name):
                raise UsageError(
                    f"{what}: {name!r} doesn't depend on {self.by!r}, so it may have begun already; let it depend on "
                    f"{self.by!r}, or make the workflow one with barriers: Workflow(layers=True)"
                )

    @property
    def _known_tasks(self) -> Mapping[str, Any]:
        """The tasks of the workflow, as far as this task knows: those that others add meanwhile aren't known."""
        assert self._state is not None
        return ChainMap(self.tasks, self._state["dag"])


def report_of(ctx: Any, layers: Layers) -> TaskReport:
    """The report of a call that has nothing to report yet: that of a task, or of the handler after layers."""
    task = ctx.plan_node.workflow_task
    if task is None:
        return TaskReport("after_layer", layers, ctx.scope.progress.state)
    return TaskReport(ctx.node, layers, task.visible_state(ctx.scope), is_flow=ctx.scope.flow is not None)


def task_to_add(given: Any) -> dict[str, Any]:
    """The arguments of `add_task`, as data. Raises `UsageError` for those that it doesn't take."""
    if not isinstance(given, Mapping):
        raise UsageError(f"a task to be added is described by a dict, not {type(given).__name__}")
    unknown = [key for key in given if key not in _ADD_TASK_KEYS]
    if unknown or not isinstance(given.get("name"), str):
        takes = ", ".join(_ADD_TASK_KEYS)
        has = ", ".join(map(repr, given)) or "nothing"
        raise UsageError(
            f"a task to be added is described by {takes}, with a name that is a str, not by {has}"
        )
    return {key: value for key, value in given.items() if value}


def _check_keys(what: str, data: Mapping[Any, Any]) -> None:
    for key in data:
        if type(key) is not str:
            raise UsageError(f"{what} has strs as keys, not {type(key).__name__}: {key!r}")
