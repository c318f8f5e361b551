"""A workflow whose code changed while runs of it were under way: what differs, and how a run resumes with it.

A run's tasks are stored with it. Finished tasks are kept by their names. Tasks that are new in the code are added to
the run. Tasks that are gone from the code are dropped from it, with their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError
from typing import Any, NamedTuple

from limpet.errors import DefinitionError, UsageError, WorkflowChanged
from limpet.graphs.workflow.layers import Dag, Layers, layers_of
from limpet.graphs.workflow.order import dependencies_of, order_of
from limpet.graphs.workflow.task_specs import TaskSpec, read_spec
from limpet.journal.encoding.codec import encode
from limpet.journal.open_parallel_section import Key, places_of
from limpet.journal.progress import Progress
from limpet.journal.store import COMPLETED
from limpet.journal.waits import Question


class ResumePlan(NamedTuple):
    """What a resume of a run would do, with the workflow as it is in the code now.

    `kept` are the finished tasks, which won't run again, `layers` the tasks that will run. `new`, `changed` and
    `gone` are how the code differs from what the run was saved with; `dropped` are the finished tasks among those
    that are gone. `questions` wait for an answer; `notes` are further consequences.
    `str()` of it is a readable report.
    """

    run_id: str
    checkpoint_id: str
    status: str
    completed_layers: int
    kept: list[str]
    layers: list[list[str]]
    new: list[str]
    changed: dict[str, str]
    gone: list[str]
    dropped: list[str]
    questions: list[Question]
    notes: list[str]
    restarted: frozenset[str] = frozenset()
    """Tasks that were under way and have to start over."""
    inside: Mapping[str, ResumePlan] = {}
    """The same for changed workflows inside of tasks that are under way, by the path to each."""

    @property
    def differs(self) -> bool:
        """Whether the tasks in the code differ from those that the run was saved with."""
        return bool(self.new or self.changed or self.gone or self.inside)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        layers = "1 layer" if self.completed_layers == 1 else f"{self.completed_layers} layers"
        yield f"run {self.run_id}: {self.status}, {layers} done"
        yield f"  kept:    {_listed(self.kept)}"
        yield from _difference_lines(self._replace(notes=[]))
        label = "to run:"
        for names in self.layers:
            yield f"  {label:8} {_listed(names)}"
            label = ""
        for question in self.questions:
            yield f"  waits for an answer: {question.id}: {question.prompt}"
        for note in self.notes:
            yield f"  note:    {note}"
        for place, inner in self.inside.items():
            yield f"  the workflow at {place!r} has changed, too:"
            yield from _difference_lines(inner)


def plan_resume(layers: Layers, progress: Progress) -> ResumePlan:
    """What a resume would do. Changes nothing."""
    state = _state_of(progress)
    children = _open_tasks(progress)
    finished = _finished_tasks(progress)
    then: Dag = state["dag"]
    now = _current_dag(layers, then, finished)
    kept = [name for name in finished if name in now]
    gone = [name for name in then if name not in now]
    changed = {}
    for name in then:
        if name in now and _comparable(then[name]) != _comparable(now[name]):
            changed[name] = _difference(then[name], now[name])
    restarted = _restarted_tasks(gone, changed, now, set(kept))
    continued = [str(name) for name, child in children.items() if not child.done and name not in restarted]
    to_run: list[list[str]] = []
    if progress.status != COMPLETED:
        to_run = _layers_to_run(progress, now, kept, continued)
    questions = list(progress.questions)
    for key, child in children.items():
        if key not in restarted:
            questions += child.open_questions()
    return ResumePlan(
        run_id=progress.run_id,
        checkpoint_id=progress.checkpoint_id,
        status=progress.status,
        completed_layers=completed_layers(progress),
        kept=kept,
        layers=to_run,
        new=[name for name in now if name not in then],
        changed=changed,
        gone=gone,
        dropped=[name for name in finished if name not in now],
        questions=questions,
        notes=[*_unused_results(then, now), *_lost_answers_and_memos(children, restarted, now)],
        restarted=frozenset(restarted),
    )


def adopt_current_tasks(
    layers: Layers, progress: Progress, workflow: str, place: str = "", quiet: bool = False
) -> bool:
    """Make a run resume with the tasks that are in the code now. Returns whether that changed anything.

    `place` is where in the run the workflow is, if it isn't the run itself; `quiet` logs nothing. Raises
    `WorkflowChanged` if `on_mismatch` is "fail" and the tasks differ.
    """
    plan = plan_resume(layers, progress)
    if not plan.differs:
        return False
    differences = "\n".join(_difference_lines(plan))
    if layers.on_mismatch == "fail":
        raise WorkflowChanged(progress.run_id, workflow, differences, place)
    if not quiet:
        from logging import getLogger

        getLogger("limpet.run").warning(
            "workflow %s has changed since run %s was saved with it:\n%s",
            workflow,
            progress.run_id,
            differences,
        )
    state = _state_of(progress)
    now = _current_dag(layers, state["dag"], {*plan.kept, *plan.dropped})
    for names in plan.layers:
        for name in names:
            missing = layers.missing_input(read_spec(name, now[name]), state["inputs"], now)
            if missing:
                what_to_do = "give the parameter a default, as the inputs of a run can't be changed"
                raise UsageError(f"run {progress.run_id!r} can't be resumed: {missing}; {what_to_do}")
    # The live state refuses to be changed by its own methods.
    dict.__setitem__(state, "dag", {name: dict(data) for name, data in now.items()})
    kept = {name: record for name, record in state["tasks"].items() if name not in plan.gone}
    dict.__setitem__(state, "tasks", kept)
    children = _open_tasks(progress)
    for name in [*plan.gone, *plan.restarted]:
        child = children.get(name)
        if progress.section is not None and (name in plan.gone or (child is not None and not child.done)):
            progress.section.drop_task(name)
    return True


def _layers_to_run(
    progress: Progress, now: Dag, kept: Iterable[str], continued: list[str]
) -> list[list[str]]:
    """The layers that a resume runs; `continued` are the tasks that are under way."""
    section = progress.section
    if section is None or section.flow is None:
        to_run = [list(names) for names in layers_of(now, {*kept, *continued})]
        return [continued, *to_run] if continued else to_run
    done = frozenset(kept)
    begun = dict.fromkeys(done, 0) | {name: section.flow.layers[name] for name in continued}
    for name, record in progress.state["tasks"].items():
        begun[name] = record["layer"]
    order = order_of(now, begun, done, section.layer or 0)
    places = places_of(now)
    return [sorted(order.by_layer[layer], key=places.__getitem__) for layer in sorted(order.by_layer)]


def completed_layers(progress: Progress) -> int:
    """How many layers of a workflow's run are done."""
    if progress.section is not None and progress.section.layer is not None:
        return progress.section.layer
    return max(0, sum(progress.visits.values()) - 1)


def _state_of(progress: Progress) -> dict[str, Any]:
    """The state of a run, or the one that it will start with."""
    return progress.state if progress.start is None else progress.start


def _open_tasks(progress: Progress) -> dict[Key, Progress]:
    """The tasks of the open layer, if a layer is open."""
    section = progress.section
    if section is None or section.layer is None:
        return {}
    return section.children


def _finished_tasks(progress: Progress) -> list[str]:
    if progress.start is not None:
        return list(progress.start["tasks"])
    return list(progress.state_so_far()["tasks"])


def _restarted_tasks(gone: list[str], changed: Mapping[str, str], now: Dag, done: set[str]) -> set[str]:
    """The tasks that can't continue where they are: they are gone, or now depend on a task that isn't done."""
    restarted = set(gone)
    for name in changed:
        if not done.issuperset(dependencies_of(now[name])):
            restarted.add(name)
    return restarted - done


def _current_dag(layers: Layers, then: Dag, finished: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The tasks in the code, and the tasks that were added to the run and still fit: their code and their
    dependencies exist, and no task depends on itself.
    """
    done = set(finished)
    added = []
    for name, data in then.items():
        spec = read_spec(name, data)
        if spec.added_by is None or spec.definition not in layers.definitions:
            continue
        if spec.name in done or _accepts_arguments(layers, spec):
            added.append(spec)
    now = _with_added(layers, then, added)
    try:
        layers_of(now)
        return now
    except CycleError:
        # The new code has made a cycle with added tasks: keep those that don't take part in it.
        fitting: list[TaskSpec] = []
        for spec in added:
            try:
                layers_of(_with_added(layers, then, [*fitting, spec]))
                fitting.append(spec)
            except CycleError:
                continue
        return _with_added(layers, then, fitting)


def _with_added(layers: Layers, then: Dag, added: list[TaskSpec]) -> dict[str, Mapping[str, Any]]:
    """The tasks in the code and the added tasks whose dependencies exist."""
    now = dict(layers.dag)
    waiting = [spec for spec in added if spec.name not in now]
    while ready := [spec for spec in waiting if all(each in now for each in spec.dependencies)]:
        now |= {spec.name: then[spec.name] for spec in ready}
        waiting = [spec for spec in waiting if spec.name not in now]
    existing = [spec.name for spec in added if spec.name in now]
    for name in layers.dag:
        # Tasks that were added before this one stay before it.
        depends_on = now[name].get("depends_on", [])
        before = then.get(name, {}).get("depends_on", ())
        more = [each for each in before if each in existing and each not in depends_on]
        if more:
            now[name] = {**now[name], "depends_on": [*depends_on, *more]}
    return now


def _accepts_arguments(layers: Layers, spec: TaskSpec) -> bool:
    """Whether the function of a task takes the task's arguments."""
    try:
        layers.node(spec)
    except DefinitionError:
        return False
    return True


def _unused_results(then: Dag, now: Dag) -> Iterable[str]:
    """Notes about added tasks whose results no task takes any longer, as the task they were put before is gone."""
    for name in then:
        if name in now:
            continue
        depends_on = then[name].get("depends_on", ())
        unused = [each for each in depends_on if each in now and then[each].get("added_by")]
        if unused:
            yield f"{_listed(unused)} came before {name!r}, which is gone: no task takes their results"


def _lost_answers_and_memos(children: Mapping[Key, Progress], restarted: set[str], now: Dag) -> Iterable[str]:
    """Notes about questions and `once()` results of tasks that were under way and start over or are gone."""
    for name, child in children.items():
        if child.done or name not in restarted:
            continue
        for question in child.open_questions():
            if name in now:
                yield f"the question {question.id!r} is withdrawn, as {name!r} starts over: it may ask again"
            else:
                yield f"the question {question.id!r} is withdrawn, as {name!r} is gone"
        if child.memos:
            yield f"the once() results of {name!r} are dropped: {_listed(child.memos)}"


def _comparable(data: Mapping[str, Any]) -> bytes:
    """A task's data as bytes that don't depend on the order of its dependencies."""
    ordered = {key: sorted(data[key]) for key in ("depends_on", "optional") if key in data}
    return encode(dict(sorted({**data, **ordered}.items())))


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How a task's data differ, as text. The values of arguments aren't shown: they may be confidential."""
    differences = []
    for key in sorted({*then, *now}):
        if encode(then.get(key)) == encode(now.get(key)):
            continue
        if key == "arguments":
            names = sorted({*then.get(key, ()), *now.get(key, ())})
            differences.append(f"its arguments {_listed(names)}")
        else:
            label = "parameters" if key == "named" else key
            differences.append(f"{label} was {then.get(key) or 'none'}, is {now.get(key) or 'none'}")
    return "; ".join(differences)


def _difference_lines(plan: ResumePlan) -> Iterable[str]:
    if plan.new:
        yield f"  new:     {_listed(plan.new)}"
    for name, difference in plan.changed.items():
        yield f"  changed: {name!r} ({difference})"
    if plan.gone:
        line = f"  gone:    {_listed(plan.gone)}"
        if plan.dropped:
            line += f"; the results of {_listed(plan.dropped)} are dropped"
        yield line
    for note in plan.notes:
        yield f"  note:    {note}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
