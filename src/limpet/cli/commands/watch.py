"""`runs watch`: follow a run, in whichever process it is executed, until it stops."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from limpet import RunInfo, Runs
from limpet.cli.commands.runs import ABANDONED, holder_of
from limpet.cli.exit_codes import BY_STATUS
from limpet.cli.next_commands import suggest_next
from limpet.cli.output import Output
from limpet.cli.project import complete_run_id, find_store
from limpet.cli.run_display import EmittedLines, error_line, place_of
from limpet.cli.values import utc_time
from limpet.engine.following.cursor import EventCursor
from limpet.errors import StoreUnavailable
from limpet.frontends.run_facts import node_of
from limpet.graphs.workflow.state import TASK_FAILED, TASK_SKIPPED
from limpet.handle import RunHandle
from limpet.journal.store import PAUSED, RUNNING
from limpet.journal.waits import CHILD_RUN, PostWait

SHORTEST_INTERVAL = 0.05
"""Seconds between two looks at what events don't tell, at least."""

Event = Mapping[str, Any]

END_STATUS = {
    "pause": "paused",
    "rollback": "paused",
    "fail": "failed",
    "cancel": "cancelled",
    "complete": "completed",
}
"""The status that a run has after an event that says that it stopped."""


def watch(args: Namespace, output: Output) -> int:
    """Follow a run until it stops. A program gets all events; a person where the run is, and what happens then."""
    store = find_store(args, must_exist=True)
    complete_run_id(args, store, output)
    display = _WatchDisplay(Runs(store).get(args.run), output)
    after = args.after
    if after is None and not output.json:
        head = store.head(args.run)
        info = display.show_position()
        if info.status != RUNNING:
            suggest_next(info, args, output)
            return BY_STATUS[info.status]
        after = EventCursor.newest(head, info.step).to_text(args.run)
    status = asyncio.run(display.follow(after, args))
    if not output.json:
        suggest_next(display.handle.info, args, output)
    return BY_STATUS[status]


class _WatchDisplay:
    """Shows the events of one run, and now and then where the run is: which process holds it, and in which node."""

    def __init__(self, handle: RunHandle[Any], output: Output) -> None:
        self.handle = handle
        self._output = output
        self._shown: tuple[Any, ...] = ()
        self._step = -1
        self._waits: tuple[tuple[str, ...], ...] = ()
        """What the run was last shown to wait for."""
        self._emitted = EmittedLines(self._show_emitted, output)

    async def follow(self, after: str | None, args: Namespace) -> str:
        """Show events until the run stops, and return its status."""
        events = self.handle.aevents(after)
        status = RUNNING
        waiting = None
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events, None))
            await asyncio.wait([waiting], timeout=max(SHORTEST_INTERVAL, args.every))
            if waiting.done():
                event = waiting.result()
                if event is None:
                    return self.handle.status if status == RUNNING else status
                waiting = None
                status = END_STATUS.get(event["type"], RUNNING)
                self._show(event)
            elif await asyncio.to_thread(self._is_paused, args):
                waiting.cancel()
                return PAUSED

    def _is_paused(self, args: Namespace) -> bool:
        """Whether the run waits for a person. If not, show where it is: nothing has happened for a while."""
        try:
            info = self.handle.info
        except StoreUnavailable:
            return False  # the events wait for the store, too
        if info.status == RUNNING and not self._output.json:
            has_changed = self._show_position(info)
            if has_changed and info.shown_status == ABANDONED:
                suggest_next(info, args, self._output)
        return info.status == PAUSED

    def show_position(self) -> RunInfo:
        """Show where the run is by now."""
        info = self.handle.info
        self._show_position(info)
        return info

    def _show_position(self, info: RunInfo) -> bool:
        """One line, unless it would be the same as the last one; the holder is named when it changed."""
        position = (info.step, node_of(info), info.status, info.shown_status, info.holder)
        if position == self._shown:
            return False
        text = f"step {info.step}"
        if node_of(info):
            text += f", at {node_of(info)}"
        if info.status == RUNNING and info.holder and position[3:] != self._shown[3:]:
            text += f"; held by {holder_of(info)}"
        elif info.status == "failed" and info.reason:
            text += f": {info.reason}"
        self._shown = position
        if info.shown_status == ABANDONED:
            self._emitted.finish()  # what its call emitted isn't continued
        self._output.event(time.strftime("%H:%M:%S"), info.shown_status, text)
        return True

    def _show(self, event: Event) -> None:
        if self._output.json:
            self._output.result(event)
            return
        if event["type"] in ("output", "progress"):
            self._step = event.get("step", self._step)
            self._emitted.add(event)
            return
        self._emitted.finish()
        what = None if self._is_known_wait(event) else _described(event)
        if what is None:
            return
        self._step = event.get("step", self._step)
        text = f"step {self._step}"
        if what:
            text += f": {what}"
        status = END_STATUS.get(event["type"], RUNNING)
        self._output.event(time.strftime("%H:%M:%S", time.localtime(event["at"])), status, text)

    def _is_known_wait(self, event: Event) -> bool:
        """Whether the run waits as before: now and then it looks after a child run, which says nothing new."""
        if event["type"] == "wait":
            waits = tuple((wait["kind"], wait["name"], wait["node"]) for wait in event["waits"])
            is_known = waits == self._waits
            self._waits = waits
            return is_known and _are_children(waits)
        if event["type"] == "deadline" and not event["questions"]:
            return _are_children(self._waits)
        if event["type"] in ("step", "receive"):
            self._waits = ()
        return False

    def _show_emitted(self, line: str) -> None:
        self._output.event(time.strftime("%H:%M:%S"), RUNNING, f"step {self._step}: {line}")


def _described(event: Event) -> str | None:
    """An event in a few words; "" if its status says it all, None if it says nothing to a person."""
    error = error_line((event.get("error") or {}).get("message") or event.get("reason") or "")
    match event["type"]:
        case "step":
            return _step_text(event)
        case "branches":
            branches = event.get("branches")
            return (
                f"branches {', '.join(map(str, branches))}"
                if branches
                else f"a branch for each {event.get('each')}"
            )
        case "layer_start":
            return f"layer {event['layer'] + 1}: {', '.join(map(str, event['tasks']))}"
        case "layer_end":
            skipped = ", ".join(map(str, event["skipped"]))
            return f"skipped {skipped}" if skipped else None
        case "task_start":
            return f"{place_of(event)} begins"
        case "task_skipped":
            return f"{place_of(event)} is skipped: {error_line(event.get('reason'))}"
        case "start":
            return "started"
        case "question":
            return f"{event.get('branch') or event.get('task')} asks: {_prompts(event)}"
        case "pause":
            return _prompts(event) or error
        case "answer":
            return "answered"
        case "deadline" if not event["questions"]:
            return "no message came in time"
        case "deadline":
            return "a question was withdrawn at its deadline"
        case "message":
            return f"the message {event['name']} has come"
        case "receive":
            return f"the message {event['name']} was received"
        case "wait":
            waits = [PostWait(**wait) for wait in event["waits"]]
            return "; ".join(f"{wait.node} waits for {wait.described(str)}" for wait in waits)
        case "resume":
            return "continues"
        case "update":
            return "its state was updated"
        case "retry":
            return f"{event.get('node')}: {error} (attempt {event['attempt']}; next {utc_time(event['due'])} UTC)"
        case "caught":
            return f"{event['error']['node']} failed: {error}; an error edge leads on"
        case "sleep":
            return f"sleeps until {utc_time(event['until'])} UTC"
        case "error":
            return f"{event.get('branch') or event.get('task')}: {error}"
        case "fail" | "rollback":
            return error
        case "skipped":
            return _left_out(event)
        case _:
            return ""


def _step_text(event: Event) -> str:
    """Which node or task has completed; or why the task has no result."""
    tasks = event.get("merged", {}).get("tasks") or {}
    record = tasks.get(event.get("task")) or {}
    if record.get("status") == TASK_SKIPPED:
        return f"{place_of(event)} is skipped: {error_line(record.get('reason'))}"
    if record.get("status") == TASK_FAILED:
        return f"{place_of(event)} failed: {error_line(record['error']['message'])}"
    return place_of(event)


def _left_out(event: Event) -> str:
    """Which events are missing, and why."""
    counts = {"records": event["records"], "items of output": event.get("output")}
    missing = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{missing or '0 records'} are left out: {event.get('problem') or 'they are no longer stored'}"


def _are_children(waits: tuple[tuple[str, ...], ...]) -> bool:
    """Whether child runs alone are waited for."""
    return bool(waits) and all(kind == CHILD_RUN for kind, *_ in waits)


def _prompts(event: Event) -> str:
    return "; ".join(str(question.get("prompt")) for question in event["questions"])
