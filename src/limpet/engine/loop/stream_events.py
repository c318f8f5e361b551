"""How events are worded for whoever iterates a run: those of a state graph, and those of a workflow.

Both speak of what is durable, at the same moments; a moment that one has no word for gives no event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from limpet.graphs.plan import Plan
from limpet.graphs.secrets import MASK
from limpet.journal.encoding.copies import detached_value
from limpet.journal.open_section import Key
from limpet.journal.progress import Progress

if TYPE_CHECKING:
    from limpet.engine.loop.reporter import Reporter
    from limpet.engine.node_context.node_context import NodeContext

Event = dict[str, Any]


class StreamEvents:
    """The words of a state graph."""

    def layer(self, walk: Reporter, layer: int, tasks: Sequence[Key]) -> Sequence[Event]:
        """Tasks of a layer are about to run beside each other."""
        return ()

    def begins(self, walk: Reporter, task: NodeContext) -> Sequence[Event]:
        """A node is about to be called."""
        return ()

    def fails(
        self, walk: Reporter, task: NodeContext, error: BaseException, delay: float | None
    ) -> Sequence[Event]:
        """A node has failed; it is tried again after `delay` seconds, or isn't (None)."""
        return ()

    def step(self, walk: Reporter) -> Sequence[Event]:
        """A node has completed, and that is saved where it is to be."""
        event = {"type": "state", "node": walk.progress.made_by, "state": walk.seen()}
        return ({**event, "branch": walk.scope.branch} if walk.nested else event,)

    def branch(self, walk: Reporter, status: str, error: str | None) -> Sequence[Event]:
        """A branch has come to its end, or to a stop."""
        failed = {} if error is None else {"error": error}
        return ({"type": "branch", "branch": walk.scope.branch, "status": status, **failed},)

    def save_error(self, error: str) -> Sequence[Event]:
        """A checkpoint couldn't be saved, and the run goes on all the same."""
        return ({"type": "checkpoint_failed", "error": error},)

    def stops(self, event: Event, stopped: Progress) -> Sequence[Event]:
        """The run, or a branch of it, waits for somebody; `event` says where."""
        if not stopped.questions:
            return ({"type": "interrupt", **event},)
        asked = [question.to_data() for question in stopped.questions]
        return ({"type": "pause", **event, "questions": asked},)

    def final(self, event: Event) -> Sequence[Event]:
        """The run is complete."""
        return ({"type": "final", **event},)

    def fails_for_good(self, event: Event) -> Sequence[Event]:
        """The run has failed."""
        return ({"type": "error", **event},)


class WorkflowStreamEvents(StreamEvents):
    """The words of a workflow."""

    def layer(self, walk: Reporter, layer: int, tasks: Sequence[Key]) -> Sequence[Event]:
        return ({"type": "layer_start", "layer": layer, "tasks": list(tasks), **self._where(walk)},)

    def begins(self, walk: Reporter, task: NodeContext) -> Sequence[Event]:
        if not walk.scope.in_layer:
            return ()
        return ({"type": "task_start", **self._which(walk, task.node), "attempt": task.attempt},)

    def fails(
        self, walk: Reporter, task: NodeContext, error: BaseException, delay: float | None
    ) -> Sequence[Event]:
        if not walk.scope.in_layer:
            return ()
        event = {
            "type": "task_error",
            **self._which(walk, task.node),
            "error": walk.told(error),
            "attempt": task.attempt,
        }
        return ({**event, "retry_in": delay},)

    def step(self, walk: Reporter) -> Sequence[Event]:
        if not walk.scope.in_layer:
            return self._layer_done(walk)
        name = walk.progress.made_by
        record = detached_value(walk.state["tasks"][name])
        if record.get("secret"):
            record["result"] = MASK
        return ({"type": "task_complete", **self._which(walk, str(name)), **_but(record, "id", "layer")},)

    def branch(self, walk: Reporter, status: str, error: str | None) -> Sequence[Event]:
        return ()

    def stops(self, event: Event, stopped: Progress) -> Sequence[Event]:
        place = {key: event[key] for key in ("run_id",)} | {"checkpoint_id": event["checkpoint_path"]}
        return tuple(
            {"type": "decision_required", "task": asked.node, **_but(asked.to_data(), "node"), **place}
            for asked in stopped.questions
        )

    def final(self, event: Event) -> Sequence[Event]:
        return ({"type": "workflow_complete", **event},)

    def fails_for_good(self, event: Event) -> Sequence[Event]:
        saved = {"checkpoint_id": event["checkpoint_path"]} if "checkpoint_path" in event else {}
        return ({"type": "error", **event, "task": event["node"], **saved},)

    def _layer_done(self, walk: Reporter) -> Sequence[Event]:
        """A layer is done, or the first one is to begin: who was skipped, and the id of the checkpoint."""
        p, planned, where = walk.progress, walk.scope.kept, self._where(walk)
        done = planned.visit - 2
        saved = getattr(walk.state, "_saved", None) if walk.context.save_error is None else None
        records = ((name, walk.state["tasks"][name]) for name in planned.skipped)
        events = [
            {
                "type": "task_skipped",
                "task": name,
                "layer": record["layer"],
                "reason": record["reason"],
                **where,
            }
            for name, record in records
        ]
        if saved is not None and done >= 0:
            event = {"type": "checkpoint_saved", "checkpoint_id": saved, "timestamp": p.at, "layer": done}
            events.append({**event, "run_id": p.run_id, **where})
        return events

    def _which(self, walk: Reporter, task: str) -> Event:
        section = walk.scope.outer.section if walk.scope.outer is not None else None
        assert section is not None
        return {"task": task, "layer": section.layer, **self._where(walk)}

    def _where(self, walk: Reporter) -> Event:
        return {"branch": branch} if (branch := walk.scope.around) else {}


def _but(data: Event, *keys: str) -> Event:
    return {key: value for key, value in data.items() if key not in keys}


GRAPH_STREAM_EVENTS, WORKFLOW_STREAM_EVENTS = StreamEvents(), WorkflowStreamEvents()


def stream_events_for(plan: Plan) -> StreamEvents:
    """The words for runs of this plan."""
    return GRAPH_STREAM_EVENTS if plan.layers is None else WORKFLOW_STREAM_EVENTS
