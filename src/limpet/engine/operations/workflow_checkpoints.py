"""The checkpoints of a workflow's runs, read from their journals by any process that shares the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.engine.operations.stored_state import as_state, checkpoints, progress_of
from limpet.engine.sessions.compatibility import check_same_graph
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.graphs.plan import PLANNER
from limpet.graphs.secrets import MASK, masked
from limpet.graphs.workflow.layers import layers_of
from limpet.graphs.workflow.order import order_of
from limpet.graphs.workflow.redefinition import completed_layers
from limpet.graphs.workflow.state import WorkflowState
from limpet.graphs.workflow.task_report import ANSWER
from limpet.journal.open_parallel_section import Key, OpenSection
from limpet.journal.progress import Progress
from limpet.journal.reader import Checkpoint, Point


class PauseInfo(NamedTuple):
    """A question that a task asked, and the response, if it was answered."""

    task: str
    question_id: str
    prompt: str
    response: Any = None
    answered: bool = False
    choices: list[Any] | None = None
    schema: dict[str, Any] | None = None
    secret: bool = False
    """Whether only the task that asked may see the response. Then `response` is a mask."""


class WorkflowCheckpoint(NamedTuple):
    """Everything that a run of a workflow needs in order to resume from here.

    `layers` are all layers by the names of their tasks, of which the first `completed_layers` are done. `created`
    is in seconds since the epoch, `config` what the run was started with, and `settings` how it was compiled.
    `pauses` are the questions that were answered, and those that are open.
    """

    checkpoint_id: str
    run_id: str
    workflow: str
    status: str
    inputs: dict[str, Any]
    layers: list[list[str]]
    completed_layers: int
    state: WorkflowState
    dag: dict[str, Any]
    config: dict[str, Any]
    settings: dict[str, Any]
    created: float
    pauses: list[PauseInfo]

    def __repr__(self) -> str:
        secrets: frozenset[str] = getattr(self.state, "_secrets", frozenset())
        shown = {
            **self._asdict(),
            "inputs": masked(self.inputs, secrets),
            "config": masked(self.config, secrets),
            "dag": {name: masked(data, secrets) for name, data in self.dag.items()},
        }
        return f"WorkflowCheckpoint({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def load(compiled: CompiledGraph, run_id: str, point: Point | None) -> WorkflowCheckpoint:
    """A run's checkpoint at a point, or its newest."""
    progress = progress_of(compiled.need_client("checkpoint"), run_id, *(point or (None,)))
    check_same_graph(compiled.plan, progress)
    state = as_state(progress, compiled.plan)
    assert isinstance(state, WorkflowState)
    return WorkflowCheckpoint(
        checkpoint_id=progress.checkpoint_id,
        run_id=run_id,
        workflow=progress.graph,
        status=progress.status,
        inputs=state.inputs,
        layers=_all_layers(progress),
        completed_layers=completed_layers(progress),
        state=state,
        dag=dict(state["dag"]),
        config=dict(progress.config),
        settings=dict(progress.meta.get("settings", {})),
        created=progress.at,
        pauses=_pauses(progress, state),
    )


def newest(compiled: CompiledGraph, run_id: str) -> list[Checkpoint]:
    """The checkpoints of a run that are kept, one for each completed layer, oldest first."""
    found = checkpoints(compiled.need_client("checkpoints"), run_id)
    layers = of_layers(found)
    keep = compiled.keep
    if found:
        keep = compiled.for_run(found[-1].metadata.get("settings")).keep
    if keep is None:
        return layers
    # The journal may still have older ones: they are deleted when that is cheap, not at once.
    return layers[-keep:]


def of_layers(found: list[Checkpoint]) -> list[Checkpoint]:
    """Those among the steps of a run that complete a layer of a workflow; none if it isn't a run of a workflow."""
    return [each for each in found if each.node == PLANNER and each.branch is None and each.step > 1]


def _all_layers(progress: Progress) -> list[list[str]]:
    """The completed layers, the one that is in progress, and those to come."""
    tasks = progress.state["tasks"]
    section = progress.section
    if section is not None and section.flow is not None:
        return _layers_of_flow(progress.state, section)
    completed: list[list[str]] = [[] for _ in range(completed_layers(progress))]
    for name, record in tasks.items():
        if record["layer"] < len(completed):
            completed[record["layer"]].append(name)
    running = [] if section is None else [str(name) for name in section.children]
    skipped = [
        name for name, record in tasks.items() if record["layer"] >= len(completed) and name not in running
    ]
    current = [*running, *skipped]
    to_come = map(list, layers_of(progress.state["dag"], {*tasks, *running}))
    if current:
        return [*completed, current, *to_come]
    return [*completed, *to_come]


def _layers_of_flow(state: Mapping[str, Any], section: OpenSection) -> list[list[str]]:
    """The layers of a data flow: those of tasks that have begun are known, the others follow from them."""
    assert section.flow is not None
    known = {name: record["layer"] for name, record in state["tasks"].items()} | section.flow.layers
    layers = order_of(state["dag"], known, first_layer=section.layer or 0).by_layer
    places = section.flow.places(state["dag"])
    return [sorted(layers[number], key=places.__getitem__) for number in sorted(layers)]


def _pauses(progress: Progress, state: WorkflowState) -> list[PauseInfo]:
    """The questions of a run. Those of finished tasks come first, then those of tasks in progress, then open ones."""
    return [*_decided(progress, state), *_answered(progress), *_open(progress)]


def _decided(progress: Progress, state: WorkflowState) -> list[PauseInfo]:
    """Answers that are recorded among the decisions of the workflow, and of workflows inside of its tasks."""
    inside = [
        each for _, branch in progress.branches_under_way() for each in branch.state.get("decisions") or ()
    ]
    return [
        PauseInfo(each["by"], each["question"], each["prompt"], each["answer"], answered=True)
        for each in [*state.decisions, *inside]
        if isinstance(each, dict) and each.get("kind") == ANSWER
    ]


def _answered(progress: Progress) -> list[PauseInfo]:
    """Answers to tasks that are still in progress."""
    found = []
    for path, branch in [((), progress), *progress.branches_under_way()]:
        task = _place(progress, path, branch)
        for question_id, answer in branch.answers.items():
            secret = question_id in branch.hidden
            found.append(
                PauseInfo(
                    task=task,
                    question_id=question_id,
                    prompt=branch.asked.get(question_id, ""),
                    response=MASK if secret else answer,
                    answered=True,
                    secret=secret,
                )
            )
    return found


def _open(progress: Progress) -> list[PauseInfo]:
    return [
        PauseInfo(
            task=each.node,
            question_id=each.id,
            prompt=each.prompt,
            choices=each.choices,
            schema=each.schema,
            secret=each.secret,
        )
        for each in progress.open_questions()
    ]


def _place(progress: Progress, path: tuple[Key, ...], branch: Progress) -> str:
    """Where a branch is, as users name it."""
    if not path:
        return branch.node
    return progress.path_name(path, branch.node)
