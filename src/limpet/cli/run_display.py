"""What `run`, `resume` and `answer` show of a run: its events as they happen, and a summary where it stops.

A summary is short, however large the state is: values are cut, and a workflow is shown by its tasks. `runs state`
prints all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

from limpet.cli.output import Output, as_text, is_empty, one_line, shortened
from limpet.cli.values import utc_time
from limpet.engine.leases.limits.awaited_limits import AwaitedLimit
from limpet.engine.leases.process_identity import is_dead
from limpet.engine.operations.run_info import RunInfo
from limpet.graphs.plan import Plan
from limpet.graphs.workflow.state import TASK_COMPLETED, TASK_SKIPPED
from limpet.observe.events import NODE_RETRY, Event
from limpet.threads.workers import start_thread

MAX_SHOWN_KEYS = 30
"""How many keys of a state, or tasks, a summary has."""

MAX_SHOWN_TEXT = 200
"""How many characters of a value or an error are shown."""

MAX_SHOWN_NAME = 24
"""How many characters of the name of a key or task are shown."""

PROGRESS_INTERVAL = 1.0
"""Seconds between two lines about the progress of a node, where a line isn't replaced."""

MAX_SHOWN_LINES = 5
"""How many lines of a value are shown; one with more is put into one line, and cut."""

HIDDEN_KEYS = ("tasks", "dag")
"""Of the state of a workflow: what its tasks are shown instead of."""


LIMIT_NOTICE_INTERVAL = 2.0
"""Seconds between two looks whether a run waits for a slot of a limit."""


@contextmanager
def telling_limits(tell: Callable[[str], None], awaited: Callable[[], str | None]) -> Iterator[None]:
    """Tell what a run waits for that executes here: `awaited()`, if it needs a slot of a limit and has none.

    Such a run has no events, so nothing else would be seen of it.
    """
    ended = threading.Event()

    def watch() -> None:
        told = None
        while not ended.wait(LIMIT_NOTICE_INTERVAL):
            found = awaited()
            if found is not None and found != told and not ended.is_set():
                tell(found)
            told = found

    start_thread(watch, "limpet-limits")
    try:
        yield
    finally:
        ended.set()


def waits_of(info: RunInfo, limits: Sequence[AwaitedLimit] = ()) -> str | None:
    """What a run waits for, such as messages, with the deadlines; and slots of limits, with how much is used."""
    usage: dict[tuple[str, str], str] = {}
    for limit in limits:
        usage.setdefault((limit.limit, limit.node), limit.usage)
    found = []
    for wait in info.waits:
        until = ""
        if wait.deadline is not None:
            until = f" (until {utc_time(wait.deadline)} UTC)"
        used = f" ({usage[wait.name, wait.node]})" if (wait.name, wait.node) in usage else ""
        found.append(f"{wait.described(str)}{used}, at {wait.node}{until}")
    found += [f"a slot of the limit {limit.limit} ({limit.usage})" for limit in limits if not limit.node]
    return "; ".join(found) or None


def why_abandoned(info: RunInfo) -> str:
    """What is known of the process that holds an abandoned run, after "its process".

    Only of a process of this host it is known whether it has ended. Any other may be cut off from the store.
    """
    if info.holder is not None and is_dead(info.holder):
        return "crashed"
    return f"hasn't renewed its lease since {utc_time(info.updated)} UTC"


class EmittedLines:
    """Shows what nodes emit, line by line: texts of one call are joined, and anything else has a line of its own.

    On a terminal, a line that isn't complete is shown as it grows, and progress in one line that is replaced.
    Elsewhere progress is a line now and then.
    """

    def __init__(self, show: Callable[[str], None], output: Output) -> None:
        self._show = show
        self._output = output
        self._place = ""
        self._text = ""
        self._call: object = None
        self._shown_at: dict[str, float] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Show an item of output, or progress."""
        if event["type"] == "progress":
            self._add_progress(event)
            return
        data = event.get("data", event.get("problem"))
        if not isinstance(data, str):
            self.finish()
            self._show(f"{place_of(event)}: {cut(as_text(data))}")
            return
        if event.get("call") != self._call:
            self.finish()
        self._call = event.get("call")
        self._place = place_of(event)
        *lines, self._text = (self._text + data).split("\n")
        while len(self._text) > MAX_SHOWN_TEXT:
            lines.append(self._text[:MAX_SHOWN_TEXT])
            self._text = self._text[MAX_SHOWN_TEXT:]
        if lines:
            self._output.progress("")
        for line in lines:
            self._show(f"{self._place}: {line}")
        self._output.progress(f"{self._place}: {self._text}")

    def finish(self) -> None:
        """Show the line that isn't complete, since something else comes."""
        self._output.progress("")
        if self._text:
            self._show(f"{self._place}: {self._text}")
        self._text = ""

    def _add_progress(self, event: Mapping[str, Any]) -> None:
        place = place_of(event)
        text = f"{place}: {progress_text(event)}"
        if self._output.live:
            self.finish()
            self._output.progress(shortened(one_line(text), MAX_SHOWN_TEXT))
            return
        now = monotonic()
        is_done = event["total"] is not None and event["done"] >= event["total"]
        if is_done or now - self._shown_at.get(place, float("-inf")) >= PROGRESS_INTERVAL:
            self._shown_at[place] = now
            self.finish()
            self._show(text)


class RunDisplay:
    """Shows the events of one run as they happen. Each failure is shown once."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._failed: set[str] = set()
        self._emitted = EmittedLines(lambda line: output.say(f"  · {line}", "dim"), output)

    def show(self, event: Mapping[str, Any]) -> None:
        """Show an event of the run's stream: what is durable, and what nodes emit."""
        if event["type"] in ("output", "progress"):
            self._emitted.add(event)
            return
        self._emitted.finish()
        place = place_of(event)
        match event["type"]:
            case "state" if "error" in event:
                self._output.say(f"  ✗ {place}: {error_line(event['error'])}", "failed")
            case "state":
                self._output.say(f"  ✓ {place}", "completed")
            case "task_complete" if event["status"] == TASK_COMPLETED:
                self._output.say(f"  ✓ {place}", "completed")
            case "layer_start":
                tasks = ", ".join(map(str, event.get("tasks", ())))
                self._output.say(f"  layer {event['layer'] + 1}: {tasks}", "dim")
            case "task_start":
                self._failed.discard(place)  # it may run again, in another layer
            case "task_skipped":
                self._output.say(f"  – {place}: {error_line(event.get('reason'))}", "dim")
            case "task_error" if event.get("retry_in") is None:
                self._show_failure(place, event.get("error"))
            case "branch" if event["status"] == "failed":
                self._show_failure(str(event["branch"]), event.get("error"))
            case "error" if event.get("node") is None:
                self._output.say(f"  ✗ {error_line(event.get('error'))}", "failed")
            case "error":
                self._show_failure(place, event.get("error"))
            case "checkpoint_failed":
                self._output.say(f"  ! not saved: {error_line(event.get('error'))}", "failed")

    def observe(self, event: Event) -> None:
        """Show an event for observers: a call that failed and is made again, which isn't in the stream."""
        if event.type != NODE_RETRY:
            return
        self._emitted.finish()
        data = event.data
        again = f"attempt {data['attempt']}, again in {data['delay']:.2g} s"
        self._output.say(f"  ↻ {place_of(data)}: {error_line(data.get('error'))} ({again})", "paused")

    def _show_failure(self, place: str, error: object) -> None:
        """A task or branch has failed, and perhaps the run by that: the event of the run names the node inside."""
        if any(place == known or place.startswith(f"{known}/") for known in self._failed):
            return
        self._failed.add(place)
        self._output.say(f"  ✗ {place}: {error_line(error)}", "failed")


class Summary(NamedTuple):
    """A state in a few lines: names and texts. `is_whole` if nothing was left out."""

    lines: list[tuple[str, str]]
    is_whole: bool


def summary_of(state: Mapping[str, Any], plan: Plan) -> Summary:
    """The state of a run in a few lines; that of a workflow by its tasks."""
    is_workflow = plan.layers is not None
    texts = {
        key: as_text(value)
        for key, value in state.items()
        if not is_empty(value) and not (is_workflow and key in HIDDEN_KEYS)
    }
    if is_workflow:
        tasks = state.get("tasks") or {}
        texts |= {_task_name(name, record): _task_text(record) for name, record in tasks.items()}
    shown = list(texts.items())[:MAX_SHOWN_KEYS]
    lines = [(f"  {_short_name(name)}", cut(text)) for name, text in shown]
    is_whole = len(shown) == len(texts) and all(cut(text) == text for _, text in shown)
    if len(shown) < len(texts):
        lines.append(("  …", f"and {len(texts) - len(shown)} more"))
    return Summary(lines, is_whole and not is_workflow)


def cut(text: str) -> str:
    """A text that is shown whole if it is short, and else by its beginning and its length."""
    if len(text) <= MAX_SHOWN_TEXT and text.count("\n") < MAX_SHOWN_LINES:
        return text
    return f"{shortened(one_line(text[: 4 * MAX_SHOWN_TEXT]), MAX_SHOWN_TEXT)} ({len(text):,} characters)"


def _short_name(name: str) -> str:
    return shortened(one_line(name[: 2 * MAX_SHOWN_NAME]), MAX_SHOWN_NAME)


def _task_name(name: str, record: Any) -> str:
    status = str(record.get("status")) if isinstance(record, dict) else TASK_COMPLETED
    sign = {TASK_COMPLETED: "✓", TASK_SKIPPED: "–"}.get(status, "✗")
    return f"{sign} {name}"


def _task_text(record: Any) -> str:
    """The result of a task, or why it has none. The record of a secret task is masked as a whole."""
    if not isinstance(record, dict):
        return str(record)
    if record.get("reason"):
        return one_line(str(record["reason"]))
    error = record.get("error")
    if isinstance(error, dict):
        return one_line(f"{error.get('type')}: {error.get('message')}")
    return as_text(record.get("result"))


def progress_text(event: Mapping[str, Any]) -> str:
    """How far a node is, and what it does."""
    text = f"{event['done']:g}"
    if event["total"]:
        text += f"/{event['total']:g} ({event['done'] / event['total']:.0%})"
    return f"{text} {event['message']}".rstrip()


def error_line(error: object) -> str:
    """An error, or another text, in one line that isn't long."""
    return shortened(one_line(str(error)[: 4 * MAX_SHOWN_TEXT]), MAX_SHOWN_TEXT)


def place_of(event: Mapping[str, Any]) -> str:
    """The node or task, with its branch where that has another name."""
    name = str(event.get("task") or event.get("node"))
    branch = event.get("branch") or ""
    if branch.rpartition("/")[2] == name:
        return str(branch)
    if branch:
        return f"{branch}/{name}"
    return name
