"""The events for the caller that iterates a run: those of a state graph, and those of a workflow.

Both report what is durable, at the same moments. A moment that a kind of graph has no event for gives none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from limpet.graphs.edges import CaughtError
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import MASK
from limpet.graphs.workflow.state import TASK_SKIPPED
from limpet.journal.encoding.codec import detached_value
from limpet.journal.open_parallel_section import Key
from limpet.journal.progress import Progress

if TYPE_CHECKING:
    from limpet.engine.loop.reporter import Reporter
    from limpet.engine.node_context.node_context import NodeContext

Event = dict[str, Any]


class StreamEvents:
    """The events of a state graph."""

    def layer_starts(self, reporter: Reporter, layer: int, tasks: Sequence[Key]) -> Sequence[Event]:
        """Tasks of a layer are about to run in parallel."""
        return ()

    def layer_saved(self, reporter: Reporter, layer: int, saved: str, at: float) -> Sequence[Event]:
        """All layers up to this one are done, and a checkpoint of that is saved."""
        return ()

    def tasks_skipped(self, reporter: Reporter, records: Iterable[Mapping[str, Any]]) -> Sequence[Event]:
        """Tasks were skipped."""
        return ()

    def node_starts(self, reporter: Reporter, ctx: NodeContext) -> Sequence[Event]:
        """A node is about to be called."""
        if not reporter.context.reporting.is_detailed:
            return ()
        event = {"type": "node_start", "node": ctx.node, "attempt": ctx.attempt, **_branch_of(reporter)}
        return (event,)

    def node_fails(
        self, reporter: Reporter, ctx: NodeContext, error: BaseException, delay: float | None
    ) -> Sequence[Event]:
        """A node has failed. It is tried again after `delay` seconds, or not at all if that is None."""
        if delay is None:
            return ()
        event = {
            "type": "retry",
            "node": ctx.node,
            "attempt": ctx.attempt,
            "delay": delay,
            "error": reporter.error_line(error),
            **_branch_of(reporter),
        }
        return (event,)

    def node_sleeps(self, reporter: Reporter, ctx: NodeContext, until: float) -> Sequence[Event]:
        """A node sleeps, which is saved, and is called again at the time `until`."""
        return ({"type": "sleep", "node": ctx.node, "until": until, **_branch_of(reporter)},)

    def step(self, reporter: Reporter) -> Sequence[Event]:
        """A node has completed, or an error edge leads on from it; its step is saved if the interval says so."""
        recorder = reporter.recorder
        assert recorder is not None
        event: Event = {
            "type": "state",
            "node": reporter.progress.made_by,
            "state": recorder.state_of(reporter.state),
            "update": recorder.newest_update(),
        }
        if recorder.removed:
            event["removed"] = list(recorder.removed)
        if reporter.progress.caught:
            event["error"] = str(CaughtError(*reporter.progress.caught))
        if reporter.nested:
            event["branch"] = reporter.scope.branch
        if not reporter.context.reporting.is_detailed:
            return (event,)
        return (event, *self._save(reporter))

    def _save(self, reporter: Reporter) -> Sequence[Event]:
        """What was saved since this was last reported."""
        saved = getattr(reporter.state, "_saved", None)
        if saved is None or saved == reporter.reported_save or reporter.context.save_error is not None:
            return ()
        reporter.reported_save = saved
        event = {
            "type": "checkpoint_saved",
            "node": reporter.progress.made_by,
            "checkpoint_id": saved,
            "timestamp": reporter.progress.at,
            "run_id": reporter.progress.run_id,
            **_branch_of(reporter),
        }
        return (event,)

    def branch_stops(self, reporter: Reporter, status: str, error: str | None) -> Sequence[Event]:
        """A branch has ended, or stopped."""
        event = {"type": "branch", "branch": reporter.scope.branch, "status": status}
        if error is not None:
            event["error"] = error
        return (event,)

    def save_fails(self, error: str) -> Sequence[Event]:
        """A checkpoint couldn't be saved, and the run continues without it."""
        return ({"type": "checkpoint_failed", "error": error},)

    def waits(self, event: Event, stopped: Progress) -> Sequence[Event]:
        """The run, or a branch of it, waits for an answer or an approval; `event` says where."""
        if not stopped.questions:
            return ({"type": "interrupt", **event},)
        asked = [detached_value(question.to_data()) for question in stopped.questions]
        return ({"type": "pause", **event, "questions": asked},)

    def run_completes(self, event: Event) -> Sequence[Event]:
        """The run is complete."""
        return ({"type": "final", **event},)

    def run_fails(self, event: Event) -> Sequence[Event]:
        """The run has failed."""
        return ({"type": "error", **event},)


class WorkflowStreamEvents(StreamEvents):
    """The events of a workflow."""

    def layer_starts(self, reporter: Reporter, layer: int, tasks: Sequence[Key]) -> Sequence[Event]:
        event = {"type": "layer_start", "layer": layer, "tasks": list(tasks)}
        return ({**event, **_branch_of(reporter)},)

    def layer_saved(self, reporter: Reporter, layer: int, saved: str, at: float) -> Sequence[Event]:
        event = {
            "type": "checkpoint_saved",
            "checkpoint_id": saved,
            "timestamp": at,
            "layer": layer,
            "run_id": reporter.progress.run_id,
            **_branch_of(reporter),
        }
        return (event,)

    def tasks_skipped(self, reporter: Reporter, records: Iterable[Mapping[str, Any]]) -> Sequence[Event]:
        return [_skipped(reporter, record) for record in records]

    def node_starts(self, reporter: Reporter, ctx: NodeContext) -> Sequence[Event]:
        if not reporter.scope.in_layer:
            return ()
        return ({"type": "task_start", **_task(reporter, ctx.node), "attempt": ctx.attempt},)

    def node_fails(
        self, reporter: Reporter, ctx: NodeContext, error: BaseException, delay: float | None
    ) -> Sequence[Event]:
        if not reporter.scope.in_layer:
            return ()
        event = {
            "type": "task_error",
            **_task(reporter, ctx.node),
            "error": reporter.error_line(error),
            "attempt": ctx.attempt,
            "retry_in": delay,
        }
        return (event,)

    def node_sleeps(self, reporter: Reporter, ctx: NodeContext, until: float) -> Sequence[Event]:
        if not reporter.scope.in_layer:
            return super().node_sleeps(reporter, ctx, until)
        return ({"type": "sleep", **_task(reporter, ctx.node), "until": until},)

    def step(self, reporter: Reporter) -> Sequence[Event]:
        if not reporter.scope.in_layer:
            return self._layer_ends(reporter)
        name = str(reporter.progress.made_by)
        record = detached_value(reporter.state["tasks"][name])
        if record["status"] == TASK_SKIPPED:
            return (_skipped(reporter, record),)
        if record.get("secret"):
            record["result"] = MASK
        return ({"type": "task_complete", **_task(reporter, name), **_without(record, "id", "layer")},)

    def branch_stops(self, reporter: Reporter, status: str, error: str | None) -> Sequence[Event]:
        return ()

    def waits(self, event: Event, stopped: Progress) -> Sequence[Event]:
        place = {"run_id": event["run_id"], "checkpoint_id": event["checkpoint_path"]}
        return tuple(
            {
                "type": "decision_required",
                "task": question.node,
                **_without(detached_value(question.to_data()), "node"),
                **place,
            }
            for question in stopped.questions
        )

    def run_completes(self, event: Event) -> Sequence[Event]:
        return ({"type": "workflow_complete", **event},)

    def run_fails(self, event: Event) -> Sequence[Event]:
        event = {"type": "error", **event, "task": event["node"]}
        if "checkpoint_path" in event:
            event["checkpoint_id"] = event["checkpoint_path"]
        return (event,)

    def _layer_ends(self, reporter: Reporter) -> Sequence[Event]:
        """A layer is done, or the first one is to begin: the tasks that were skipped, and the checkpoint's id."""
        events: list[Event] = []
        ahead = reporter.scope.layers_ahead
        if ahead is not None:
            events = [_skipped(reporter, reporter.state["tasks"][name]) for name in ahead.skipped]
        # The planner's first step was before the first layer, which is number 0.
        done = reporter.progress.iterations - 2
        saved = getattr(reporter.state, "_saved", None)
        if saved is not None and done >= 0 and reporter.context.save_error is None:
            events += self.layer_saved(reporter, done, saved, reporter.progress.at)
        return events


def _task(reporter: Reporter, name: str) -> Event:
    """Which task an event is about."""
    outer = reporter.scope.outer
    assert outer is not None
    assert outer.section is not None
    if name in reporter.state.get("tasks", ()):
        layer = reporter.state["tasks"][name]["layer"]
    else:
        layer = outer.section.layer_of(name)
    return {"task": name, "layer": layer, **_branch_of(reporter)}


def _skipped(reporter: Reporter, record: Mapping[str, Any]) -> Event:
    return {
        "type": "task_skipped",
        "task": record["id"],
        "layer": record["layer"],
        "reason": record["reason"],
        **_branch_of(reporter),
    }


def _branch_of(reporter: Reporter) -> Event:
    branch = reporter.scope.reported_branch
    return {"branch": branch} if branch else {}


def _without(data: Event, *keys: str) -> Event:
    return {key: value for key, value in data.items() if key not in keys}


GRAPH_STREAM_EVENTS: Final = StreamEvents()
WORKFLOW_STREAM_EVENTS: Final = WorkflowStreamEvents()


def stream_events_for(plan: Plan) -> StreamEvents:
    """The events for runs of this plan."""
    return GRAPH_STREAM_EVENTS if plan.layers is None else WORKFLOW_STREAM_EVENTS
