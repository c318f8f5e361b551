"""The steps of a workflow that runs as data flow: tasks begin when others are done, and layers are completed.

What `Flow` decides is recorded here, before the commit that makes the finished tasks durable. So one commit has the
result of a task, the tasks that begin because of it, and the layers that it completes. The tasks begin when that
commit is durable.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.engine.loop.node_outcomes import record, save_refused
from limpet.engine.loop.run_context import SAVE
from limpet.graphs.plan import PLANNER
from limpet.graphs.workflow.flow import Flow
from limpet.journal.open_parallel_section import BEGIN, SKIP
from limpet.journal.records import NO_CHANGE, step_record
from limpet.journal.waits import ADVANCE
from limpet.observe import events

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop


class LayerDone(NamedTuple):
    """A layer that is done: its number, and the step that is its checkpoint."""

    layer: int
    step: int
    checkpoint_id: str
    at: float


class Advance(NamedTuple):
    """What follows from tasks that are done."""

    begun: Sequence[str]
    skipped: Mapping[str, Mapping[str, Any]]
    layers: Sequence[LayerDone]

    @property
    def is_reported(self) -> bool:
        """Whether there is anything to report, besides the tasks themselves."""
        return bool(self.skipped or self.layers)


def start_flow(loop: NodeLoop) -> Advance:
    """The section of a data flow is open: find the tasks that can begin, and record them."""
    layers = loop.plan.layers
    assert layers is not None
    loop.scope.flow = flow = Flow(layers, loop.progress)
    return _advance(loop, flow, flow.unapplied())


def advance_flow(loop: NodeLoop, done: Sequence[str]) -> Advance:
    """Tasks are done: record what they decided, the tasks that begin now, and the layers that are done."""
    flow = loop.scope.flow
    assert flow is not None
    return _advance(loop, flow, flow.tasks_done(done))


def _advance(loop: NodeLoop, flow: Flow, change: dict[str, Any]) -> Advance:
    flow.begin_ready(change, loop.context.clocks.now())
    if change:
        record(loop, {ADVANCE: change})
    layers = []
    while flow.layer_is_done:
        layers.append(_complete_layer(loop))
    return Advance(list(change.get(BEGIN, ())), change.get(SKIP, {}), layers)


def _complete_layer(loop: NodeLoop) -> LayerDone:
    """All layers up to this one are done: fold it into the state, as a step of the planner."""
    p = loop.progress
    context = loop.context
    root = context.root
    writer = context.saving.writer
    at = context.clocks.now()
    section = p.section
    assert section is not None
    assert section.layer is not None
    done = section.layer
    p.fold_layer()
    loop.state.checkpoint_node = PLANNER
    loop.state._at = at
    p.complete(PLANNER, at, PLANNER)
    if loop.nested:
        root.step += 1
        root.at = at
    if writer is not None:
        writer.add_record_at(root, loop.scope.path, p.began, step_record(p, NO_CHANGE, PLANNER))
        writer.snapshot_if_due(root)
    checkpoint_id = f"{root.run_id}@{root.step}"
    if context.has_answers:
        checkpoint_id = root.checkpoint_id
    return LayerDone(done, root.step, checkpoint_id, at)


def report_advance(loop: NodeLoop, advance: Advance, saves: bool) -> Generator[Any, Any, None]:
    """Report what followed from finished tasks; if the run `saves` this step, once that is durable."""
    context = loop.context
    reporter = loop.reporter
    is_saved = False
    if saves:
        answer = yield SAVE
        if isinstance(answer, Exception):
            if (yield from save_refused(loop, answer)) is not None:
                return
        else:
            is_saved = True
    reporter.reported_iterations = loop.progress.iterations
    yield from reporter.stream(reporter.stream_events.tasks_skipped(reporter, advance.skipped.values()))
    for done in advance.layers:
        reporter.notify(events.LAYER_COMPLETE, layer=done.layer)
        if is_saved:
            loop.state._saved = done.checkpoint_id
            reporter.notify(events.CHECKPOINT_SAVE, node=PLANNER, step=done.step)
            saved = reporter.stream_events.layer_saved(reporter, done.layer, done.checkpoint_id, done.at)
            yield from reporter.stream(saved)
        yield from report_layer_start(loop, done.layer + 1)
    on_checkpoint = context.saving.on_checkpoint
    if advance.layers and is_saved and on_checkpoint is not None and not loop.nested:
        loop.checkpointed = context.root.iterations
        on_checkpoint()


def report_layer_start(loop: NodeLoop, layer: int) -> Generator[Any, Any, None]:
    """Report that all layers before this one are done; its tasks may have begun before."""
    reporter = loop.reporter
    if reporter.context.reporting.emit is None and not reporter.context.reporting.stream:
        return
    section = loop.progress.section
    assert section is not None
    left: list[Any] = []
    if section.flow is None:
        left = [key for key, child in section.children.items() if not child.done]
    elif loop.scope.flow is not None:
        left = loop.scope.flow.unfinished_tasks(layer)
    place = (f"{loop.scope.prefix}{loop.scope.branch}", layer)
    if not left or place in loop.context.started_layers:
        return  # all of them were done before, or the loop begins again after a wait
    loop.context.started_layers.add(place)
    reporter.notify(events.LAYER_START, layer=layer, tasks=list(left))
    yield from reporter.stream(reporter.stream_events.layer_starts(reporter, layer, left))
