"""One visit of a workflow's planner: what was decided is carried out, and the next layer is found."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.errors import UsageError, did_you_mean
from limpet.graphs.workflow.dag import Dag, layers_of
from limpet.graphs.workflow.task_report import REFUSED
from limpet.graphs.workflow.tasks import read_spec, skipped
from limpet.journal.progress import Progress

if TYPE_CHECKING:
    from limpet.graphs.workflow.layers import Layers


class Ahead(NamedTuple):
    """What the planner's visit number `visit` came to: tasks that are ready, the layers after those, and whom it
    has skipped.
    """

    visit: int
    ready: tuple[str, ...]
    rest: tuple[tuple[str, ...], ...]
    skipped: tuple[str, ...]


class Planning:
    """One visit of the planner."""

    def __init__(self, layers: Layers, ctx: Any) -> None:
        progress: Progress = ctx.scope.progress
        planned: Ahead | None = ctx.scope.layers_ahead
        self.layers, self.ctx, self.progress, self.state = layers, ctx, progress, progress.state
        self.layer = ctx.visit - 1
        self.dag: dict[str, Any] = {}
        self.skips: dict[str, Any] = {}
        self.refused: list[dict[str, Any]] = []
        self.ready: tuple[str, ...] = ()
        self.skip_next = ""
        self.layers_to_skip = 0
        if ctx.visit == 1:
            self.rest: tuple[tuple[str, ...], ...] | None = layers.first
        else:
            self.rest = planned.rest if planned is not None and planned.visit == ctx.visit - 1 else None

    def decide(self, more: Iterable[Mapping[str, Any]]) -> None:
        """Carry out what the tasks of the layer have decided, and `more`."""
        section = self.progress.section
        children = section.children.values() if section is not None else ()
        for decision in [*(each for child in children for each in child.state.get("decisions", ())), *more]:
            match decision["kind"] if "/" not in decision["by"] else "":  # that of a workflow inside is done
                case "add_task":
                    self._add(decision)
                case "skip_tasks":
                    self._skip(decision)
                case "skip_layers":
                    self.layers_to_skip += decision["layers"]
                    self.skip_next = _because(decision)

    def go_on(self) -> None:
        """Find the next layer that has a task to run; the others are skipped, with the reason."""
        if self.rest is None:
            self.rest = layers_of(self._dag(), {**self.state["tasks"], **self.skips})
        while self.rest and not self.ready:
            done = {**self.state["tasks"], **self.skips} if self.skips else self.state["tasks"]
            seen = {**self.state, "tasks": done, **self._shared()}
            names, self.rest = self.rest[0], self.rest[1:]
            if self.layers_to_skip:
                self.layers_to_skip -= 1
                for name in names:
                    self._leave_out(name, self.skip_next)
            self.ready = tuple(name for name in names if name not in self.skips and self._runs(name, seen))
        if self.ready and self.layer >= self.layers.most:
            most = self.layers.most
            raise UsageError(f"max_layers ({most}) exceeded; a resume needs a workflow that allows more")
        self.ctx.scope.layers_ahead = Ahead(self.ctx.visit, self.ready, self.rest, tuple(self.skips))

    def update(self) -> dict[str, Any]:
        """What changes in the state."""
        said = self.ctx.task_report.update() if self.ctx.task_report is not None else {}
        if self.refused:
            said["decisions"] = [*said.get("decisions", ()), *self.refused]
        changes = {"tasks": self.skips, "dag": self.dag}
        return {**said, **{key: value for key, value in changes.items() if value}}

    def _shared(self) -> dict[str, Any]:
        """The context, as the handler has it."""
        said = self.ctx.task_report
        return (
            {"context": {**self.state["context"], **said.context}}
            if said is not None and said.context
            else {}
        )

    def _dag(self) -> Dag:
        return ChainMap(self.dag, self.state["dag"]) if self.dag else self.state["dag"]

    def _runs(self, name: str, seen: Mapping[str, Any]) -> bool:
        data = self.dag.get(name) or self.state["dag"][name]
        spec = self.layers.specs.get(name)
        if spec is None or data != self.layers.dag[name]:
            spec = read_spec(name, data)
        try:
            reason = self.layers.why_not(spec, seen, self.ctx)
        except Exception as problem:
            problem.add_note(f"in the condition of task {name!r}")
            raise
        if reason:
            self._leave_out(name, reason)
        return not reason

    def _leave_out(self, name: str, reason: str) -> None:
        self.skips[name] = skipped(name, reason, self.layer, self.ctx.began)

    def _add(self, decision: Mapping[str, Any]) -> None:
        try:
            spec = self.layers.check_new(decision, self._dag(), self.state["inputs"], decision["by"])
            if spec.name in self._dag():
                return  # it is there already, as it was to be
            late = [
                name
                for name in decision.get("before", ())
                if name in self.state["tasks"] or name in self.skips
            ]
            if late:
                raise UsageError(f"add_task(): {late[0]!r} is done, so nothing can be put before it")
        except UsageError as problem:
            self._refuse(decision, str(problem))
            return
        self.dag[spec.name] = spec.to_data()
        kind = "optional" if decision.get("may_fail") else "depends_on"
        for name in decision.get("before", ()):
            data = self.dag.get(name) or self.state["dag"][name]
            self.dag[name] = {**data, kind: [*data.get(kind, ()), spec.name]}
        self.rest = None

    def _skip(self, decision: Mapping[str, Any]) -> None:
        for name in decision["tasks"]:
            if name not in self._dag():
                self._refuse(decision, f"there is no task {name!r}{did_you_mean(name, self._dag())}")
            elif name in self.state["tasks"]:
                self._refuse(decision, f"task {name!r} is done already")
            else:
                self._leave_out(name, _because(decision))
                self.rest = None

    def _refuse(self, decision: Mapping[str, Any], reason: str) -> None:
        """What can't be carried out is recorded as such, and keeps nobody from going on."""
        from logging import getLogger

        getLogger("limpet.run").warning("run %s: a decision is refused: %s", self.progress.run_id, reason)
        self.refused.append(
            {"kind": REFUSED, "by": decision["by"], "decision": decision["kind"], "reason": reason}
        )


def _because(decision: Mapping[str, Any]) -> str:
    return f"{decision['by']!r} decided so" + (f": {decision['reason']}" if decision.get("reason") else "")
