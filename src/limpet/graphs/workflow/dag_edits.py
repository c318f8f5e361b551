"""Changes of a run's tasks that its own tasks decided: tasks that were added, and that others now depend on."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from limpet.errors import UsageError
from limpet.graphs.workflow.layers import Dag, Layers
from limpet.graphs.workflow.state import TASK_COMPLETED, TASK_SKIPPED
from limpet.graphs.workflow.task_report import REFUSED
from limpet.graphs.workflow.task_specs import TaskSpec


class DagEdits:
    """What decisions change about the tasks of a run, until that is stored.

    `changed` are the tasks that are new or have more dependencies, as data. `refused` are the decisions that can't be
    applied, as decisions that say why.
    """

    __slots__ = ("_layers", "_run_id", "_state", "changed", "refused")

    def __init__(self, layers: Layers, state: Mapping[str, Any], run_id: str) -> None:
        self._layers = layers
        self._state = state
        self._run_id = run_id
        self.changed: dict[str, Any] = {}
        self.refused: list[dict[str, Any]] = []

    @property
    def dag(self) -> Dag:
        """The tasks with these changes."""
        if self.changed:
            return ChainMap(self.changed, self._state["dag"])
        return self._state["dag"]  # type: ignore[no-any-return]  # the state is a user's dict to mypy

    def add_task(self, decision: Mapping[str, Any], is_done: Callable[[str], bool]) -> TaskSpec | None:
        """Add the task that a decision describes; None if the run has it already, or it is refused."""
        dag = self.dag
        before = decision.get("before", ())
        try:
            spec = self._layers.check_new_task(decision, dag, self._state["inputs"], decision["by"])
            if spec.name in dag:
                return None  # another task has added the same task
            for name in before:
                if is_done(name):
                    raise UsageError(f"add_task(): {name!r} is done, so nothing can be put before it")
        except UsageError as problem:
            self.refuse(decision, str(problem))
            return None
        self.changed[spec.name] = spec.to_data()
        kind = "optional" if decision.get("may_fail") else "depends_on"
        for name in before:
            data = self.dag[name]
            self.changed[name] = {**data, kind: [*data.get(kind, ()), spec.name]}
        return spec

    def refuse(self, decision: Mapping[str, Any], reason: str) -> None:
        """Record a decision that can't be applied. The run continues without it."""
        from logging import getLogger

        getLogger("limpet.run").warning("run %s: a decision is refused: %s", self._run_id, reason)
        refusal = {"kind": REFUSED, "by": decision["by"], "decision": decision["kind"], "reason": reason}
        if "name" in decision:
            refusal["task"] = decision["name"]
        self.refused.append(refusal)


def is_own_decision(decision: Mapping[str, Any]) -> bool:
    """Whether a task of this workflow decided it. One of a workflow inside of a task was applied there."""
    return "/" not in decision["by"]


def reason_for_skip(decision: Mapping[str, Any]) -> str:
    """Why a task is skipped that a decision says is to be skipped."""
    reason = f"{decision['by']!r} decided so"
    if decision.get("reason"):
        reason += f": {decision['reason']}"
    return reason


def failed_dependency(dependencies: Iterable[str], status_of: Callable[[str], str]) -> str:
    """Why a task is skipped whose dependencies have these statuses; empty if all of them completed."""
    for needed in dependencies:
        status = status_of(needed)
        if status == TASK_SKIPPED:
            return f"{needed!r}, which it depends on, was skipped"
        if status != TASK_COMPLETED:
            return f"{needed!r}, which it depends on, failed"
    return ""
