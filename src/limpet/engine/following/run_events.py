"""The events that a follower of a run gets, made from the records of its journal.

This is the file to open for a new event, and `docs/how-to/runs-in-your-hands.md` lists them all. An event is a plain
dict: its `type`, the `run_id`, the time `at`, and the `step`; in a branch, also its name. It has the values that
changed, never a whole state. Records that say nothing to a user, such as the result of a `once()`, make no event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from limpet.engine.following.open_branches import OpenBranch
from limpet.graphs.edges import END, CaughtError
from limpet.graphs.plan import PLANNER
from limpet.graphs.secrets import MASK, masked
from limpet.graphs.workflow.state import TASK_SKIPPED
from limpet.journal.delta import read_delta
from limpet.journal.open_parallel_section import BEGIN, SKIP, Key
from limpet.journal.records import MEMO, MOVE, NESTED, OPEN, SNAPSHOT, STEP, THREAD
from limpet.journal.snapshots import REPEATED
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.threads.records import CHECKPOINT, ThreadRecord
from limpet.journal.waits import (
    ADVANCE,
    ANSWER,
    ANSWERED_BY,
    APPROVAL,
    ARRIVAL,
    DELIVER,
    EXPIRE,
    EXPIRE_WAITS,
    MESSAGE,
    NEXT_ATTEMPT,
    RECEIVE,
    RESUME,
    box_name,
    box_of,
)

Event = dict[str, Any]

ROLLED_BACK = "rolled back to step"
"""How the reason begins for which a run that was rolled back is paused."""


class EventMaker:
    """Makes the events of one run's records, which it is given in order.

    `secrets` are the keys whose values are masked. `step` is the newest step that was given before, -1 for none, and
    `given` how many events of it.
    """

    def __init__(self, run_id: str, secrets: frozenset[str], step: int = -1, given: int = 0) -> None:
        self.run_id = run_id
        self.secrets = secrets
        self.step = step
        self.given = given
        self.root = OpenBranch()
        # Deleting old checkpoints may write newer ones again, after a snapshot: see `REPEATED`.
        self._repeated_until = 0
        self._repeated_step = -1
        self._repeated_left = 0

    def events_of(
        self, number: int, records: Sequence[list[Any]], *, was_given: bool, after_gap: bool
    ) -> list[Event | None]:
        """The events of a stored record, which may be a bundle; None in place of one that repeats another.

        `was_given` says that the follower has had events of it, `after_gap` that the records before it were deleted.
        """
        events: list[Event | None] = []
        for record in records:
            if record[0] == SNAPSHOT and not was_given:
                self._note_repeated(number, record)
            for event in self._events(number, record, after_gap):
                events.append(event if was_given or not self._repeats(number, record) else None)
        return events

    def note_given(self, event: Event) -> None:
        """The follower is given this event."""
        if event["step"] > self.step:
            self.step = event["step"]
            self.given = 0
        if event["step"] == self.step:
            self.given += 1

    def _note_repeated(self, number: int, record: list[Any]) -> None:
        repeated = record[4].get(REPEATED, 0)
        if repeated and record[1] < self.step:
            self._repeated_until = number + repeated - 1
            self._repeated_step = self.step
            self._repeated_left = self.given

    def _repeats(self, number: int, record: list[Any]) -> bool:
        """Whether the next event of a record was given before."""
        if number > self._repeated_until or record[1] > self._repeated_step:
            return False
        if record[1] < self._repeated_step:
            return True
        self._repeated_left -= 1
        return self._repeated_left >= 0

    def _events(self, number: int, record: list[Any], after_gap: bool) -> list[Event]:
        if record[0] == SNAPSHOT:
            return self._of_snapshot(number, record, after_gap)
        if record[0] == THREAD:
            return self._of_thread(ThreadRecord(*record[1:]))
        path: Sequence[Key] = ()
        inner = record
        if record[0] == NESTED:
            path = record[4]
            inner = record[5]
        branch = self.root.at(path)
        place = {"run_id": self.run_id, "at": inner[2], "step": record[1], **self._place(path)}
        if inner[0] == STEP:
            return self._of_step(branch, place, inner, began=record[2] if path else 0.0, crashes=record[3])
        if inner[0] == OPEN:
            return self._of_opening(branch, place, inner[4])
        if inner[0] == MOVE:
            return [{"type": kind, **place, **more} for kind, more in self._of_move(branch, path, inner)]
        assert inner[0] == MEMO
        return []

    def _place(self, path: Sequence[Key]) -> Event:
        """Where in the run an event happened."""
        if not path:
            return {}
        if not self.root.is_task(path):
            return {"branch": self.root.name(path)}
        place: Event = {"task": str(path[-1]), "layer": self.root.at(path[:-1]).layer_of(path[-1])}
        if len(path) > 1:
            place["branch"] = self.root.name(path[:-1])
        return place

    def _of_thread(self, record: ThreadRecord) -> list[Event]:
        """A checkpoint of another library is a step. Its values are that library's: only their keys are given."""
        if record.what != CHECKPOINT:
            return []
        return [
            {
                "type": "step",
                "run_id": self.run_id,
                "at": record.at,
                "step": record.step,
                "node": record.label,
                "keys": list(record.changes),
                "checkpoint": record.name,
            }
        ]

    def _of_snapshot(self, number: int, record: list[Any], after_gap: bool) -> list[Event]:
        """A snapshot is an event where the run begins or is set back, and where nothing else says why it stopped."""
        _, step, at, _, fields, state = record
        self.root.restore(fields)
        self.secrets |= frozenset(fields.get("meta", {}).get("secrets", ()))
        place = {"run_id": self.run_id, "at": at, "step": step}
        if number == 1:
            shown = {key: value for key, value in state.items() if not (key == "dag" and "tasks" in state)}
            start = {"type": "start", **place, "graph": fields.get("graph", ""), "update": self.mask(shown)}
            for name, field in (("forked_from", "parent"), ("parent", "child_of")):
                if fields.get(field):
                    start[name] = fields[field]
            return [{**start, **_following(fields)}]
        reason = fields.get("reason") or ""
        if reason.startswith(ROLLED_BACK):
            return [{"type": "rollback", **place, "reason": reason, **_following(fields)}]
        if not after_gap:
            return []
        return [{"type": kind, **place, **more} for kind, more in self._run_stop(fields)]

    def _of_step(
        self, branch: OpenBranch, place: Event, record: list[Any], began: float, crashes: int
    ) -> list[Event]:
        node = record[4]
        layer = branch.layer if branch.is_open else None
        if branch.layers is not None and record[5] == node:
            branch.complete_layer()
        else:
            branch.complete()
        if node != PLANNER:
            changes = self._task_changes(record[6]) if "task" in place else self._changes(record[6])
            known = {name: value for name, value in (("began", began), ("crashes", crashes)) if value}
            return [{"type": "step", **place, "node": node, **_next(record[5]), **known, **changes}]
        skipped = {
            name: task.get("reason")
            for name, task in read_delta(record[6]).merges.get("tasks", {}).items()
            if task.get("status") == TASK_SKIPPED
        }
        if layer is None and not skipped:
            return []
        return [{"type": "layer_end", **place, "layer": layer, "skipped": skipped}]

    def _of_opening(self, branch: OpenBranch, place: Event, opening: Mapping[str, Any]) -> list[Event]:
        branch.open_section(opening)
        if branch.layers is not None:
            return []  # its tasks are reported when they begin
        if branch.layer is not None:
            return [{"type": "layer_start", **place, "layer": branch.layer, "tasks": list(opening["tasks"])}]
        if opening.get("inside"):
            return []
        event = {"type": "branches", **place, "node": opening["source"]}
        if "branches" in opening:
            return [{**event, "branches": list(opening["branches"])}]
        return [{**event, "each": opening.get("each")}]

    def _of_move(
        self, branch: OpenBranch, path: Sequence[Key], record: list[Any]
    ) -> Iterator[tuple[str, Event]]:
        """What else happened: each event's type, and what it has besides its place."""
        changes = record[4]
        answers = {**changes.get(RESUME, {}), **changes.get(ANSWER, {})}
        expired = changes.get(EXPIRE, ())
        is_resume = RESUME in changes or EXPIRE in changes or changes.get("status") == RUNNING
        if expired:
            yield "deadline", {"questions": list(expired)}
        by = changes.get(ANSWERED_BY, {})
        if answers:
            yield "answer", {"answers": self._shown_answers(answers), **({"by": dict(by)} if by else {})}
        elif is_resume and not expired:
            yield "resume", {"by": by[APPROVAL]} if APPROVAL in by else {}
        yield from self._letters(changes)
        yield from self._flow_changes(branch, changes.get(ADVANCE, {}))
        self.root.close([*answers, *expired])
        if "questions" in changes:
            branch.ask(changes["questions"])
        if path:
            yield from self._branch_stop(branch, changes)
        else:
            yield from self._run_stop(changes)
        if changes.get("caught"):
            yield "caught", {"error": CaughtError(*changes["caught"])._asdict()}
        yield from _waits(changes)
        if len(record) > 5:
            yield "update", self._changes(record[5])

    def _flow_changes(self, branch: OpenBranch, change: Mapping[str, Any]) -> Iterator[tuple[str, Event]]:
        """Tasks of a data flow begin, or are skipped."""
        if branch.layers is None:
            return
        for name, layer in change.get(BEGIN, {}).items():
            branch.layers[name] = layer
            yield "task_start", {"task": name, "layer": layer}
        for name, record in change.get(SKIP, {}).items():
            branch.layers[name] = record["layer"]
            yield "task_skipped", {"task": name, "layer": record["layer"], "reason": record.get("reason")}

    def _run_stop(self, changes: Mapping[str, Any]) -> Iterator[tuple[str, Event]]:
        reason = changes.get("reason")
        match changes.get("status"):
            case "paused":
                questions = [dict(question) for question in self.root.all_questions()]
                yield "pause", {"reason": reason, "questions": questions}
            case "failed":
                yield "fail", {"reason": reason, "error": _shown_error(changes.get("error"))}
            case "cancelled":
                yield "cancel", {}
            case "completed":
                yield "complete", {}

    def _branch_stop(self, branch: OpenBranch, changes: Mapping[str, Any]) -> Iterator[tuple[str, Event]]:
        """A branch asks, or has failed; the run may be under way elsewhere."""
        reason = changes.get("reason")
        if changes.get("status") == PAUSED:
            questions = [dict(question) for question in branch.questions.values()]
            yield "question", {"reason": reason, "questions": questions}
        elif changes.get("status") == FAILED:
            yield "error", {"reason": reason, "error": _shown_error(changes.get("error"))}
        elif changes.get("node") == END and changes.get("error"):
            yield "error", {"reason": reason, "error": _shown_error(changes.get("error")), **_next(END)}

    def _letters(self, changes: Mapping[str, Any]) -> Iterator[tuple[str, Event]]:
        """Messages have come, a node has received one or waits for one, or none came in time."""
        for box, number, value, addressee in changes.get(DELIVER, ()):
            if box.startswith(box_of(MESSAGE, "")):
                name = box_name(box)
                yield "message", {"name": name, "value": self.mask({name: value})[name], "number": number}
                if addressee is not None:
                    yield "receive", {"name": name, **self._place(addressee[0])}
        if RECEIVE in changes:
            path, box, _, expired = changes[RECEIVE]
            if box.startswith(box_of(MESSAGE, "")) and not expired:
                yield "receive", {"name": box_name(box), **self._place(path)}
        if EXPIRE_WAITS in changes:
            yield "deadline", {"questions": []}
        if changes.get("waits"):
            yield "wait", {"waits": [dict(wait) for wait in changes["waits"]]}

    def _shown_answers(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """The answers by question id. One to a question that isn't known here might be secret."""
        asked = {question["id"]: question for question in self.root.all_questions()}
        shown = {}
        for question_id, answer in answers.items():
            question = asked.get(question_id)
            is_shown = question is not None and not question.get("secret")
            shown[question_id] = self.mask(answer) if is_shown else MASK
        return shown

    def _changes(self, delta: Any) -> Event:
        """The keys that were set; and if there are any, what was added to lists and dicts, replaced and removed."""
        change = read_delta(delta)
        found: Event = {"update": self.mask(change.sets)}
        if change.appends:
            found["appended"] = self.mask(change.appends)
        if change.merges:
            found["merged"] = self.mask(change.merges)
        if change.replaces:
            found["replaced"] = self.mask(change.replaces)
        if change.deletes:
            found["removed"] = list(change.deletes)
        return found

    def _task_changes(self, delta: Any) -> Event:
        """The same for a task: its state is what it adds to the workflow's, with its own record under `tasks`."""
        added = read_delta(delta).sets
        tasks = {
            name: {**task, "result": MASK} if task.get("secret") else task
            for name, task in added.get("tasks", {}).items()
        }
        lists = {key: value for key, value in added.items() if type(value) is list and value}
        dicts = {key: value for key, value in added.items() if type(value) is dict and value}
        found: Event = {"update": {}, "merged": self.mask({**dicts, "tasks": tasks})}
        if lists:
            found["appended"] = self.mask(lists)
        return found

    def mask(self, value: Any) -> Any:
        """A value as it is shown: without the values of secret keys."""
        return masked(value, self.secrets, mask=MASK) if self.secrets else value


def _next(node: str | None) -> Event:
    """The node that comes next in the run or in a branch, None at its end; nothing if it isn't chosen yet."""
    if node is None or node == PLANNER:
        return {}
    return {"next": None if node == END else node}


def _following(fields: Mapping[str, Any]) -> Event:
    """The same for the place where a run begins or is set back to, unless branches are open there."""
    if "section" in fields:
        return {}
    return _next(fields.get("node"))


def _waits(changes: Mapping[str, Any]) -> Iterator[tuple[str, Event]]:
    """A node failed and is tried again, or it sleeps."""
    timers = changes.get("timers")
    if timers is None or changes.get("status") is not None:
        return
    error = changes.get("error")
    if error and "attempts" in changes:
        failed = _shown_error(error)
        yield (
            "retry",
            {
                "node": failed.get("node"),
                "attempt": changes["attempts"],
                "error": failed,
                "due": timers.get(NEXT_ATTEMPT),
            },
        )
    elif ARRIVAL in timers:
        yield "sleep", {"until": timers[ARRIVAL]}


def _shown_error(error: Mapping[str, Any] | None) -> dict[str, Any]:
    """An error without its traceback."""
    return {name: value for name, value in (error or {}).items() if name != "traceback"}


STOPS = {COMPLETED: "complete", FAILED: "fail", CANCELLED: "cancel"}
"""For each status that ends a run, the event that says so."""
