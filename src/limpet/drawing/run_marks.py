"""How far a run has come in its graph: a mark for each shape of the outline, read from the run's journal.

Marks have names, counts, prompts of open questions and the types of errors. They never have a value of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from limpet.drawing.outline import map_id
from limpet.graphs.parallel import Section
from limpet.graphs.plan import END, PLANNER, START, Plan
from limpet.graphs.workflow.dag import Dag
from limpet.graphs.workflow.state import TASK_COMPLETED, TASK_SKIPPED
from limpet.journal.open_section import Key, OpenSection
from limpet.journal.progress import NESTED, PATH_KEPT, SNAPSHOT, STEP, Progress
from limpet.journal.reader import opened
from limpet.journal.store import COMPLETED, FAILED, PAUSED, RUNNING, Tail
from limpet.journal.waits import FAILED_PHASE

MarkKind = Literal["done", "running", "next", "paused", "failed", "skipped", "idle"]

_WEIGHT: Mapping[str, int] = {
    "idle": 0, "skipped": 1, "done": 2, "next": 3, "running": 4, "paused": 5, "failed": 6,
}  # fmt: skip


class Mark(NamedTuple):
    """How a shape stands. `visits` is how often its node has completed; `of` how many branches a map has.

    `detail` is the prompt of an open question, or the type of an error.
    """

    kind: MarkKind
    visits: int = 0
    detail: str = ""
    of: int = 0

    @property
    def words(self) -> str:
        """It in a few words."""
        if self.of:
            counted = f"{self.visits} of {self.of} done"
            return counted if self.kind == "done" else f"{_WORDS[self.kind]}, {counted}"
        word = f"{_WORDS[self.kind]}: {self.detail}" if self.detail else _WORDS[self.kind]
        if self.kind == "done":
            return f"done ×{self.visits}" if self.visits > 1 else "done"
        return word


_WORDS: Mapping[str, str] = {
    "done": "done", "running": "running", "next": "next", "paused": "paused", "failed": "failed",
    "skipped": "skipped", "idle": "not reached",
}  # fmt: skip


class RunMarks(NamedTuple):
    """How a run stands: its status, a mark for each shape by its id, and the lines it took, by the ids at their ends.

    `dag` has the tasks of a workflow as the run has them by now.
    """

    run_id: str
    status: str
    marks: Mapping[str, Mark]
    taken: frozenset[tuple[str, str]] = frozenset()
    dag: Dag | None = None
    note: str = ""

    def mark(self, shape: str) -> Mark:
        return self.marks.get(shape, _IDLE)


_IDLE = Mark("idle")


def marks_of_stored_run(plan: Plan, tail: Tail) -> RunMarks:
    """How a stored run stands, by its journal. Raises `DamagedRecord` for one that isn't what was written."""
    head = tail.head
    if not tail.records:
        completed = head.status == COMPLETED
        note = "what it did isn't kept; preserve=True keeps it" if completed else ""
        return RunMarks(head.run_id, head.status, {END: Mark("done")} if completed else {}, note=note)
    progress, tally = Progress(head.run_id, "", "", "", {}), _Tally(plan)
    for _, record in opened(tail):
        before = progress.step
        if record[0] == STEP:
            tally.follow(progress, (), record[4])
        elif record[0] == NESTED and record[5][0] == STEP:
            tally.follow(progress, record[4], record[5][4])
        progress.apply(record)
        if record[0] == NESTED and record[5][0] == STEP:
            tally.count(progress, record[4], record[5][4])
        elif record[0] == SNAPSHOT and progress.step != before:
            tally.go_back(progress)
    return _Survey(plan, tally).of(progress, head.status)


def marks_of_progress(plan: Plan, progress: Progress, status: str) -> RunMarks:
    """How a run stands by its progress alone, which doesn't know what was done in branches that are over."""
    tally = _Tally(plan)
    tally.go_back(progress)
    return _Survey(plan, tally).of(progress, status)


class _Scope(NamedTuple):
    """A plan that a part of a run goes through; the way there, which the ids of its shapes begin with; and the tasks
    of a workflow as the run has them.
    """

    plan: Plan
    prefix: str = ""
    dag: Dag | None = None

    def inside(self, progress: Progress) -> _Scope | None:
        """Where the branches of an open section are; None if the plan has changed and has no such place."""
        section = progress.section
        assert section is not None
        if section.layer is not None:
            return self._replace(dag=progress.state.get("dag"))
        if section.inside:
            return self.graph_in(section.source)
        if not section.own:
            return self
        node = self.plan.nodes.get(section.source)
        way = node.section if node is not None else None
        if way is None or way.sub is None:
            return None
        return _Scope(way.sub.plan, f"{self.prefix}{map_id(way)}/")

    def graph_in(self, name: str) -> _Scope | None:
        """The graph that a node or a task runs, if it runs one."""
        if self.plan.layers is None:
            node = self.plan.nodes.get(name)
            sub = node.sub if node is not None else None
        else:
            runs = ((self.dag or {}).get(name) or {}).get("run") or name
            code = self.plan.layers.codes.get(runs)
            sub = code.sub if code is not None else None
        return None if sub is None else _Scope(sub.plan, f"{self.prefix}{name}/")


class _Tally:
    """How often nodes of branches have completed, by the ids of their shapes, and which lines were taken there.

    A branch that is over forgets that, so it is counted along the journal; with the number of nodes that the run
    itself had completed by then, so that a run which goes back gets rid of what came after.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counted: list[tuple[int, str]] = []
        self.taken: set[tuple[str, str]] = set()
        self.ended: dict[str, _Scope] = {}

    def count(self, progress: Progress, path: Sequence[Key], node: str, times: int = 1) -> None:
        """A node of the branch that `path` leads to has completed."""
        found = self._find(progress, path)
        if found is not None and (found[0].plan.layers is None or node != PLANNER):
            self.counted += [(progress.iterations, found[0].prefix + node)] * times

    def follow(self, progress: Progress, path: Sequence[Key], node: str) -> None:
        """A node is about to complete, there or, without a path, in the run itself: note how it was come to."""
        found = self._find(progress, path)
        if found is None:
            return
        scope, here, origin = found
        inner = scope.inside(here) if here.section is not None else None
        if here.section is None or here.section.inside:
            self.taken.add((scope.prefix + here.made_by if here.made_by else origin, scope.prefix + node))
        if here.section is None or inner is None or here.section.layer is not None:
            return
        for child in here.section.children.values():
            if here.section.own:
                self.taken.add((inner.prefix + str(child.made_by), inner.prefix + END))
                self.ended[inner.prefix] = inner
            else:
                self.taken.add((scope.prefix + str(child.made_by), scope.prefix + node))
        if here.section.own and not here.section.inside:
            self.taken.add((inner.prefix.removesuffix("/"), scope.prefix + node))

    def _find(self, progress: Progress, path: Sequence[Key]) -> tuple[_Scope, Progress, str] | None:
        """Where a path leads to: the scope, the branch, and the id of what its first node follows."""
        scope, origin = _Scope(self.plan), START
        for key in path:
            section = progress.section
            inner = scope.inside(progress) if section is not None else None
            if inner is None or section is None:
                return None
            origin = _origin(scope, inner, section)
            scope, progress = inner, section.children[key]
        return scope, progress, origin

    def go_back(self, progress: Progress) -> None:
        """A whole record with a new number: the run goes on from there, whatever came after it before."""
        self.counted = [each for each in self.counted if each[0] < progress.iterations]
        for path, branch in progress.under_way():
            for node, visits in branch.visits.items():
                self.count(progress, path, node, visits)

    def total(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for _, place in self.counted:
            found[place] = found.get(place, 0) + 1
        return found


class _Survey:
    """The marks of a run, while they are put together. Of several for one shape, the weightiest counts."""

    def __init__(self, plan: Plan, tally: _Tally) -> None:
        self.plan, self.visits, self.taken, self.ended = plan, tally.total(), tally.taken, tally.ended
        self.marks: dict[str, Mark] = {}

    def of(self, progress: Progress, status: str) -> RunMarks:
        """How the run stands that has come so far."""
        top = _Scope(self.plan)
        if self.plan.layers is None:
            for node, visits in progress.visits.items():
                self.visits[node] = self.visits.get(node, 0) + visits
        for place, visits in self.visits.items():
            self._set(place, Mark("done", visits))
        for inner in self.ended.values():
            if any(place.startswith(inner.prefix) for place in self.visits):
                self._graph_done(inner)
        self._walk(top, progress, status, START)
        dag = progress.state.get("dag") if self.plan.layers is not None else None
        note = _between_layers(progress, status) if self.plan.layers is not None else ""
        return RunMarks(progress.run_id, status, self.marks, frozenset(self.taken), dag, note)

    def _set(self, place: str, mark: Mark) -> None:
        known = self.marks.get(place, mark)
        heavier = mark if _WEIGHT[mark.kind] > _WEIGHT[known.kind] else known
        self.marks[place] = heavier._replace(visits=max(known.visits, mark.visits))

    def _walk(self, scope: _Scope, progress: Progress, status: str, origin: str) -> None:
        """Mark where one part of the run is, and what follows from what it has done; and so for the parts inside.

        `origin` is the id of what its first node follows.
        """
        if scope.plan.layers is not None:
            self._tasks(scope, progress, status)
            return
        self._set(scope.prefix + START, Mark("done"))
        trail = [scope.prefix + node for node in (*progress.path, progress.node)]
        self.taken |= set(pairwise([origin, *trail] if progress.iterations < PATH_KEPT else trail))
        for node in progress.visits:
            self._implied(scope, node, progress)
        if progress.done:
            self._set(scope.prefix + END, Mark("done"))
        elif progress.section is not None:
            self._section(scope, progress, status)
        elif progress.node in scope.plan.nodes:
            self._set(scope.prefix + progress.node, _position(progress, status))

    def _implied(self, scope: _Scope, visited: str, progress: Progress) -> None:
        """Where a node has run, so has the graph inside of it, and if it is a fan-in, the branches before it."""
        self._graph_done(scope.graph_in(visited))
        for node in scope.plan.nodes.values():
            section = node.section
            if section is None or section.fan_in != visited or node.name not in progress.visits:
                continue
            if section.own and section.sub is not None:
                place = scope.prefix + map_id(section)
                self._set(place, Mark("done"))
                self._graph_done(_Scope(section.sub.plan, f"{place}/"))
            for entry in section.entries:
                self._branch_done(scope, section, entry)

    def _graph_done(self, inner: _Scope | None) -> None:
        if inner is not None:
            for end in (START, END):
                self._set(inner.prefix + end, Mark("done"))

    def _branch_done(self, scope: _Scope, section: Section, entry: str | None) -> None:
        """Mark a branch that is over, as far as there is only one way through it."""
        seen: set[str] = set()
        while entry is not None and entry not in seen and entry not in (section.fan_in, END):
            seen.add(entry)
            self._set(scope.prefix + entry, Mark("done", self.visits.get(scope.prefix + entry, 1)))
            self._graph_done(scope.graph_in(entry))
            node = scope.plan.nodes.get(entry)
            entry = node.follower if node is not None else None

    def _section(self, scope: _Scope, progress: Progress, status: str) -> None:
        """Mark the branches of a section that is open, and what stands for all of them."""
        section, inner = progress.section, scope.inside(progress)
        node = scope.plan.nodes.get(progress.section.source) if progress.section is not None else None
        if section is None or inner is None or node is None:
            return
        children, origin = list(section.children.values()), _origin(scope, inner, section)
        way = None if section.inside else node.section
        for key, child in section.children.items():
            if not child.done and child.start is None:
                self._walk(inner, child, status, origin)
            elif not child.done:
                self._set(inner.prefix + child.node, _position(child, status))
            elif way is not None and not way.own:
                self._branch_done(inner, way, way.each or str(key))
        together = _together(children, status)
        if section.inside:
            planning = inner.plan.layers is not None and any(map(_stopped_itself, children))
            self._set(scope.prefix + section.source, together if planning else together._replace(detail=""))
        elif way is not None and way.each is not None:
            place = scope.prefix + (map_id(way) if way.own else way.each)
            done = sum(child.done for child in children)
            self.marks[place] = together._replace(visits=done, of=len(children), detail="")

    def _tasks(self, scope: _Scope, progress: Progress, status: str) -> None:
        """The marks of tasks: those that came to something by their records, the others by the open layer."""
        scope = scope._replace(dag=progress.state.get("dag"))
        for name, data in (progress.so_far().get("tasks") or {}).items():
            kind: MarkKind = "done" if data["status"] == TASK_COMPLETED else "failed"
            kind = "skipped" if data["status"] == TASK_SKIPPED else kind
            self._set(scope.prefix + name, Mark(kind, int(kind == "done"), _type_of(data.get("error"))))
            if kind == "done":
                self._graph_done(scope.graph_in(name))
        section = progress.section
        if section is not None and section.layer is not None:
            for key, child in section.children.items():
                if not child.done:
                    self._task(scope, str(key), child, status)
        self._depended(scope)

    def _task(self, scope: _Scope, name: str, task: Progress, status: str) -> None:
        """Mark a task that isn't done, and the graph in it."""
        mark, deeper = _position(task, status), scope.graph_in(name)
        if task.section is not None:
            mark = _together(task.section.children.values(), status)._replace(detail="")
        if task.section is not None and deeper is not None:
            for inner in task.section.children.values():
                self._walk(deeper, inner, status, deeper.prefix + START)
        self._set(scope.prefix + name, mark)

    def _depended(self, scope: _Scope) -> None:
        """A dependency counts as taken where one task is done and the other has come to its turn."""
        for name, data in (scope.dag or {}).items():
            for needed in (*data.get("depends_on", ()), *data.get("optional", ())):
                ends = scope.prefix + needed, scope.prefix + name
                first, then = (self.marks.get(each, _IDLE).kind for each in ends)
                if first == "done" and then not in ("idle", "skipped"):
                    self.taken.add(ends)


def _origin(scope: _Scope, inner: _Scope, section: OpenSection) -> str:
    """The id of what the branches of a section follow: their own start, or the node that they branch off."""
    return inner.prefix + START if section.own else scope.prefix + section.source


def _between_layers(progress: Progress, status: str) -> str:
    """What stopped a workflow between two layers, where no task stands for it."""
    return f"{_position(progress, status).words}, between layers" if _stopped_itself(progress) else ""


def _stopped_itself(progress: Progress) -> bool:
    """Whether it stopped by itself, and not because something inside of it did."""
    return progress.status in (PAUSED, FAILED) and not any(progress.stops())


def _position(progress: Progress, status: str) -> Mark:
    """The mark of the node that a run, or a branch of it, stands at."""
    own = progress.status
    if own == FAILED or progress.phase == FAILED_PHASE:
        return Mark("failed", 0, _type_of(progress.error))
    if progress.questions:
        return Mark("paused", 0, " · ".join(question.prompt for question in progress.questions))
    if own == PAUSED:
        return Mark("paused")
    return Mark("running") if status == RUNNING and own == RUNNING else Mark("next")


def _together(children: Iterable[Progress], status: str) -> Mark:
    """The mark of what stands for several branches: that of the one which most wants to be looked at."""
    marks = []
    for child in children:
        if child.done:
            marks.append(Mark("done"))
        elif child.section is None or _stopped_itself(child):
            marks.append(_position(child, status))
        else:
            marks.append(_together(child.section.children.values(), status))
    return max(marks, key=lambda mark: _WEIGHT[mark.kind], default=Mark("done"))


def _type_of(error: Any) -> str:
    return str(error.get("type", "")) if isinstance(error, dict) else ""
