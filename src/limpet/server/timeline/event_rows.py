"""`EventRows`: takes the events of a run in order, and keeps the rows of its timeline up to date.

A journal says when steps end, not when they begin. So a step begins when the one before it in its lane has ended,
or when its branch began, and most steps have no row before they end. `active` says what is under way without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from limpet.errors import DeadlinePassed
from limpet.graphs.plan import PLANNER
from limpet.graphs.workflow.state import TASK_FAILED, TASK_SKIPPED
from limpet.server.timeline.lanes import Event, Lane, Lanes
from limpet.server.timeline.rows import (
    APPROVAL,
    BRANCH,
    CANCELLED,
    DONE,
    FAILED,
    MARK,
    PAUSED,
    RETRYING,
    RUNNING,
    SKIPPED,
    SLEEPING,
    STEP,
    TASK,
    WAITING,
    Row,
    RowLog,
    short,
)

MAX_ACTIVE: Final = 500
"""Steps under way that are listed."""

OF_CALLS: Final = ("output", "progress")
"""Events whose step is the one that their call will complete."""


class EventRows:
    """The rows of a run, as far as its events were taken, in `log`."""

    def __init__(self) -> None:
        self.log = RowLog()
        self._lanes = Lanes(self.log)
        self._asking: dict[str, Row] = {}
        """The rows that wait for answers, by the ids of their questions."""
        self._interrupted: list[Row] = []
        """The rows that wait for an approval."""
        self._timed: list[Row] = []
        """The rows that sleep, or wait before they are tried again."""
        self._has_stopped = False
        """Whether it failed or was cancelled, and wasn't resumed since."""
        self._gap = ""
        """Why rows are missing before the next event."""
        self._crashes: int | None = 0
        """How often processes of the run have crashed; None if that isn't known."""
        self._newest_step = 0

    @property
    def ready(self) -> float:
        """When the next step of the run itself can have begun."""
        return self._lanes.root.ready

    def active(self) -> list[dict[str, Any]]:
        """The steps that are under way if the run is, as far as is known, and have no row."""
        return list(islice(self._lanes.root.active(), MAX_ACTIVE))

    def wake(self, now: float) -> None:
        """A process executes the run: what waited until now is under way again, which makes no event."""
        still_timed = []
        for row in self._timed:
            if row.status in (RETRYING, SLEEPING):
                if list(row.waits)[-1][1] > now:
                    still_timed.append(row)
                    continue
                row.status = RUNNING
                self.log.touch(row)
        self._timed = still_timed

    def take(self, event: Event) -> None:
        """What happened next."""
        take = getattr(self, f"_take_{event['type']}", None)
        if take is None:
            return
        if event["type"] not in OF_CALLS:
            self._newest_step = event["step"]
        if self._gap and event["type"] != "skipped":
            self._add_mark("not kept", self._gap, event, SKIPPED)
            self._gap = ""
        take(event)

    # Steps, branches and tasks

    def _take_start(self, event: Event) -> None:
        self._lanes.root.ready = event["at"]
        self._lanes.root.next = event.get("next")

    def _take_step(self, event: Event) -> None:
        lane = self._lanes.of(event)
        if event.get("task"):
            self._end_task(lane, event)
            return
        row = self._completed_row(lane, event)
        self._note_beginning(lane, row, event)
        self._finish(row, event)
        lane.last = row
        lane.ready = event["at"]
        lane.next = event.get("next")
        lane.is_over = "next" in event and lane.next is None
        if lane.is_over and lane.row is not None and not lane.is_task:
            lane.row.stop(event["at"], DONE)
            self.log.touch(lane.row)

    def _completed_row(self, lane: Lane, event: Event) -> Row:
        """The row of a step that has completed."""
        node = event["node"]
        inner = lane.children.get(node)
        if inner is not None and inner.row is not None:
            self._lanes.end(inner, event["at"], DONE)
            del lane.children[node]
            return inner.row
        row = lane.open
        is_of_later = row is not None and not lane.path and (row.call or 0) > event["step"]
        if row is not None and (row.label == node or row.kind == MARK) and not is_of_later:
            lane.open = None
            row.kind = STEP
            row.label = node
            return row
        if row is not None and row.has_stopped:
            # The graph was changed while the run had stopped there.
            lane.open = None
            row.stop(event["at"], CANCELLED)
            self.log.touch(row)
        # Else it is that of a later step, which has emitted something before this one was saved.
        return self._lanes.new_step(lane, node, event)

    def _note_beginning(self, lane: Lane, row: Row, event: Event) -> None:
        """Correct when the step began by what is known now."""
        began = lane.ready
        if not lane.has_begun:
            began = event.get("began") or began
        began = min(began, event["at"])
        lane.begin(began)
        row.move_start(began)

    def _end_task(self, lane: Lane, event: Event) -> None:
        """A task has completed, or was skipped, or has failed without harm."""
        assert lane.row is not None
        at = event["at"]
        record = (event.get("merged") or {}).get("tasks", {}).get(event["task"])
        if not isinstance(record, dict):  # of a task whose result is secret, the whole record is masked
            record = {}
        if event.get("began"):
            lane.begin(min(event["began"], at))
        self._lanes.end(lane, at, DONE)
        self._finish(lane.row, event)
        if record.get("status") == TASK_SKIPPED:
            lane.row.status = SKIPPED
            lane.row.note = short(record.get("reason"))
        elif record.get("status") == TASK_FAILED:
            lane.row.fail(at, short(record.get("error")))
            lane.row.status = FAILED
        self._lanes.close_task(event)

    def _finish(self, row: Row, event: Event) -> None:
        row.step = event["step"]
        row.has_completed = True
        crashes = event.get("crashes", 0)
        if self._crashes is not None:
            row.crashes += max(crashes - self._crashes, 0)
        self._crashes = crashes
        for question in row.asked:
            self._asking.pop(question, None)
        row.asked = ()
        row.stop(event["at"], DONE)
        self.log.touch(row)

    def _take_branches(self, event: Event) -> None:
        lane = self._lanes.of(event)
        self._lanes.end_branches(lane)
        lane.ready = event["at"]
        lane.each = event.get("each") or ""
        for name in event.get("branches", ()):
            self._lanes.enter(lane, BRANCH, name, event["at"]).next = name

    def _take_task_start(self, event: Event) -> None:
        self._lanes.of(event)

    def _take_task_skipped(self, event: Event) -> None:
        lane = self._lanes.of(event)
        assert lane.row is not None
        lane.row.stop(event["at"], SKIPPED)
        lane.row.note = short(event.get("reason"))
        self._lanes.close_task(event)

    def _take_layer_start(self, event: Event) -> None:
        lane = self._lanes.of(event)
        lane.ready = event["at"]
        for name in event.get("tasks", ()):
            if name not in lane.children:
                self._lanes.enter(lane, TASK, name, event["at"])

    def _take_layer_end(self, event: Event) -> None:
        self._lanes.of(event).ready = event["at"]
        for name, reason in (event.get("skipped") or {}).items():
            self._take_task_skipped({**event, "task": name, "reason": reason})

    # Waits

    def _take_retry(self, event: Event) -> None:
        row = self._lanes.row_of(event, event.get("node"))
        row.fail(event["at"], short(event.get("error")))
        row.status = RUNNING
        due = event.get("due")
        if due is not None and due > event["at"]:
            row.add_wait(event["at"], due, "retry")
            row.status = RETRYING
            self._timed.append(row)
        self.log.touch(row)

    def _take_sleep(self, event: Event) -> None:
        row = self._lanes.row_of(event, None)
        row.add_wait(event["at"], max(event["until"], event["at"]), "sleep")
        row.status = SLEEPING
        self._timed.append(row)
        self.log.touch(row)

    def _take_wait(self, event: Event) -> None:
        waits = event["waits"]
        row = self._lanes.row_of(event, waits[0].get("node"))
        row.close_waits(event["at"])
        row.add_wait(event["at"], None, waits[0]["kind"])
        row.status = WAITING
        row.note = short(", ".join(str(each.get("name")) for each in waits))
        self.log.touch(row)

    def _take_receive(self, event: Event) -> None:
        lane = self._lanes.find(event)
        row = None if lane is None else lane.current(event)
        if row is not None and row.status == WAITING:
            self._lanes.continue_row(row, event["at"])

    def _take_question(self, event: Event) -> None:
        by_node: dict[str, list[Event]] = {}
        for question in event.get("questions") or ():
            by_node.setdefault(question.get("node") or "", []).append(question)
        for node, questions in by_node.items():
            lane = self._lanes.of_node(node)
            row = self._lanes.row_at_stop(lane, node, event)
            self._pause(row, event["at"], "question", " · ".join(str(each["prompt"]) for each in questions))
            row.asked = tuple(str(each["id"]) for each in questions)
            self._asking |= dict.fromkeys(row.asked, row)
        if not by_node:
            row = self._lanes.row_of(event, None)
            self._pause(row, event["at"], APPROVAL, event.get("reason"))
            self._interrupted.append(row)

    def _pause(self, row: Row, at: float, what_for: str, note: Any) -> None:
        if row.status != PAUSED:
            row.add_wait(at, None, what_for)
        row.status = PAUSED
        row.note = short(note)
        self.log.touch(row)

    def _take_pause(self, event: Event) -> None:
        if not self._asking and not self._interrupted:  # else its branches have asked before
            self._take_question(event)

    def _take_answer(self, event: Event) -> None:
        self._close_questions(event.get("answers", ()), event["at"])

    def _take_deadline(self, event: Event) -> None:
        """Questions were withdrawn; or without any, a message didn't come in time."""
        self._close_questions(event.get("questions", ()), event["at"])
        if not event.get("questions"):
            self._take_receive(event)

    def _close_questions(self, questions: Iterable[str], at: float) -> None:
        for question in questions:
            row = self._asking.pop(question, None)
            if row is None:
                continue
            row.asked = tuple(each for each in row.asked if each != question)
            if not row.asked and row.status == PAUSED:
                self._lanes.continue_row(row, at)
        if self._has_stopped:
            self._lanes.resume(at, [])
            self._has_stopped = False

    def _take_resume(self, event: Event) -> None:
        self._lanes.resume(event["at"], self._interrupted)
        self._interrupted.clear()
        self._has_stopped = False

    # Failures, and how runs end

    def _take_error(self, event: Event) -> None:
        """A branch or a task has failed."""
        lane = self._lanes.of(event)
        self._fail(lane, event)
        if "next" in event:
            # Its failure is its result: nothing of it is called again.
            self._lanes.end(lane, event["at"], FAILED)
            lane.is_over = True

    def _take_fail(self, event: Event) -> None:
        self._fail(self._lanes.root, event)
        is_overdue = (event.get("error") or {}).get("type") == DeadlinePassed.__name__
        self._stop_all(event["at"], keeps_questions=not is_overdue)

    def _fail(self, lane: Lane, event: Event) -> None:
        """A step has failed, as its lane or one around it reports."""
        error = event.get("error") or {}
        node = error.get("node") or ""
        if node:
            lane = self._lanes.of_node(node)
        elif self._lanes.has_failed(lane):
            return
        row = self._failing_row(lane, node, event)
        if row.status == FAILED and row.end is not None:
            return
        row.fail(event["at"], short(error) if error else short(event.get("reason")))
        row.stop(event["at"], FAILED)
        self.log.touch(row)

    def _failing_row(self, lane: Lane, node: str, event: Event) -> Row:
        name = node.rpartition("/")[2]
        if name == PLANNER:
            name = ""
        what = "run"
        if lane.next is None and lane.last is not None and lane.last.label == name:
            # The node has completed.
            what = "next node"
            name = ""
        if not name and lane.open is None:
            lane.open = self._lanes.add_row(lane, MARK, what, event)
            return lane.open
        return self._lanes.row_at_stop(lane, name, event)

    def _take_caught(self, event: Event) -> None:
        """The step that completed last has failed, and an error edge leads on."""
        last = self._lanes.of(event).last
        if last is None:
            return
        at = event["at"] if last.end is None else last.end
        last.fail(at, short(event.get("error")))
        last.status = FAILED
        self.log.touch(last)

    def _take_cancel(self, event: Event) -> None:
        root = self._lanes.root
        if root.open is None and root.next is not None and not root.children:
            self._lanes.row_in(root, root.next, event)
        self._stop_all(event["at"], keeps_questions=False)

    def _stop_all(self, at: float, keeps_questions: bool) -> None:
        self._lanes.stop(at, keeps_questions)
        self._has_stopped = True
        self._interrupted.clear()
        if not keeps_questions:
            self._asking.clear()

    def _take_complete(self, event: Event) -> None:
        self._start_over(event["at"], DONE)

    def _take_rollback(self, event: Event) -> None:
        self._start_over(event["at"], CANCELLED)
        self._lanes.root.next = event.get("next")
        self._add_mark("rolled back", short(event.get("reason")), event, SKIPPED)

    def _take_skipped(self, event: Event) -> None:
        """Events are no longer stored, or can't be read. When that was, only the next one tells."""
        if event.get("records"):
            self._start_over(self.ready, DONE)
            self._lanes.root.ready = 0.0
            self._crashes = None
            self._gap = short(event.get("problem")) or f"{event['records']:,} records are no longer stored"

    def _start_over(self, at: float, status: str) -> None:
        """Nothing of what was under way is any longer."""
        self._lanes.end(self._lanes.root, at, status)
        self._lanes.root = Lane(at)
        self._has_stopped = False
        self._asking.clear()
        self._interrupted.clear()
        self._timed.clear()

    def _take_update(self, event: Event) -> None:
        self._add_mark("state changed from outside", "", event, DONE)

    def _add_mark(self, label: str, note: str, event: Event, status: str) -> None:
        row = self._lanes.add_row(self._lanes.root, MARK, label, event)
        row.note = note
        row.stop(event["at"], status)

    # What nodes emit

    def _take_output(self, event: Event) -> None:
        row = self._emitting_row(event)
        if row is not None:
            row.output += 1
            self.log.touch(row)

    def _take_progress(self, event: Event) -> None:
        row = self._emitting_row(event)
        if row is not None and row.end is None:
            row.progress = {name: event[name] for name in ("done", "total", "message") if event.get(name)}
            self.log.touch(row)

    def _emitting_row(self, event: Event) -> Row | None:
        """The row of the call that emitted something; None if that isn't known.

        What was emitted is read when it was written, which may be before the steps before it were, or after its own.
        """
        at = event["at"]
        lane = self._lanes.find(event)
        if lane is None:
            if event.get("task") or at <= self.ready:
                return None
            lane = self._lanes.of(event)
        row = lane.current(event)
        node = event.get("node")
        step = event.get("step")
        if row is None and lane.last is not None and lane.last.label == node:
            known = (lane.last.call, None if lane.path else lane.last.step)
            if step in known:
                return lane.last
        if row is None and (at <= lane.ready or lane.is_over):
            return None
        if row is None:
            row = self._lanes.row_in(lane, node, {**event, "step": self._newest_step})
        if row.label != node or (row.call is not None and row.call != step):
            return None
        row.call = step
        if row.status in (RETRYING, SLEEPING, WAITING) and at > list(row.waits)[-1][0]:
            row.status = RUNNING
        return row
