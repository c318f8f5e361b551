"""What is seen of a run: events, their types, and what an observer is.

| type | data |
|---|---|
| `graph.start` | run_id, entry (None for a workflow) |
| `graph.complete` | run_id, exit_point (None for a workflow), iterations |
| `layer.start` | run_id, layer, tasks |
| `layer.complete` | run_id, layer |
| `node.start` | run_id, node, iteration, attempt |
| `node.complete` | run_id, node, iteration, error (bool), duration (seconds) |
| `node.retry` | run_id, node, attempt, delay (seconds), error |
| `node.sleep` | run_id, node, until (seconds since the epoch, by the store's clock) |
| `edge.evaluate` | from, to, result |
| `edge.transition` | from, to |
| `cycle.detected` | node, visit_count, iteration, path_length |
| `checkpoint.save` | run_id, node, step |
| `checkpoint.fail` | run_id, node, step, error; the run goes on without it (`on_save_error="continue"`) |
| `checkpoint.load` | run_id, node |
| `checkpoint.resume` | run_id, checkpoint_node, resume_node |
| `branch.start` | run_id, branch |
| `branch.complete` | run_id, branch, error (bool), duration (seconds) |
| `run.pause` | run_id, node, reason |
| `run.sleep` | run_id, node, due: nobody holds the run until then (seconds since the epoch, by the store's clock) |
| `run.fail` | run_id, node, error |
| `run.cancel` | run_id, node |
| `state.create`, `state.clone`, `state.set`, `state.merge` | what was done to a `State` |

A task of a workflow is a node. Events from inside a parallel branch, or a graph that a node runs, also have
`branch`: the names on the way there.
Events may gain keys in later versions; those above stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

STATE_CREATE = "state.create"
STATE_CLONE = "state.clone"
STATE_SET = "state.set"
STATE_MERGE = "state.merge"
GRAPH_START = "graph.start"
GRAPH_COMPLETE = "graph.complete"
NODE_START = "node.start"
NODE_COMPLETE = "node.complete"
NODE_RETRY = "node.retry"
NODE_SLEEP = "node.sleep"
EDGE_EVALUATE = "edge.evaluate"
EDGE_TRANSITION = "edge.transition"
CYCLE_DETECTED = "cycle.detected"
CHECKPOINT_SAVE = "checkpoint.save"
CHECKPOINT_FAIL = "checkpoint.fail"
CHECKPOINT_LOAD = "checkpoint.load"
CHECKPOINT_RESUME = "checkpoint.resume"
LAYER_START = "layer.start"
LAYER_COMPLETE = "layer.complete"
BRANCH_START = "branch.start"
BRANCH_COMPLETE = "branch.complete"
RUN_PAUSE = "run.pause"
RUN_SLEEP = "run.sleep"
RUN_FAIL = "run.fail"
RUN_CANCEL = "run.cancel"

EVENT_TYPES = (
    STATE_CREATE,
    STATE_CLONE,
    STATE_SET,
    STATE_MERGE,
    GRAPH_START,
    GRAPH_COMPLETE,
    NODE_START,
    NODE_COMPLETE,
    NODE_RETRY,
    NODE_SLEEP,
    EDGE_EVALUATE,
    EDGE_TRANSITION,
    CYCLE_DETECTED,
    CHECKPOINT_SAVE,
    CHECKPOINT_FAIL,
    CHECKPOINT_LOAD,
    CHECKPOINT_RESUME,
    LAYER_START,
    LAYER_COMPLETE,
    BRANCH_START,
    BRANCH_COMPLETE,
    RUN_PAUSE,
    RUN_SLEEP,
    RUN_FAIL,
    RUN_CANCEL,
)


class Event(NamedTuple):
    """One thing that happened in a run.

    `type` is one of `EVENT_TYPES`, `timestamp` is in seconds since the epoch, `source` names the graph
    (or other part) that it happened in, and `data` holds the rest. All observers of a run are handed
    the same event: read `data`, don't change it.
    """

    type: str
    timestamp: float
    source: str
    data: Mapping[str, Any]


class Observer(Protocol):
    """Watches runs. May be called from several threads at once, and keeps the run waiting meanwhile."""

    def on_event(self, event: Event) -> None:
        """Take note of the event. What this raises is logged; it never reaches the run."""
        ...


ObserverLike = Observer | Callable[[Event], None]
"""What is accepted as an observer: an object with `on_event`, or a function that takes the event."""
