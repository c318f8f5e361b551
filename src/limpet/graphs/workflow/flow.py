"""The planner of a workflow that runs as data flow: which tasks can begin, and which layers are done.

A task begins when all that it depends on is done. So that a resumed run equals one that was never interrupted, what a
task decides about other tasks reaches only tasks that depend on it: they can't have begun yet. For the same reason
it sees only what the tasks that it depends on have shared (`visible_state.py`).

The planner counts, for each task that hasn't begun, how many of its dependencies aren't done. It calls no code of the
user: the condition of a task is part of the task's own call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from limpet.graphs.plan import budget_reason
from limpet.graphs.workflow.dag_edits import DagEdits, failed_dependency, is_own_decision, reason_for_skip
from limpet.graphs.workflow.layers import Layers
from limpet.graphs.workflow.order import Order, earlier_tasks, order_of
from limpet.graphs.workflow.state import TASK_COMPLETED, TASK_SKIPPED
from limpet.graphs.workflow.task_report import ADD_TASK, REFUSED, SKIP_LAYERS, SKIP_TASKS
from limpet.graphs.workflow.task_specs import TaskSpec
from limpet.graphs.workflow.tasks import skipped_record
from limpet.journal.open_parallel_section import (
    ADD,
    BEGIN,
    MERGE,
    OUTSIDE,
    REFUSE,
    SKIP,
    OpenSection,
    Place,
    places_of,
)
from limpet.journal.progress import Progress

FEW_TASKS: Final = 64
"""Up to how many tasks may be under way for what all of them see to be looked for."""


class Shared(NamedTuple):
    """What a task has shared with those that depend on it."""

    layer: int = 0
    context: Mapping[str, Any] = {}
    messages: Sequence[Any] = ()
    decisions: Sequence[Mapping[str, Any]] = ()


class Flow:
    """The tasks of one run that haven't begun, and what they wait for. Rebuilt from the progress on a resume.

    `waits_for` has, for each task that hasn't begun, how many of its dependencies aren't done. `layer_of` has the
    layer of each task that isn't folded, `unfinished` how many tasks of each layer aren't done. `incomplete` are the
    tasks that failed or were skipped. `failure` is why no more tasks may begin, if the run has used up its layers.

    `shared` is what finished tasks have shared, `before` what was in the state before the flow began, and `later`
    what was added from outside since.
    """

    def __init__(self, layers: Layers, progress: Progress) -> None:
        self.layers = layers
        self.progress = progress
        self.failure = ""
        self.changes_tasks = progress.state["dag"] != layers.dag
        """Whether the run has other tasks than the code."""
        self.waits_for: dict[str, int] = {}
        self.needed_by: dict[str, list[str]] = {}
        """For each task that isn't done, those that depend on it and haven't begun."""
        self.layer_of: dict[str, int] = {}
        self.unfinished: dict[int, int] = {}
        self._by_layer: dict[int, list[str]] = {}
        self.last_layer = 0
        self.incomplete: set[str] = set()
        self.shared: dict[str, Shared] = {}
        self._merge_at = 2
        self._bits: dict[str, int] = {}
        self._ancestors: dict[str, int] = {}
        self.before = Shared()
        self.later: list[Shared] = []
        self._skips: dict[str, list[Mapping[str, Any]]] = {}
        """The decisions to skip a task, by the task."""
        self._ready: list[str] = []
        self._restore()

    @property
    def section(self) -> OpenSection:
        """The section that the tasks are in."""
        section = self.progress.section
        assert section is not None
        return section

    @property
    def places(self) -> Mapping[str, Place]:
        """The place of each task in the order of declaration."""
        flow = self.section.flow
        assert flow is not None
        return flow.places(self.progress.state["dag"])

    @property
    def layer_is_done(self) -> bool:
        """Whether all tasks of the current layer are done, and later layers have tasks."""
        layer = self.section.layer
        assert layer is not None
        return layer < self.last_layer and not self.unfinished.get(layer)

    def tasks_done(self, names: Iterable[str]) -> dict[str, Any]:
        """Note that tasks are done. Returns what their decisions change, as `advance` takes it."""
        children = self.section.children
        change: dict[str, Any] = {}
        for name in names:
            returned = children[name].state
            if len(returned) > 1:
                refused = self._apply_decisions(name, returned.get("decisions", ()), change)
                self._note_shared(name, returned, refused)
            self._finish(name, returned["tasks"][name]["status"])
        return change

    def begin_ready(self, change: dict[str, Any], at: float) -> dict[str, Any]:
        """Add to a change the tasks that can begin now, in the order of declaration, and those that are skipped."""
        begin: list[str] = []
        skipped: dict[str, Any] = {}
        added = change.get(ADD, {})
        while self._ready:
            name = self._ready.pop()
            if self.waits_for.get(name):
                continue  # another task was put before it
            data = added.get(name) or self.progress.state["dag"][name]
            reason = self._why_skipped(name, data) if self.incomplete or self._skips else ""
            if reason:
                skipped[name] = skipped_record(name, reason, self.layer_of[name], at)
                del self.waits_for[name]
                self._finish(name, TASK_SKIPPED)
            elif self.layer_of[name] >= self.layers.max_layers:
                self.failure = budget_reason("max_layers", self.layers.max_layers, "workflow")
            else:
                begin.append(name)
                del self.waits_for[name]
        if begin:
            places = places_of({**self.progress.state["dag"], **added}) if added else self.places
            begin.sort(key=places.__getitem__)
            change[BEGIN] = {name: self.layer_of[name] for name in begin}
        if skipped:
            change[SKIP] = {name: skipped[name] for name in sorted(skipped)}
        if begin and self.shared:
            self._note_ancestors(begin, added)
            merged = self._merge_shared(begin)
            if merged:
                change[MERGE] = merged
        return change

    def _merge_shared(self, begin: Sequence[str]) -> list[str]:
        """The folded tasks whose shared values all tasks to come see, as long as none before them is another case.

        Without this, the journal would keep all values that were ever shared. A task that hasn't begun comes after
        one that has, so only the latter count.
        """
        flow = self.section.flow
        assert flow is not None
        if len(flow.shared) < self._merge_at:
            return []
        running = [str(name) for name, child in self.section.children.items() if not child.done]
        running += begin
        if len(running) > FEW_TASKS:
            return []
        shared = sorted([name for name in flow.shared if name != OUTSIDE], key=self.order)
        merged = list(takewhile(lambda name: all(self.sees(each, name) for each in running), shared))
        # Not again until there are twice as many: looking at all of them each time would take long.
        self._merge_at = 2 * (len(shared) - len(merged)) + 2
        return merged

    def sees(self, name: str, earlier: str) -> bool:
        """Whether a task that has begun comes after another one. It is asked in the threads of tasks, too."""
        # A task without an entry began when nothing was shared, so nothing is there that it could see.
        return bool(self._ancestors.get(name, 0) & self._bits.get(earlier, 0))

    def _note_ancestors(self, names: Iterable[str], added: Mapping[str, Any]) -> None:
        """Note which tasks these come after, as bits of a number: for thousands of tasks, sets would take long."""
        dag = self.progress.state["dag"]
        if added:
            dag = {**dag, **added}
        for name in names:
            unexplored = [name]
            while unexplored:
                each = unexplored[-1]
                earlier = earlier_tasks(dag, each)
                unknown = [other for other in earlier if other not in self._ancestors]
                if unknown:
                    unexplored += unknown
                    continue
                unexplored.pop()
                found = 0
                for other in earlier:
                    found |= self._ancestors[other] | self._bits[other]
                self._bits.setdefault(each, 1 << len(self._bits))
                self._ancestors[each] = found

    def unfinished_tasks(self, layer: int) -> list[str]:
        """The tasks of a layer that aren't done, in the order of declaration."""
        names = [name for name in self._by_layer.get(layer, ()) if self._is_unfinished(name)]
        return sorted(names, key=self.places.__getitem__)

    def order(self, name: str) -> tuple[int, Place]:
        """By what tasks are sorted: by layer, and then in the order of declaration."""
        return self._layer(name), self.places[name]

    def _layer(self, name: str) -> int:
        layer = self.layer_of.get(name)
        if layer is None:
            layer = self.progress.state["tasks"][name]["layer"]
        return layer

    def _restore(self) -> None:
        """Count what each task waits for, from the progress: that of a new run, or that of a resumed one."""
        state = self.progress.state
        section = self.section
        assert section.flow is not None
        has_begun = section.children or section.layer or state["tasks"]
        if not (has_begun or self.changes_tasks):
            self._take(self.layers.order)
            return
        statuses = {name: record["status"] for name, record in state["tasks"].items()}
        for name, child in section.children.items():
            if child.done:
                statuses[str(name)] = child.state["tasks"][name]["status"]
        begun = {name: record["layer"] for name, record in state["tasks"].items()} | section.flow.layers
        self._take(order_of(state["dag"], begun, statuses.keys(), section.layer or 0))
        self.incomplete = {name for name, status in statuses.items() if status != TASK_COMPLETED}
        # Tasks that are done but not folded yet still have a layer, by which decisions are ordered.
        self.layer_of |= section.flow.layers
        self.last_layer = max(self.layer_of.values(), default=self.last_layer)
        self._restore_shared()
        for shared in self.shared.values():
            for decision in shared.decisions:
                if decision["kind"] == SKIP_TASKS and is_own_decision(decision):
                    self._note_skip(decision)

    def unapplied(self) -> dict[str, Any]:
        """What decisions of finished tasks change that the journal doesn't have: the process crashed before."""
        change: dict[str, Any] = {}
        dag = self.progress.state["dag"]
        for name, child in self.section.children.items():
            decisions = child.state.get("decisions", ()) if child.done else ()
            refused = {each.get("task") for each in decisions if each["kind"] == REFUSED}
            for decision in decisions:
                is_new = decision["kind"] == ADD_TASK and is_own_decision(decision)
                if is_new and decision["name"] not in dag and decision["name"] not in refused:
                    self._apply_decisions(str(name), [decision], change)
        return change

    def _take(self, counted: Order) -> None:
        """Begin with these counts, as copies: they change when tasks are done."""
        self.waits_for = counted.waits_for.copy()
        self.needed_by = counted.needed_by.copy()
        self.layer_of = counted.layer_of.copy()
        self._by_layer = counted.by_layer.copy()
        self.unfinished = {layer: len(names) for layer, names in counted.by_layer.items()}
        self.last_layer = max(counted.by_layer, default=self.section.layer or 0)
        self._ready = [name for name, count in self.waits_for.items() if not count]

    def _restore_shared(self) -> None:
        """Find out what was shared so far, and by which task."""
        state = self.progress.state
        section = self.section
        assert section.flow is not None
        decided: dict[str, list[Any]] = {}
        for decision in state["decisions"]:
            by = decision["by"].partition("/")[0]
            decided.setdefault(by if by in state["dag"] else OUTSIDE, []).append(decision)
        for name in {**section.flow.shared, **decided}:
            kept = section.flow.shared.get(name, {})
            layer = 0 if name == OUTSIDE else self._layer(name)
            self.shared[name] = Shared(
                layer, kept.get("context", {}), kept.get("messages", ()), decided.get(name, ())
            )
        self.before = self.shared.pop(OUTSIDE, Shared())
        self.later = [
            Shared(each.get("layer", 0), each.get("context", {}), each.get("messages", ()))
            for each in section.later
        ]
        for key, child in section.children.items():
            if child.done and key not in state["tasks"] and len(child.state) > 1:
                self._note_shared(str(key), child.state, [])
        if self.shared:
            self._note_ancestors([str(key) for key, child in section.children.items() if not child.done], {})

    def _note_shared(self, name: str, returned: Mapping[str, Any], refused: Sequence[Any]) -> None:
        self.shared[name] = Shared(
            self.layer_of[name],
            returned.get("context", {}),
            returned.get("messages", ()),
            [*returned.get("decisions", ()), *refused],
        )

    def _finish(self, name: str, status: str) -> None:
        """A task is done: those that waited for it alone are ready."""
        self.unfinished[self.layer_of[name]] -= 1
        if status != TASK_COMPLETED:
            self.incomplete.add(name)
        waits_for = self.waits_for
        for dependent in self.needed_by.get(name, ()):
            left = waits_for[dependent] = waits_for[dependent] - 1
            if not left:
                self._ready.append(dependent)

    def _apply_decisions(
        self, by: str, decisions: Iterable[Mapping[str, Any]], change: dict[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """Apply what a task has decided about tasks that depend on it. Returns what can't be applied."""
        edits = DagEdits(self.layers, self.progress.state, self.progress.run_id)
        edits.changed = change.get(ADD, {})
        for decision in decisions:
            if not is_own_decision(decision):
                continue
            if decision["kind"] == ADD_TASK:
                spec = edits.add_task(decision, lambda name: name not in self.waits_for)
                if spec is not None:
                    self._add(spec, decision.get("before", ()))
            elif decision["kind"] == SKIP_TASKS:
                self._note_skip(decision)
            elif decision["kind"] == SKIP_LAYERS:
                edits.refuse(decision, "the workflow runs as data flow, which has no layers to skip")
        if edits.changed:
            change[ADD] = edits.changed
            self.changes_tasks = True
        if edits.refused:
            change.setdefault(REFUSE, {})[by] = edits.refused
        return edits.refused

    def _add(self, spec: TaskSpec, before: Iterable[str]) -> None:
        """A task is added. It comes after the task that added it; those named in `before` come after it."""
        name = spec.name
        earlier = list(spec.dependencies)
        if spec.added_by in self.layer_of:
            earlier.append(str(spec.added_by))
        self.layer_of[name] = 1 + max(map(self._layer, earlier), default=(self.section.layer or 0) - 1)
        self._put_in_layer(name)
        unfinished = [each for each in spec.dependencies if self._is_unfinished(each)]
        self.waits_for[name] = len(unfinished)
        for each in unfinished:
            self.needed_by[each] = [*self.needed_by.get(each, ()), name]
        for each in before:
            self.waits_for[each] += 1
            self.needed_by[name] = [*self.needed_by.get(name, ()), each]
            self._move_after(each, self.layer_of[name])
        if not unfinished:
            self._ready.append(name)

    def _is_unfinished(self, name: str) -> bool:
        if name in self.waits_for:
            return True
        child = self.section.children.get(name)
        return child is not None and not child.done

    def _move_after(self, name: str, layer: int) -> None:
        """A task, and those that depend on it, come after a layer: their own layers may have to be later."""
        moved = [(name, layer)]
        while moved:
            each, earlier = moved.pop()
            if self.layer_of[each] > earlier:
                continue
            before = self.layer_of[each]
            self.unfinished[before] -= 1
            self._by_layer[before] = [other for other in self._by_layer[before] if other != each]
            self.layer_of[each] = earlier + 1
            self._put_in_layer(each)
            moved += [(dependent, earlier + 1) for dependent in self.needed_by.get(each, ())]

    def _put_in_layer(self, name: str) -> None:
        layer = self.layer_of[name]
        self._by_layer[layer] = [*self._by_layer.get(layer, ()), name]
        self.unfinished[layer] = self.unfinished.get(layer, 0) + 1
        self.last_layer = max(self.last_layer, layer)

    def _note_skip(self, decision: Mapping[str, Any]) -> None:
        for name in decision["tasks"]:
            self._skips.setdefault(name, []).append(decision)

    def _why_skipped(self, name: str, data: Mapping[str, Any]) -> str:
        """Why a task whose turn it is doesn't run; empty if it does."""
        decisions = self._skips.get(name)
        if decisions:
            return reason_for_skip(min(decisions, key=lambda each: self.order(each["by"])))
        if self.incomplete.isdisjoint(data.get("depends_on", ())):
            return ""
        return failed_dependency(data["depends_on"], self._status)

    def _status(self, name: str) -> str:
        child = self.section.children.get(name)
        if child is not None and child.done:
            return str(child.state["tasks"][name]["status"])
        if name in self.progress.state["tasks"]:
            return str(self.progress.state["tasks"][name]["status"])
        return TASK_SKIPPED  # it is skipped by the same change
