"""Events: what happens in a run, the type and data of each, and what an observer is.

| type | when | data |
|---|---|---|
| `graph.start` | a run starts | run_id, entry (None for a workflow) |
| `graph.complete` | a run has completed | run_id, exit_point (None for a workflow), iterations |
| `layer.start` | a layer of a workflow starts | run_id, layer, tasks |
| `layer.complete` | all tasks of a layer are done | run_id, layer |
| `node.start` | a node is called | run_id, node, iteration, attempt |
| `node.complete` | a call has returned or raised | run_id, node, iteration, error (bool), duration (seconds) |
| `node.retry` | a call has failed and will be retried | run_id, node, attempt, delay (seconds), error |
| `node.output` | a node has emitted something | run_id, node, step, attempt, call, index, data |
| `node.progress` | a node says how far it is | run_id, node, step, attempt, call, done, total, message |
| `node.sleep` | a node sleeps | run_id, node, until (seconds since the epoch, by the store's clock) |
| `edge.evaluate` | the condition of an edge was evaluated | from, to, result |
| `edge.transition` | a run moves from one node to the next | from, to |
| `cycle.detected` | a node is visited again | node, visit_count, iteration, path_length |
| `checkpoint.save` | a step was saved | run_id, node, step |
| `checkpoint.fail` | a save failed and the run continues (`on_save_error="continue"`); or a run has completed, and a
user's store couldn't delete it | run_id, node, step, error |
| `checkpoint.load` | a stored run was read | run_id, node |
| `checkpoint.resume` | a run resumes | run_id, checkpoint_node, resume_node |
| `branch.start` | a parallel branch starts | run_id, branch |
| `branch.complete` | a parallel branch has ended | run_id, branch, error (bool), duration (seconds) |
| `run.pause` | a run pauses for an answer or an approval | run_id, node, reason |
| `run.sleep` | a run is released until it is due | run_id, node, due (seconds since the epoch, store's clock) |
| `run.wait` | a run is released until a message comes | run_id, node, waits (kind, name, node, deadline of each) |
| `run.fail` | a run has failed | run_id, node, error |
| `run.cancel` | a run was cancelled | run_id, node |
| `state.create`, `state.clone`, `state.set`, `state.merge` | a `State` was created, copied, changed | what was done |

A task of a workflow is a node. Events from inside a parallel branch, or from a graph that a node runs, also have
`branch`: the path to it.
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
NODE_OUTPUT = "node.output"
NODE_PROGRESS = "node.progress"
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
RUN_WAIT = "run.wait"
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
    NODE_OUTPUT,
    NODE_PROGRESS,
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
    RUN_WAIT,
    RUN_FAIL,
    RUN_CANCEL,
)
"""The types of all events. `docs/reference/events.md` lists what each has."""


class Event(NamedTuple):
    """One thing that happened in a run.

    `type` is one of `EVENT_TYPES`, `timestamp` is in seconds since the epoch, `source` names the graph
    (or other part) that it happened in, and `data` holds the rest. All observers of a run get the
    same event: read `data`, don't change it.
    """

    type: str
    timestamp: float
    source: str
    data: Mapping[str, Any]


class Observer(Protocol):
    """Watches runs. It may be called from several threads at once, and the run waits until it returns."""

    def on_event(self, event: Event) -> None:
        """Handle the event. An exception is logged and never reaches the run."""
        ...


ObserverLike = Observer | Callable[[Event], None]
"""What is accepted as an observer: an object with `on_event`, or a function that takes the event."""
