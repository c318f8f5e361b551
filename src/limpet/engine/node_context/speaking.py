"""What a task of a workflow can say through its `ctx`: messages, decisions, context, changes to what is to come.

All of it counts when the task completes, and is stored with its result.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from limpet.errors import UsageError, did_you_mean
from limpet.journal.encoding.codec import encode

if TYPE_CHECKING:
    from limpet.engine.node_context.scope import Scope
    from limpet.graphs.plan import PlanNode
    from limpet.graphs.workflow.state import TaskResult
    from limpet.graphs.workflow.task_report import TaskReport
    from limpet.journal.progress import Progress


class Speaking:
    """The part of a task that speaks. `said` is None while it has said nothing."""

    __slots__ = ("said",)

    scope: Scope
    plan_node: PlanNode
    said: TaskReport | None

    def add_message(self, message: Any, /) -> None:
        """Add a message to the workflow's, when the task completes."""
        self._saying("add_message").message(message)

    def add_decision(self, decision: str | Mapping[str, Any], /, **details: Any) -> None:
        """Add a decision to the workflow's, when the task completes: a text or a dict, with more details if you
        like.
        """
        self._saying("add_decision").decide(decision, details)

    def add_context(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Merge values into the workflow's context, when the task completes."""
        said = self._saying("add_context")
        said.share({} if values is None else values)
        said.share(more)

    def add_task(
        self,
        name: str,
        run: str | None = None,
        depends_on: Any = (),
        *,
        optional: Any = (),
        arguments: Mapping[str, Any] | None = None,
        before: Iterable[str] = (),
        may_fail: bool = False,
    ) -> None:
        """Decide that the run has one more task, which runs the code of the task or template `run`.

        It can depend on any task there is; those named in `before` will depend on it, or only optionally where it
        `may_fail`. This takes effect when the
        layer is done, if the task that calls it completes. Raises `UsageError` if there can't be such a task.
        """
        self._add(
            {"name": name, "run": run, "depends_on": depends_on, "optional": optional, "arguments": arguments,
             "before": before, "may_fail": may_fail}
        )  # fmt: skip

    def skip(self, *tasks: str, reason: str = "") -> None:
        """Decide that tasks which haven't begun aren't to run: their records say so, and why.

        Raises `UsageError` if there is no such task.
        """
        said = self._saying("skip")
        there = self._tasks(said)
        for name in tasks:
            if not isinstance(name, str) or name not in there:
                raise UsageError(f"skip(): there is no task {name!r}{did_you_mean(name, there)}")
        said.skip(tasks, reason)

    def skip_layers(self, count: int = 1, reason: str = "") -> None:
        """Decide that the next layers of the workflow aren't to run."""
        self._saying("skip_layers").skip_layers(count, reason)

    def _hear(self, final: Mapping[str, Any]) -> None:
        """A workflow inside of this task is done: what was decided in it was decided here."""
        decided = final.get("decisions") if "dag" in final else ()
        for each in decided or ():
            self._saying("a workflow").decisions.append({**each, "by": f"{self.plan_node.name}/{each['by']}"})

    def _take(self, result: TaskResult) -> None:
        """Say what a task returned besides its result. Raises `UsageError` for what can't be said."""
        self._saying("TaskResult").take(result)
        for each in result.add_tasks:
            self._add(each)
        if skipped := list(result.skip):
            self.skip(*skipped)

    def _add(self, given: Any) -> None:
        from limpet.graphs.workflow.task_report import task_to_add

        said, layers = self._saying("add_task"), self.scope.plan.layers
        assert layers is not None
        wanted = task_to_add(given)
        layers.check_new(wanted, self._tasks(said), self._flow.state["inputs"], said.by)
        encode(wanted, f"add_task({wanted['name']!r})")
        said.add_task(wanted)

    @property
    def _flow(self) -> Progress:
        """How far the workflow has come that it is a task of."""
        return (
            self.scope.outer if self.scope.outer is not None and self.scope.in_layer else self.scope.progress
        )

    def _tasks(self, said: TaskReport) -> Mapping[str, Any]:
        """What the workflow consists of, as far as this task knows."""
        return ChainMap(said.tasks, self._flow.state["dag"])

    def _saying(self, what: str) -> TaskReport:
        """What it has said so far, to be added to. Raises `UsageError` outside of a workflow."""
        if self.scope.task is not self:
            raise UsageError(
                f"{what}(): the call of task {self.plan_node.name!r} that this belongs to is over"
            )
        if self.scope.plan.layers is None:
            raise UsageError(
                f"{what} is for a task of a workflow; node {self.plan_node.name!r} returns what it changes"
            )
        if self.said is None:
            from limpet.graphs.workflow.task_report import TaskReport

            self.said = TaskReport(self.plan_node.name if self.scope.in_layer else "after_layer")
        return self.said
