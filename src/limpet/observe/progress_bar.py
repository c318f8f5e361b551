"""A live view of runs in the terminal, with nothing but the standard library.

On a terminal, one block is repainted in place: a headline per run, its last nodes with their durations, and the nodes
that run now. The block of a run that ends stays above those of the runs in progress. A thread turns the spinner, and
lives only while a node runs. A node that reports its progress has a bar. Anywhere else (a file, a pipe, CI) each
finished node, retry, pause and end is one plain line, and progress is one now and then.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from limpet.observe import events
from limpet.observe.events import Event
from limpet.threads.workers import Monitor, start_thread


class ProgressObserver:
    """Shows the progress of runs on `stream` (by default standard error).

    Follows any number of runs at once, from any thread. When the stream is closed or broken, it stops quietly. If the
    stream's encoding lacks the marks, they are shown in ASCII. While a block is being repainted, other output to the
    same terminal may be painted over.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        if stream is None:
            stream = sys.stderr
        self._screen = _Screen(stream)
        self._marks = _UNICODE_MARKS
        if not self._screen.can_show(_UNICODE_MARKS.all()):
            self._marks = _ASCII_MARKS
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._painted_at = float("-inf")
        self._frame = 0
        self._changed = Monitor()
        self._is_ticking = False

    def on_event(self, event: Event) -> None:
        """Follow the event, and show the new progress of its run."""
        run_id = event.data.get("run_id")
        if run_id is None:
            return
        with self._changed.lock:
            run = self._run(run_id, event)
            if run is None:
                return
            line = run.follow(event, self._clock(), self._marks)
            if run.outcome:
                del self._runs[run_id]
                self._changed.notify()
            if self._screen.live:
                self._show(run)
            elif line:
                self._screen.write(f"{_clean(run.graph)} {_clean(run.run_id)}: {_clean(line)}\n")

    def _run(self, run_id: str, event: Event) -> _Run | None:
        """The run as followed so far, or a new one if it starts or is resumed; None for one that isn't followed."""
        run = self._runs.get(run_id)
        if event.type in _STARTS or (run is None and event.type in _OPENS):
            run = self._runs[run_id] = _Run(str(run_id), event.source, self._clock())
        return run

    def _show(self, run: _Run) -> None:
        now = self._clock()
        if run.outcome:
            self._paint(now, keep=run.lines(now, self._marks, ""))
        elif now - self._painted_at >= _REPAINT_INTERVAL:
            self._paint(now)
        if run.running and not self._is_ticking:
            # Not a daemon: a daemon that writes while the interpreter shuts down can abort the process.
            start_thread(self._tick, "limpet-progress", daemon=False)
            self._is_ticking = True

    def _paint(self, now: float, keep: Iterable[str] = ()) -> None:
        self._painted_at = now
        spinner = self._marks.spinner[self._frame % len(self._marks.spinner)]
        block = [line for run in self._runs.values() for line in run.lines(now, self._marks, spinner)]
        self._screen.repaint(keep, block)

    def _tick(self) -> None:
        while True:
            with self._changed.lock:
                if not self._screen.live or not threading.main_thread().is_alive() or self._is_idle():
                    self._is_ticking = False
                    return
                self._frame += 1
                self._paint(self._clock())
            self._changed.wait_for(self._is_idle, _REPAINT_INTERVAL)

    def _is_idle(self) -> bool:
        return not any(run.running for run in self._runs.values())


_REPAINT_INTERVAL = 0.1
"""Seconds between two paintings of the block."""
_PROGRESS_INTERVAL = 1.0
"""Seconds between two plain lines about the progress of a node."""
_BAR_LENGTH = 20
"""How many characters a progress bar has."""
_LAST_NODES = 5
"""How many finished nodes of a run are shown."""
_STARTS = (events.GRAPH_START, events.CHECKPOINT_RESUME)
# A run that was started before this observer watched it is followed from one of these on.
_OPENS = (*_STARTS, events.NODE_START, events.RUN_PAUSE, events.RUN_FAIL, events.RUN_CANCEL)


@dataclass(frozen=True, slots=True)
class _Marks:
    done: str
    failed: str
    paused: str
    retry: str
    between: str
    spinner: str

    def all(self) -> str:
        return "".join((self.done, self.failed, self.paused, self.retry, self.between, self.spinner))


_UNICODE_MARKS = _Marks("✓", "✗", "⏸", "↻", "·", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
_ASCII_MARKS = _Marks("+", "x", "=", "~", "-", "|/-\\")


@dataclass(slots=True)
class _Run:
    """The progress of one run, by its events, and how it is shown."""

    run_id: str
    graph: str
    started: float
    steps: int = 0
    retries: int = 0
    outcome: str = ""
    mark: str = ""
    last_nodes: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_NODES))
    running: dict[tuple[str, Any], float] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    progress: dict[str, str] = field(default_factory=dict)
    progress_shown: dict[str, float] = field(default_factory=dict)

    def follow(self, event: Event, now: float, marks: _Marks) -> str:
        """Update the progress; returns the plain line for the event, or empty if it has none."""
        data = event.data
        branch = data.get("branch")
        node = str(data.get("node", "?"))
        if branch:
            node = f"{branch}/{node}"
        where = f" at {node}"
        if data.get("node") is None:  # the run as a whole
            where = ""
        task = (node, data.get("iteration"))
        match event.type:
            case events.CHECKPOINT_RESUME:
                self.last_nodes.append(f"{marks.retry} resumed at {data.get('resume_node', '?')}")
                return f"resumed at {data.get('resume_node', '?')}"
            case events.NODE_START:
                self.waiting.pop(node, None)
                self.running[task] = now
            case events.NODE_PROGRESS:
                return self._progressed(node, data, now)
            case events.NODE_COMPLETE:
                self.progress.pop(node, None)
                took = _seconds(data.get("duration", now - self.running.get(task, now)))
                self.running.pop(task, None)
                return self._completed(node, took, bool(data.get("error")), marks)
            case events.NODE_RETRY:
                self.retries += 1
                for other in [other for other in self.running if other[0] == node]:
                    del self.running[other]
                self.waiting[node] = f"retry in {_seconds(data.get('delay', 0.0))}: {_error(data)}"
                return f"{node}: {self.waiting[node]}"
            case events.RUN_PAUSE:
                reason = data.get("reason") or "waits for an answer"
                return self._end(marks.paused, f"paused at {node}: {reason}")
            case events.RUN_FAIL:
                return self._end(marks.failed, f"failed{where}: {_error(data)}")
            case events.RUN_CANCEL:
                return self._end(marks.failed, f"cancelled{where}")
            case events.GRAPH_COMPLETE:
                self.steps = max(self.steps, data.get("iterations", 0))
                outcome = "completed"
                if data.get("exit_point"):
                    outcome = f"completed at {data['exit_point']}"
                return f"{self._end(marks.done, outcome)}, {self._counts()}"
        return ""

    def _progressed(self, node: str, data: Any, now: float) -> str:
        """How far a node is: shown beside it, and as a plain line now and then."""
        done = data["done"]
        total = data["total"]
        bar = f"{done:g}"
        if total:
            filled = round(min(done / total, 1.0) * _BAR_LENGTH)
            bar = f"[{'#' * filled}{'.' * (_BAR_LENGTH - filled)}] {done:g}/{total:g}"
        self.progress[node] = f"{bar} {data['message']}".rstrip()
        is_done = bool(total) and done >= total
        if not is_done and now - self.progress_shown.get(node, float("-inf")) < _PROGRESS_INTERVAL:
            return ""
        self.progress_shown[node] = now
        return f"{node}: {self.progress[node]}"

    def _completed(self, node: str, took: str, error: bool, marks: _Marks) -> str:
        if error:
            self.last_nodes.append(f"{marks.failed} {node}  failed after {took}")
            return f"{node} failed after {took}"
        self.steps += 1
        self.last_nodes.append(f"{marks.done} {node}  {took}")
        return f"{node} done in {took}"

    def _end(self, mark: str, outcome: str) -> str:
        self.mark = mark
        self.outcome = outcome
        self.running.clear()
        self.waiting.clear()
        return outcome

    def _counts(self) -> str:
        counts = [_counted(self.steps, "step", "steps")]
        if self.retries:
            counts.append(_counted(self.retries, "retry", "retries"))
        return ", ".join(counts)

    def lines(self, now: float, marks: _Marks, spinner: str) -> list[str]:
        """The block of this run: the headline, its last nodes, and the nodes that wait or run now."""
        head = [self.graph, self.run_id]
        if self.outcome:
            head.append(self.outcome)
        if not self.outcome or self.steps:
            head += [self._counts(), _seconds(now - self.started)]
        headline = f" {marks.between} ".join(head)
        if self.mark:
            headline = f"{self.mark} {headline}"
        lines = [headline]
        lines += [f"  {done}" for done in self.last_nodes]
        lines += [f"  {marks.retry} {node}  {why}" for node, why in self.waiting.items()]
        for (node, _), since in self.running.items():
            lines.append(
                f"  {spinner} {node}  {_seconds(now - since)}  {self.progress.get(node, '')}".rstrip()
            )
        return lines


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _seconds(seconds: Any) -> str:
    if not isinstance(seconds, int | float):
        return "?"
    if seconds < 10:
        return f"{max(seconds, 0.0):.2f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m{rest:02}s"
    return f"{minutes}m{rest:02}s"


def _error(data: Any) -> str:
    error = data.get("error")
    if isinstance(error, BaseException):
        return f"{type(error).__name__}: {error}"
    return str(error)


def _clean(text: str) -> str:
    """The text without line breaks and control characters, which could garble a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


class _Screen:
    """Writes to a stream that may not be a terminal, may lack characters, and may be closed at any time."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._encoding: str | None = getattr(stream, "encoding", None)
        self._height = 0
        self.live = self._is_terminal()

    def can_show(self, text: str) -> bool:
        try:
            text.encode(self._encoding or "utf-8")
        except (UnicodeError, LookupError):
            return False
        return True

    def repaint(self, keep: Iterable[str], block: Iterable[str]) -> None:
        """Replace the block painted last: the lines `keep` stay for good, and `block` is the new one below."""
        columns, rows = self._size()
        shown = [_clean(line)[: columns - 1] for line in block][: max(rows - 1, 1)]
        to_top = ""
        if self._height:
            to_top = f"\x1b[{self._height}F"
        kept_lines = "".join(f"{_clean(line)}\n" for line in keep)
        block_lines = "".join(f"{line}\n" for line in shown)
        # Wrapping is off for the block: wide characters may make a line longer than it was counted, and a wrapped
        # line would make the height of the block wrong.
        self.write(f"{to_top}\x1b[0J{kept_lines}\x1b[?7l{block_lines}\x1b[?7h")
        self._height = len(shown)

    def write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            if not self.can_show(text):
                text = text.encode(self._encoding or "ascii", "replace").decode(self._encoding or "ascii")
            self._stream.write(text)
            self._stream.flush()
        except Exception:  # whatever happened to the stream, it must not break the run
            self._stream = None
            self.live = False

    def _is_terminal(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        except Exception:  # a closed stream, or one without a proper isatty()
            return False

    def _size(self) -> tuple[int, int]:
        try:
            assert self._stream is not None
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError, AttributeError, AssertionError):
            return 80, 24
        return (size.columns or 80, size.lines or 24)
