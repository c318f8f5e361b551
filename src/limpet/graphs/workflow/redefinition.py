"""A workflow that was changed while runs of it were under way: what differs, and how a run goes on with the new one.

A run's tasks are stored with it. Finished ones are kept by their names; tasks that the code has now and the run
hasn't are added; tasks that are gone from the code are dropped, with their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError
from typing import Any, NamedTuple

from limpet.errors import DefinitionError, UsageError, WorkflowChanged
from limpet.graphs.workflow.dag import Dag, layers_of
from limpet.graphs.workflow.layers import Layers
from limpet.graphs.workflow.tasks import TaskSpec, read_spec
from limpet.journal.encoding.codec import encode
from limpet.journal.progress import Progress
from limpet.journal.store import COMPLETED
from limpet.journal.waits import Question


class ResumePlan(NamedTuple):
    """What a resume of a run would do, by the workflow as it is in the code now.

    `kept` are the finished tasks that won't run again, `layers` those that are to run. `new`, `changed` and `gone`
    say what is different in the code from what the run was saved with; `dropped` are the tasks that are gone whose
    results go with them. `questions` wait for an answer; `notes` say what else there is to know.
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
    anew: frozenset[str] = frozenset()
    """Tasks that were under way and can't go on from where they are."""
    inside: Mapping[str, ResumePlan] = {}
    """The same for workflows inside of tasks that are under way, where they have changed, by the way there."""

    @property
    def differs(self) -> bool:
        """Whether the tasks in the code aren't those that the run was saved with."""
        return bool(self.new or self.changed or self.gone or self.inside)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        layers = "1 layer" if self.completed_layers == 1 else f"{self.completed_layers} layers"
        yield f"run {self.run_id}: {self.status}, {layers} done"
        yield f"  kept:    {_listed(self.kept)}"
        yield from _account(self._replace(notes=[]))
        for number, names in enumerate(self.layers):
            yield f"  {'' if number else 'to run:':8} {_listed(names)}"
        for question in self.questions:
            yield f"  waits for an answer: {question.id}: {question.prompt}"
        for note in self.notes:
            yield f"  note:    {note}"
        for place, inner in self.inside.items():
            yield f"  the workflow at {place!r} has changed, too:"
            yield from _account(inner)


def plan_resume(layers: Layers, progress: Progress) -> ResumePlan:
    """What a resume would do. Changes nothing."""
    state, section = _state(progress), progress.section
    children = section.children if section is not None and section.layer is not None else {}
    finished = list(
        dict.fromkeys([*state["tasks"], *(str(name) for name, child in children.items() if child.done)])
    )
    then: Dag = state["dag"]
    now = _dag_now(layers, then, finished)
    changed = {
        name: _difference(then[name], now[name])
        for name in then
        if name in now and _comparable(then[name]) != _comparable(now[name])
    }
    gone = [name for name in then if name not in now]
    kept = [name for name in finished if name in now]
    done = set(kept)
    anew = {*gone, *(name for name in changed if not done.issuperset(_needs(now[name])))} - done
    open_ones = [str(name) for name, child in children.items() if not child.done and name not in anew]
    remaining = [list(names) for names in layers_of(now, {*kept, *open_ones})]
    stopped = [child for name, child in children.items() if name not in anew]
    return ResumePlan(
        run_id=progress.run_id,
        checkpoint_id=f"{progress.run_id}@{progress.step}",
        status=progress.status,
        completed_layers=completed_layers(progress),
        kept=kept,
        layers=[] if progress.status == COMPLETED else [open_ones, *remaining] if open_ones else remaining,
        new=[name for name in now if name not in then],
        changed=changed,
        gone=gone,
        dropped=[name for name in finished if name not in now],
        questions=[*progress.questions, *(each for child in stopped for each in child.open_questions())],
        notes=[*_left_without(then, now), *_lost(children, anew, now)],
        anew=frozenset(anew),
    )


def refit(layers: Layers, progress: Progress, workflow: str, place: str = "") -> bool:
    """Let a run go on with the tasks that are in the code now. Says whether anything had to be changed for that.

    `place` is where in the run the workflow is, if it isn't the run itself. Raises `WorkflowChanged` where that is
    the policy.
    """
    plan = plan_resume(layers, progress)
    if not plan.differs:
        return False
    account = "\n".join(_account(plan))
    if layers.on_mismatch == "fail":
        raise WorkflowChanged(progress.run_id, workflow, account, place)
    from logging import getLogger

    getLogger("limpet.run").warning(
        "workflow %s has changed since run %s was saved with it:\n%s", workflow, progress.run_id, account
    )
    state = _state(progress)
    now = _dag_now(layers, state["dag"], {*plan.kept, *plan.dropped})
    for name in [name for names in plan.layers for name in names]:
        if missing := layers.missing(read_spec(name, now[name]), state["inputs"], now):
            way_out = "give the parameter a default, as the inputs of a run can't be changed"
            raise UsageError(f"run {progress.run_id!r} can't go on: {missing}; {way_out}")
    dict.__setitem__(state, "dag", {name: dict(data) for name, data in now.items()})
    kept = {name: record for name, record in state["tasks"].items() if name not in plan.gone}
    dict.__setitem__(state, "tasks", kept)
    section = progress.section
    if section is not None and section.layer is not None:
        for key, child in list(section.children.items()):
            if key in plan.gone or (not child.done and key in plan.anew):
                del section.children[key]
    return True


def completed_layers(progress: Progress) -> int:
    """How many layers of a workflow's run are done."""
    section, visits = progress.section, sum(progress.visits.values())
    return section.layer if section is not None and section.layer is not None else max(0, visits - 1)


def _state(progress: Progress) -> dict[str, Any]:
    """Its state, or what that will be when it has begun."""
    return progress.state if progress.start is None else progress.start


def _dag_now(layers: Layers, then: Dag, finished: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The tasks in the code, and those that were added to the run, as far as their code and what they depend on are
    there, and nothing comes before itself.
    """
    done = set(finished)
    specs = [spec for name, data in then.items() if (spec := read_spec(name, data)).added_by is not None]
    added = [
        spec for spec in specs if spec.code in layers.codes and (spec.name in done or _fits(layers, spec))
    ]
    now = _with(layers, then, added)
    try:
        layers_of(now)
        return now
    except CycleError:
        possible: list[TaskSpec] = []
        for spec in added:
            try:
                layers_of(_with(layers, then, [*possible, spec]))
                possible.append(spec)
            except CycleError:
                continue
        return _with(layers, then, possible)


def _with(layers: Layers, then: Dag, added: list[TaskSpec]) -> dict[str, Mapping[str, Any]]:
    now = dict(layers.dag)
    waiting = [spec for spec in added if spec.name not in now]
    while ready := [spec for spec in waiting if all(each in now for each in spec.needs)]:
        now |= {spec.name: then[spec.name] for spec in ready}
        waiting = [spec for spec in waiting if spec.name not in now]
    there = [spec.name for spec in added if spec.name in now]
    for name in layers.dag:
        needs, needed = now[name].get("depends_on", []), then.get(name, {}).get("depends_on", ())
        more = [each for each in needed if each in there and each not in needs]
        if more:
            now[name] = {**now[name], "depends_on": [*needs, *more]}
    return now


def _fits(layers: Layers, spec: TaskSpec) -> bool:
    """Whether the code takes what the task gives it."""
    try:
        layers.node(spec)
    except DefinitionError:
        return False
    return True


def _left_without(then: Dag, now: Dag) -> Iterable[str]:
    """What was put before a task that is gone, so that nobody takes its result."""
    for name in then:
        left = [
            each for each in then[name].get("depends_on", ()) if each in now and then[each].get("added_by")
        ]
        if name not in now and left:
            yield f"{_listed(left)} came before {name!r}, which is gone: nothing takes what they come to"


def _lost(children: Mapping[Any, Progress], anew: set[str], now: Dag) -> Iterable[str]:
    """What goes with tasks that were under way: they begin anew, or aren't there any more."""
    for name, child in children.items():
        if child.done or name not in anew:
            continue
        then = "it asks again, if it does" if name in now else "nobody asks it any more"
        for question in child.open_questions():
            yield f"the question {question.id!r} is gone with what {name!r} was: {then}"
        if child.memos:
            yield f"what {name!r} has kept with once() is gone with what it was: {_listed(child.memos)}"


def _needs(data: Mapping[str, Any]) -> Iterable[str]:
    return (*data.get("depends_on", ()), *data.get("optional", ()))


def _comparable(data: Mapping[str, Any]) -> bytes:
    """What a task is, as far as that matters: not in which order it depends on others."""
    ordered = {key: sorted(data[key]) for key in ("depends_on", "optional") if key in data}
    return encode(dict(sorted({**data, **ordered}.items())))


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    told = []
    for key in sorted({*then, *now}):
        if encode(then.get(key)) != encode(now.get(key)):
            if key == "arguments":  # what they are is nobody's business
                told.append(f"its arguments {_listed(sorted({*then.get(key, ()), *now.get(key, ())}))}")
                continue
            word = "parameters" if key == "named" else key
            told.append(f"{word} was {then.get(key) or 'none'}, is {now.get(key) or 'none'}")
    return "; ".join(told)


def _account(plan: ResumePlan) -> Iterable[str]:
    if plan.new:
        yield f"  new:     {_listed(plan.new)}"
    for name, difference in plan.changed.items():
        yield f"  changed: {name!r} ({difference})"
    if plan.gone:
        lost = f"; the results of {_listed(plan.dropped)} go with that" if plan.dropped else ""
        yield f"  gone:    {_listed(plan.gone)}{lost}"
    for note in plan.notes:
        yield f"  note:    {note}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
