"""How far a run has got in its graph: a mark for each shape of the outline, read from the run's journal.

Marks contain names, counts, prompts of open questions and the types of errors, never a value of the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from limpet.drawing.outline import map_id
from limpet.graphs.edges import END, START
from limpet.graphs.parallel import Section
from limpet.graphs.plan import PLANNER, Plan
from limpet.graphs.workflow.layers import Dag
from limpet.graphs.workflow.state import TASK_COMPLETED, TASK_SKIPPED
from limpet.graphs.workflow.stored_shape import check_workflows
from limpet.journal.open_parallel_section import Key, OpenSection
from limpet.journal.progress import PATH_KEPT, Progress
from limpet.journal.reader import ViewedTail, apply_checked, read_records
from limpet.journal.records import NESTED, SNAPSHOT, STEP
from limpet.journal.store import COMPLETED, FAILED, PAUSED, RUNNING, Tail
from limpet.journal.waits import FAILED_PHASE, awaited

MarkKind = Literal["done", "running", "next", "paused", "failed", "skipped", "idle"]

_URGENCY: Mapping[str, int] = {
    "idle": 0,
    "skipped": 1,
    "done": 2,
    "next": 3,
    "running": 4,
    "paused": 5,
    "failed": 6,
}
"""Which of several marks for one shape is shown: the most urgent."""

_WORDS: Mapping[str, str] = {
    "done": "done",
    "running": "running",
    "next": "next",
    "paused": "paused",
    "failed": "failed",
    "skipped": "skipped",
    "idle": "not reached",
}


class Mark(NamedTuple):
    """The mark of a shape. `visits` is how often its node has completed; `of` is how many branches a map has.

    `detail` is the prompt of an open question, or the type of an error.
    """

    kind: MarkKind
    visits: int = 0
    detail: str = ""
    of: int = 0

    @property
    def words(self) -> str:
        """The mark in a few words."""
        word = _WORDS[self.kind]
        if self.of:
            count = f"{self.visits} of {self.of} done"
            if self.kind == "done":
                return count
            return f"{word}, {count}"
        if self.kind == "done":
            if self.visits > 1:
                return f"done ×{self.visits}"
            return "done"
        if self.detail:
            return f"{word}: {self.detail}"
        return word


_IDLE = Mark("idle")


class RunMarks(NamedTuple):
    """How far a run has got: its status, the mark of each shape by its id, and the lines it took, by their ends.

    `dag` has the tasks of a workflow as the run has them by now. `note` is shown next to the status.
    """

    run_id: str
    status: str
    marks: Mapping[str, Mark]
    taken: frozenset[tuple[str, str]] = frozenset()
    dag: Dag | None = None
    note: str = ""

    def mark(self, shape_id: str) -> Mark:
        return self.marks.get(shape_id, _IDLE)


def marks_of_stored_run(plan: Plan, tail: Tail) -> RunMarks:
    """The marks of a run by its journal. Raises `DamagedRecord` if a record isn't what was written."""
    head = tail.head
    if not tail.records:
        if head.status != COMPLETED:
            return RunMarks(head.run_id, head.status, {})
        note = "what it did isn't kept; keep_result=True keeps it"
        return RunMarks(head.run_id, head.status, {END: Mark("done")}, note=note)
    progress = Progress(head.run_id, "", "", "", {})
    history = _BranchHistory(plan)
    for number, record in read_records(ViewedTail(*tail)):
        is_branch_step = record[0] == NESTED and record[5][0] == STEP
        step_before = progress.step
        if record[0] == STEP:
            history.note_lines_to(progress, (), record[4])
        elif is_branch_step:
            history.note_lines_to(progress, record[4], record[5][4])
        apply_checked(progress, number, record)
        if is_branch_step:
            history.count_visit(progress, record[4], record[5][4])
        elif record[0] == SNAPSHOT and progress.step != step_before:
            history.restart_from(progress)
    check_workflows(progress)
    return _Marker(plan, history).marks_of(progress, head.status)


def marks_of_progress(plan: Plan, progress: Progress, status: str) -> RunMarks:
    """The marks of a run by its progress alone, which no longer has the steps of branches that have ended."""
    history = _BranchHistory(plan)
    history.restart_from(progress)
    return _Marker(plan, history).marks_of(progress, status)


class _Scope(NamedTuple):
    """A plan that a part of a run goes through, with the prefix of its shapes' ids, and the tasks of a workflow."""

    plan: Plan
    prefix: str = ""
    dag: Dag | None = None

    def of_open_section(self, progress: Progress) -> _Scope | None:
        """The scope of the branches of the open section; None if the plan has changed and no longer has it."""
        section = progress.section
        assert section is not None
        if section.layer is not None:
            return self._replace(dag=progress.state.get("dag"))
        if section.inside:
            return self.of_graph_in(section.source)
        if not section.own_state:
            return self
        node = self.plan.nodes.get(section.source)
        way = node.section if node is not None else None
        if way is None or way.inner is None:
            return None
        return _Scope(way.inner.plan, f"{self.prefix}{map_id(way)}/")

    def of_graph_in(self, name: str) -> _Scope | None:
        """The scope of the graph that a node or task runs, if it runs one."""
        if self.plan.layers is None:
            owner: Any = self.plan.nodes.get(name)
        else:
            task = (self.dag or {}).get(name) or {}
            owner = self.plan.layers.definitions.get(task.get("run") or name)
        if owner is None or owner.inner is None:
            return None
        return _Scope(owner.inner.plan, f"{self.prefix}{name}/")


class _BranchHistory:
    """How often the nodes of branches have completed, by the ids of their shapes, and which lines were taken there.

    The progress of a run drops its branches when they end, so they are counted while the journal is read. Each visit
    is kept with the number of nodes that the run itself had completed by then: a rollback removes the later ones.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.visits: list[tuple[int, str]] = []
        self.taken: set[tuple[str, str]] = set()
        self.ended_scopes: dict[str, _Scope] = {}

    def count_visit(self, progress: Progress, path: Sequence[Key], node: str, times: int = 1) -> None:
        """Count a node that has completed in the branch at `path`."""
        found = self._branch_at(progress, path)
        if found is not None and (found[0].plan.layers is None or node != PLANNER):
            self.visits += [(progress.iterations, found[0].prefix + node)] * times

    def note_lines_to(self, progress: Progress, path: Sequence[Key], node: str) -> None:
        """Note the lines that led to a node which is about to complete; an empty path is the run itself."""
        found = self._branch_at(progress, path)
        if found is None:
            return
        scope, branch, origin = found
        section = branch.section
        shape_id = scope.prefix + node
        if section is None or section.inside:
            self.taken.add((scope.prefix + branch.made_by if branch.made_by else origin, shape_id))
        if section is None or section.layer is not None:
            return
        inner = scope.of_open_section(branch)
        if inner is None:
            return
        for child in section.children.values():
            if section.own_state:
                self.taken.add((inner.prefix + str(child.made_by), inner.prefix + END))
                self.ended_scopes[inner.prefix] = inner
            else:
                self.taken.add((scope.prefix + str(child.made_by), shape_id))
        if section.own_state and not section.inside:
            self.taken.add((inner.prefix.removesuffix("/"), shape_id))

    def restart_from(self, progress: Progress) -> None:
        """Forget what came after this point: the run was rolled back to it, or begins with it."""
        self.visits = [each for each in self.visits if each[0] < progress.iterations]
        for path, branch in progress.branches_under_way():
            for node, visits in branch.visits.items():
                self.count_visit(progress, path, node, visits)

    def visit_counts(self) -> dict[str, int]:
        return Counter(shape_id for _, shape_id in self.visits)

    def _branch_at(self, progress: Progress, path: Sequence[Key]) -> tuple[_Scope, Progress, str] | None:
        """The branch at a path: its scope, its progress, and the id of the shape that its first node follows."""
        scope = _Scope(self.plan)
        origin = START
        for key in path:
            section = progress.section
            inner = None if section is None else scope.of_open_section(progress)
            if inner is None or section is None or key not in section.children:
                return None
            origin = _origin(scope, inner, section)
            scope = inner
            progress = section.children[key]
        return scope, progress, origin


class _Marker:
    """Collects the marks of a run. If a shape gets several, the most urgent is kept."""

    def __init__(self, plan: Plan, history: _BranchHistory) -> None:
        self.plan = plan
        self.visits = history.visit_counts()
        self.taken = history.taken
        self.ended_scopes = history.ended_scopes
        self.marks: dict[str, Mark] = {}

    def marks_of(self, progress: Progress, status: str) -> RunMarks:
        """The marks of the run that has got this far."""
        is_workflow = self.plan.layers is not None
        if not is_workflow:
            for node, visits in progress.visits.items():
                self.visits[node] = self.visits.get(node, 0) + visits
        for shape_id, visits in self.visits.items():
            self._set(shape_id, Mark("done", visits))
        for scope in self.ended_scopes.values():
            if any(shape_id.startswith(scope.prefix) for shape_id in self.visits):
                self._mark_graph_done(scope)
        self._mark_part(_Scope(self.plan), progress, status, START)
        dag = None
        note = ""
        if is_workflow:
            dag = progress.state.get("dag")
            note = _note_between_layers(progress, status)
        return RunMarks(progress.run_id, status, self.marks, frozenset(self.taken), dag, note)

    def _set(self, shape_id: str, mark: Mark) -> None:
        known = self.marks.get(shape_id, mark)
        shown = known
        if _URGENCY[mark.kind] > _URGENCY[known.kind]:
            shown = mark
        self.marks[shape_id] = shown._replace(visits=max(known.visits, mark.visits))

    def _mark_part(self, scope: _Scope, progress: Progress, status: str, origin: str) -> None:
        """Mark the position of one part of the run, everything that its steps imply, and the parts inside it.

        `origin` is the id of the shape that its first node follows.
        """
        if scope.plan.layers is not None:
            self._mark_tasks(scope, progress, status)
            return
        self._set(scope.prefix + START, Mark("done"))
        trail = [scope.prefix + node for node in (*progress.path, progress.node)]
        if progress.iterations < PATH_KEPT:  # else the beginning of the path isn't kept
            trail.insert(0, origin)
        self.taken |= set(pairwise(trail))
        for node in progress.visits:
            self._mark_implied(scope, node, progress)
        if progress.done:
            self._set(scope.prefix + END, Mark("done"))
        elif progress.section is not None:
            self._mark_section(scope, progress, progress.section, status)
        elif progress.node in scope.plan.nodes:
            self._set(scope.prefix + progress.node, _position_mark(progress, status))

    def _mark_implied(self, scope: _Scope, visited: str, progress: Progress) -> None:
        """Mark what must be done if a node has completed: the graph inside it, and the branches before a fan-in."""
        self._mark_graph_done(scope.of_graph_in(visited))
        for node in scope.plan.nodes.values():
            section = node.section
            if section is None or section.fan_in != visited or node.name not in progress.visits:
                continue
            if section.own_state and section.inner is not None:
                shape_id = scope.prefix + map_id(section)
                self._set(shape_id, Mark("done"))
                self._mark_graph_done(_Scope(section.inner.plan, f"{shape_id}/"))
            for entry in section.entries:
                self._mark_branch_done(scope, section, entry)

    def _mark_graph_done(self, inner: _Scope | None) -> None:
        if inner is not None:
            for end in (START, END):
                self._set(inner.prefix + end, Mark("done"))

    def _mark_branch_done(self, scope: _Scope, section: Section, entry: str | None) -> None:
        """Mark the nodes of a branch that has ended, as far as only one way leads through it."""
        seen: set[str] = set()
        while entry is not None and entry not in seen and entry not in (section.fan_in, END):
            seen.add(entry)
            shape_id = scope.prefix + entry
            self._set(shape_id, Mark("done", self.visits.get(shape_id, 1)))
            self._mark_graph_done(scope.of_graph_in(entry))
            node = scope.plan.nodes.get(entry)
            entry = node.always_next if node is not None else None

    def _mark_section(self, scope: _Scope, progress: Progress, section: OpenSection, status: str) -> None:
        """Mark the branches of an open section, and the shape that stands for all of them."""
        inner = scope.of_open_section(progress)
        node = scope.plan.nodes.get(section.source)
        if inner is None or node is None:
            return
        origin = _origin(scope, inner, section)
        way = None if section.inside else node.section
        for key, child in section.children.items():
            if not child.done and child.start is None:
                self._mark_part(inner, child, status, origin)
            elif not child.done:
                self._set(inner.prefix + child.node, _position_mark(child, status))
            elif way is not None and not way.own_state:
                self._mark_branch_done(inner, way, way.each or str(key))
        children = list(section.children.values())
        most_urgent = _most_urgent_mark(children, status)
        if section.inside:
            is_planning = inner.plan.layers is not None and any(map(_stopped_by_itself, children))
            if not is_planning:
                most_urgent = most_urgent._replace(detail="")
            self._set(scope.prefix + section.source, most_urgent)
        elif way is not None and way.each is not None:
            shape_id = scope.prefix + (map_id(way) if way.own_state else way.each)
            done = sum(child.done for child in children)
            self.marks[shape_id] = most_urgent._replace(visits=done, of=len(children), detail="")

    def _mark_tasks(self, scope: _Scope, progress: Progress, status: str) -> None:
        """Mark the tasks of a workflow: those with an outcome by their records, the others by the open layer."""
        scope = scope._replace(dag=progress.state.get("dag"))
        for name, record in (progress.state_so_far().get("tasks") or {}).items():
            kind = _task_mark_kind(record["status"])
            mark = Mark(kind, int(kind == "done"), _error_type(record.get("error")))
            if kind == "skipped":  # the step of its condition isn't a visit
                self.marks.pop(scope.prefix + name, None)
            self._set(scope.prefix + name, mark)
            if kind == "done":
                self._mark_graph_done(scope.of_graph_in(name))
        section = progress.section
        if section is not None and section.layer is not None:
            for key, child in section.children.items():
                if not child.done:
                    self._mark_open_task(scope, str(key), child, status)
        self._note_dependencies(scope)

    def _mark_open_task(self, scope: _Scope, name: str, task: Progress, status: str) -> None:
        """Mark a task that has no outcome yet, and the graph that it runs."""
        mark = _position_mark(task, status)
        if task.section is not None:
            mark = _most_urgent_mark(task.section.children.values(), status)._replace(detail="")
            inner = scope.of_graph_in(name)
            if inner is not None:
                for child in task.section.children.values():
                    self._mark_part(inner, child, status, inner.prefix + START)
        self._set(scope.prefix + name, mark)

    def _note_dependencies(self, scope: _Scope) -> None:
        """Note a dependency as taken if its first task is done and its second has been reached."""
        for name, task in (scope.dag or {}).items():
            for needed in (*task.get("depends_on", ()), *task.get("optional", ())):
                source = scope.prefix + needed
                target = scope.prefix + name
                source_kind = self.marks.get(source, _IDLE).kind
                target_kind = self.marks.get(target, _IDLE).kind
                if source_kind == "done" and target_kind not in ("idle", "skipped"):
                    self.taken.add((source, target))


def _origin(scope: _Scope, inner: _Scope, section: OpenSection) -> str:
    """The id of the shape before the branches of a section: the start of their graph, or the node they follow."""
    if section.own_state:
        return inner.prefix + START
    return scope.prefix + section.source


def _note_between_layers(progress: Progress, status: str) -> str:
    """What stopped a workflow between two layers, where no shape can show it."""
    if not _stopped_by_itself(progress):
        return ""
    return f"{_position_mark(progress, status).words}, between layers"


def _stopped_by_itself(progress: Progress) -> bool:
    """Whether a part of the run has stopped for a reason that isn't inside one of its branches."""
    return progress.status in (PAUSED, FAILED) and not any(progress.stopped_branches())


def _position_mark(progress: Progress, status: str) -> Mark:
    """The mark of the node at which a run, or one of its branches, stands."""
    if progress.status == FAILED or progress.phase == FAILED_PHASE:
        return Mark("failed", 0, _error_type(progress.error))
    if words := awaited(progress):
        return Mark("paused", 0, words)
    if progress.status == PAUSED:
        return Mark("paused")
    if status == RUNNING and progress.status == RUNNING:
        return Mark("running")
    return Mark("next")


def _most_urgent_mark(branches: Iterable[Progress], status: str) -> Mark:
    """The mark of a shape that stands for several branches."""
    marks = []
    for branch in branches:
        if branch.done:
            marks.append(Mark("done"))
        elif branch.section is None or _stopped_by_itself(branch):
            marks.append(_position_mark(branch, status))
        else:
            marks.append(_most_urgent_mark(branch.section.children.values(), status))
    return max(marks, key=lambda mark: _URGENCY[mark.kind], default=Mark("done"))


def _task_mark_kind(task_status: str) -> MarkKind:
    if task_status == TASK_COMPLETED:
        return "done"
    if task_status == TASK_SKIPPED:
        return "skipped"
    return "failed"


def _error_type(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("type", ""))
    return ""
