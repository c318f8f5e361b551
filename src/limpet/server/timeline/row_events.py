"""What happened in one row of a timeline: its update, errors, questions, answers and output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from limpet.server.timeline.lanes import Event
from limpet.server.timeline.rows import APPROVAL, BRANCH, TASK, Row

MAX_OUTPUT: Final = 200
"""Emitted items that are given: the newest."""

MARGIN: Final = 1e-3
"""Seconds by which events may be outside of the time of their row: clocks of processes differ."""


class RowEvents:
    """Gathers what the events of a run say about one row."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.step: Event | None = None
        """The event of its completion."""
        self.errors: list[Event] = []
        """The events of attempts that failed."""
        self.questions: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        self.answered_by: dict[str, str] = {}
        self.answered_at: dict[str, float] = {}
        self.approved_by: str | None = None
        self.output: list[Event] = []
        self.emitted = 0
        self._path = f"{row.branch}/{row.label}".lstrip("/")

    def take_all(self, events: Iterable[Event]) -> None:
        """Take in events, in order."""
        for event in events:
            take = getattr(self, f"_take_{event['type']}", None)
            if take is not None:
                take(event)

    def _is_in_time(self, event: Event) -> bool:
        end = self.row.end
        return event["at"] >= self.row.start - MARGIN and (end is None or event["at"] <= end + MARGIN)

    def _is_here(self, event: Event) -> bool:
        """Whether an event is about the node or task of the row."""
        if (event.get("branch") or "") != self.row.branch:
            return False
        if self.row.kind == TASK or event.get("task"):
            return event.get("task") == self.row.label
        return event.get("node") in (self.row.label, self._path)

    def _take_step(self, event: Event) -> None:
        if self._is_here(event) and event["step"] == self.row.step:
            self.step = event

    def _take_retry(self, event: Event) -> None:
        if self._is_here(event) and self._is_in_time(event):
            self.errors.append(event)

    def _take_error(self, event: Event) -> None:
        failed = (event.get("error") or {}).get("node") or ""
        is_branch = self.row.kind == BRANCH and event.get("branch") == self._path
        is_task = self.row.kind == TASK and self._is_here(event)
        if (failed == self._path or is_branch or is_task) and self._is_in_time(event):
            self.errors.append(event)

    def _take_fail(self, event: Event) -> None:
        if not self.errors or self.errors[-1].get("error") != event.get("error"):
            self._take_error(event)

    def _take_caught(self, event: Event) -> None:
        self._take_error(event)

    def _take_question(self, event: Event) -> None:
        for question in event.get("questions") or ():
            if question.get("node") == self._path and self._is_in_time(event):
                self.questions[str(question["id"])] = question

    _take_pause = _take_question

    def _take_answer(self, event: Event) -> None:
        for question, answer in event.get("answers", {}).items():
            if question in self.questions:
                self.answers[question] = answer
                self.answered_at[question] = event["at"]
                if question in event.get("by", {}):
                    self.answered_by[question] = event["by"][question]

    def _take_resume(self, event: Event) -> None:
        for _, until, what_for in self.row.waits:
            if what_for == APPROVAL and until is not None and abs(until - event["at"]) <= MARGIN:
                self.approved_by = event.get("by")

    def _take_output(self, event: Event) -> None:
        if self._is_here(event) and event.get("step") in (self.row.step, self.row.call):
            self.emitted += 1
            self.output.append(event)
            del self.output[:-MAX_OUTPUT]
