"""Branches that run, and the groups that they belong to: the open branches of one loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from limpet.engine.loop.next_node import plan_of_branches
from limpet.engine.loop.run_context import WAITING, LoopStop
from limpet.graphs.parallel import FAIL
from limpet.graphs.plan import Plan
from limpet.journal.open_parallel_section import Key
from limpet.journal.store import FAILED, PAUSED, RUNNING
from limpet.journal.waits import FAILED_PHASE, reason_of

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop


def stops_on_error(loop: NodeLoop) -> bool:
    """Whether no task of a workflow begins after one has failed."""
    return loop.plan.layers is not None and loop.plan.layers.stops_on_error


class BranchGroup:
    """The open branches of one loop: those that wait to be begun, and how many are running.

    `parent` is the branch whose loop waits for them, or None where that is the run's own loop. `failing` says
    that one of them failed, so no other is begun; `stops_on_error` whether a failure means that.
    """

    __slots__ = (
        "failing",
        "is_flow",
        "limit",
        "loop",
        "on_error",
        "parent",
        "plan",
        "running",
        "stops_on_error",
        "until",
        "waiting",
    )

    def __init__(self, loop: NodeLoop, parent: Branch | None, limit: int) -> None:
        section = loop.progress.section
        assert section is not None
        self.loop = loop
        self.parent = parent
        self.running = 0
        self.failing = False
        self.plan, self.until = plan_of_branches(loop.plan, loop.progress)
        self.on_error = FAIL
        self.is_flow = section.flow is not None
        self.stops_on_error = section.layer is None or stops_on_error(loop)
        self.limit = limit
        opener = loop.plan.nodes[section.source].section
        if opener is not None and not section.inside:
            self.on_error = opener.on_error
            self.limit = min(limit, opener.max_concurrency or limit)
        self.waiting: deque[Key] = deque()
        for key, child in section.children.items():
            if child.done:
                continue
            if child.waits:
                loop.branch_stops[key] = LoopStop(WAITING, None, reason_of(child.waits))
            elif child.status == RUNNING:
                self.waiting.append(key)
            elif child.status == FAILED:
                # It failed before a supervisor resumed the run because it was time: that retries nothing.
                failed = loop.branch_loop(key, self.plan, self.until)
                loop.branch_stops[key] = LoopStop(FAILED, failed, child.reason or "", phase=FAILED_PHASE)
            else:
                # It stopped before this resume, and the resume didn't have what it waits for: it still waits.
                loop.branch_stops[key] = LoopStop(PAUSED, None, child.reason or "", questions=child.questions)

    def plan_for(self, key: Key) -> Plan:
        """The plan that one of the branches follows. A run may have added or changed a task of a data flow."""
        flow = self.loop.scope.flow
        if not self.is_flow or flow is None or not flow.changes_tasks:
            return self.plan
        assert self.plan.layers is not None
        name = str(key)
        return self.plan._replace(nodes=self.plan.layers.nodes_for(name, flow.progress.state["dag"][name]))


class Branch:
    """One branch that is running: `steps` is its loop, as a generator.

    `is_noted` says that the planner of its data flow knows that it is done.
    """

    __slots__ = ("group", "is_noted", "key", "progress", "steps")

    def __init__(self, group: BranchGroup, key: Key) -> None:
        self.group = group
        self.key = key
        loop = group.loop.branch_loop(key, group.plan_for(key), group.until)
        self.progress = loop.progress
        self.steps = loop.run_branch(group.on_error)
        self.is_noted = not group.is_flow


class FlowReport(Branch):
    """What is reported of finished tasks besides themselves. `steps` waits for the commit as a branch does."""

    __slots__ = ()

    def __init__(self, group: BranchGroup, steps: Generator[Any, Any, Any]) -> None:
        self.group = group
        self.key = ""
        self.progress = group.loop.progress
        self.steps = steps
        self.is_noted = True
