"""The checkpoints of a workflow's runs, read from their journals by any process that shares the store."""

from __future__ import annotations

from typing import Any, NamedTuple

from limpet.engine.operations.stored_state import as_state, checkpoints, progress_of
from limpet.engine.sessions.session import CompiledGraph
from limpet.graphs.plan import PLANNER
from limpet.graphs.secrets import MASK, masked
from limpet.graphs.workflow.dag import layers_of
from limpet.graphs.workflow.redefinition import completed_layers
from limpet.graphs.workflow.state import WorkflowState
from limpet.graphs.workflow.task_report import ANSWER
from limpet.journal.open_section import Key
from limpet.journal.progress import Progress
from limpet.journal.reader import Checkpoint


class PauseInfo(NamedTuple):
    """A question that a task has asked, and the response, if there is one yet."""

    task: str
    question_id: str
    prompt: str
    response: Any = None
    answered: bool = False
    choices: list[Any] | None = None
    schema: dict[str, Any] | None = None
    secret: bool = False
    """Whether the response is kept to the task that asked: then a mask stands here for it."""


class WorkflowCheckpoint(NamedTuple):
    """All that a run of a workflow needs in order to go on from here.

    `layers` are all layers by the names of their tasks, of which the first `completed_layers` are done. `created`
    is in seconds since the epoch, `config` what the run was started with, `settings` how. `pauses` are the
    questions that are open, and those that were answered.
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
        told = {
            **self._asdict(),
            "inputs": masked(self.inputs, secrets),
            "config": masked(self.config, secrets),
        }
        told["dag"] = {name: masked(data, secrets) for name, data in self.dag.items()}
        return f"WorkflowCheckpoint({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def load(compiled: CompiledGraph, run_id: str, step: int | None) -> WorkflowCheckpoint:
    """A run's checkpoint after a step, or its newest."""
    progress = progress_of(compiled.need_client("checkpoint"), run_id, step)
    state = as_state(progress, compiled.plan)
    assert isinstance(state, WorkflowState)
    return WorkflowCheckpoint(
        checkpoint_id=f"{run_id}@{progress.step}",
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
    """The checkpoints of a run that are kept, one for each layer that was done, oldest first."""
    found = checkpoints(compiled.need_client("checkpoints"), run_id)
    layers = [each for each in found if each.node == PLANNER and each.branch is None and each.step > 1]
    return layers[-compiled.keep :] if compiled.keep is not None else layers


def _all_layers(progress: Progress) -> list[list[str]]:
    """The layers that were, the one that is open, and those that are to come."""
    tasks, section = progress.state["tasks"], progress.section
    layers: list[list[str]] = [[] for _ in range(completed_layers(progress))]
    for name, record in tasks.items():
        if record["layer"] < len(layers):
            layers[record["layer"]].append(name)
    running = [str(name) for name in section.children] if section is not None else []
    skipped = [
        name for name, record in tasks.items() if record["layer"] >= len(layers) and name not in running
    ]
    if running or skipped:
        layers.append([*running, *skipped])
    return [*layers, *map(list, layers_of(progress.state["dag"], {*tasks, *running}))]


def _pauses(progress: Progress, state: WorkflowState) -> list[PauseInfo]:
    inside = [each for _, branch in progress.under_way() for each in branch.state.get("decisions") or ()]
    answered = [
        PauseInfo(each["by"], each["question"], each["prompt"], each["answer"], True)
        for each in [*state.decisions, *inside]
        if isinstance(each, dict) and each.get("kind") == ANSWER
    ]
    given = [
        PauseInfo(
            _place(progress, path, branch),
            question,
            branch.asked.get(question, ""),
            MASK if question in branch.hidden else answer,
            True,
            secret=question in branch.hidden,
        )
        for path, branch in [((), progress), *progress.under_way()]
        for question, answer in branch.answers.items()
    ]
    still_open = [
        PauseInfo(
            each.node, each.id, each.prompt, choices=each.choices, schema=each.schema, secret=each.secret
        )
        for each in progress.open_questions()
    ]
    return [*answered, *given, *still_open]


def _place(progress: Progress, path: tuple[Key, ...], branch: Progress) -> str:
    return progress.way_to(path, branch.node) if path else branch.node
