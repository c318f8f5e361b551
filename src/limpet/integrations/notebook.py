"""A live view of a run in a notebook: one output that is updated while the run executes.

`live` drives a run of this process, or follows a stored run, in the thread or on the event loop of its caller.
Another thread paints: some times a second, and less often if that takes long, so that a run is hardly slowed down.
What it paints has no values of the state; they come when the run stops.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from contextvars import copy_context
from time import monotonic
from typing import Any, Final, TypeVar, overload

from limpet.drawing.notebook import NextStep, ProgressBar, RunView, run_as_html, text_as_html
from limpet.drawing.shown_values import shown_value
from limpet.engine.views.run_view import interrupted_view, live_view, view_of_open, view_of_stored
from limpet.errors import UsageError
from limpet.graphs.state import State
from limpet.handle import RunHandle
from limpet.journal.store import RUNNING
from limpet.run import AsyncRun, OpenedRun, Run
from limpet.threads.workers import Monitor, start_thread

REPAINT_INTERVAL: Final = 0.25
"""Seconds between two looks at the run."""

PAINTING_SHARE: Final = 5
"""A painting is followed by a pause that is at least this many times as long."""

MAX_BARS: Final = 8
"""How many nodes have a progress bar: those that reported last."""

MAX_LINES: Final = 12
MAX_LINE: Final = 400
"""How many lines of what nodes emit are shown, and how many characters of each."""

S = TypeVar("S", bound=State)


@overload
def live(run: Run[S]) -> Run[S]: ...
@overload
def live(run: AsyncRun[S]) -> Coroutine[Any, Any, AsyncRun[S]]: ...
@overload
def live(run: RunHandle[S]) -> Coroutine[Any, Any, RunHandle[S]]: ...
def live(run: Any) -> Any:
    """Show a run in one output of a notebook, which is updated until the run stops, and return the run.

    `live(graph.invoke(…))` and `await live(graph.ainvoke(…))` execute the run. `await live(handle)` follows one that
    any process executes. The output ends with how the run stopped, its questions and its state. A run that pauses or
    fails is returned, too: `run.status` says how it stopped, and `run.state` has its state. An interrupt of the cell
    leaves a run of this process, as it is saved, and stops following a stored one.

    Raises `UsageError` outside of a notebook, and what opening the run raises.
    """
    if not isinstance(run, (Run, AsyncRun, RunHandle)):
        wrong = UsageError(f"live() shows a Run, an AsyncRun or a RunHandle, not {type(run).__name__}")
        raise wrong.with_advice("give it live(graph.invoke(…)), or await live(graph.ainvoke(…))")
    if isinstance(run, OpenedRun):
        run._allow_drop()  # one problem is enough
    shell = _notebook_shell()
    if isinstance(run, Run):
        return _show_while_run(run, shell)
    if isinstance(run, AsyncRun):
        return _show_while_awaited(run, shell)
    return _show_while_followed(run, shell)


def _show_while_run(run: Run[S], shell: Any) -> Run[S]:
    source = _RunSource(run)
    painter = _Painter(source)
    try:
        painter.begin()
        for event in run._events:
            source.take(event)
        painter.finish()
    except BaseException as problem:
        run.close()
        painter.leave(problem)
        raise
    _is_shown_in_cell(run, shell)
    return run


async def _show_while_awaited(run: AsyncRun[S], shell: Any) -> AsyncRun[S]:
    from asyncio import to_thread

    source = _RunSource(run)
    painter = _Painter(source)
    try:
        painter.begin()
        async for event in run._events:
            source.take(event)
        await to_thread(painter.finish)
    except BaseException as problem:
        await run.aclose()
        painter.leave(problem)
        raise
    _is_shown_in_cell(run, shell)
    return run


async def _show_while_followed(handle: RunHandle[S], shell: Any) -> RunHandle[S]:
    from asyncio import to_thread

    source = _HandleSource(handle)
    painter = _Painter(source)
    try:
        painter.begin()
        async for event in handle.aevents():
            source.take(event)
            # An earlier pause that was answered is among the events, too.
            if event["type"] == "pause" and (await handle.ainfo()).status != RUNNING:
                break
        await to_thread(painter.finish)
    except BaseException as problem:
        painter.leave(problem)
        raise
    _is_shown_in_cell(handle, shell)
    return handle


class _Emitted:
    """What nodes emitted last: how far each says it is, and the last lines of their output."""

    def __init__(self) -> None:
        self._bars: dict[str, ProgressBar] = {}
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._text = ""
        self._call: object = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event of a run; most aren't about output."""
        if event["type"] == "progress":
            place = _place_of(event)
            self._bars.pop(place, None)
            self._bars[place] = ProgressBar(place, event["done"], event["total"], str(event["message"] or ""))
        elif event["type"] == "output":
            self._take_output(event)

    def bars(self) -> list[ProgressBar]:
        """A bar for each of the nodes that reported last."""
        return list(self._bars.values())[-MAX_BARS:]

    def text(self) -> str:
        """The last lines."""
        lines = list(self._lines)
        if self._text:
            lines.append(self._text)
        return "\n".join(lines[-MAX_LINES:])

    def _take_output(self, event: Mapping[str, Any]) -> None:
        data = event.get("data")
        start = f"{_place_of(event)}: "
        if event.get("call") != self._call or not isinstance(data, str):
            self._end_line()
        self._call = event.get("call")
        if not isinstance(data, str):
            self._lines.append(f"{start}{shown_value(data).text}")
            return
        # Of a long text only the end is kept.
        first, *others = data[-MAX_LINES * MAX_LINE :].split("\n")
        self._text = _end_of(self._text or start) + first
        for line in others:
            self._end_line()
            self._text = start + line
        self._text = _end_of(self._text)

    def _end_line(self) -> None:
        if self._text:
            self._lines.append(_end_of(self._text))
        self._text = ""


def _end_of(line: str) -> str:
    if len(line) <= MAX_LINE:
        return line
    return f"…{line[-MAX_LINE:]}"


def _place_of(event: Mapping[str, Any]) -> str:
    name = str(event.get("task") or event.get("node"))
    branch = event.get("branch")
    if branch and str(branch).rpartition("/")[2] != name:
        return f"{branch}/{name}"
    return str(branch or name)


class _RunSource:
    """What is seen of a run of this process."""

    def __init__(self, run: OpenedRun[Any]) -> None:
        self._run = run
        self._emitted = _Emitted()
        self._began = monotonic()
        run._slot.takes_output = True

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event of the run."""
        self._emitted.take(event)

    def look(self) -> str | None:
        """The run as it is now."""
        opened = self._run._opened()
        if opened.session is None:
            return text_as_html(f"run {opened.run_id} hasn't begun")
        seen = live_view(opened)
        facts = [*seen.facts, ("", f"{int(monotonic() - self._began)} s")]
        seen = seen._replace(facts=facts, bars=self._emitted.bars(), output=self._emitted.text())
        return run_as_html(seen)

    def last_look(self) -> str:
        """The run where it has stopped."""
        return run_as_html(view_of_open(self._run._opened())._replace(output=self._emitted.text()))

    def look_when_left(self, problem: BaseException) -> str:
        """The run that its caller has left before it stopped."""
        opened = self._run._opened()
        if opened.verdict is not None:
            return run_as_html(live_view(opened))
        if opened.session is None or isinstance(problem, Exception):
            status = opened.status
            if opened.session is None:
                status = "not begun"  # here: in its store it may have any status
            return run_as_html(RunView(f"run {opened.run_id}", status, problem=str(problem) or "interrupted"))
        return run_as_html(interrupted_view(opened)._replace(output=self._emitted.text()))

    def __str__(self) -> str:
        return repr(self._run)


class _HandleSource:
    """What is seen of a run in a store. The store is asked when something has happened in the run."""

    def __init__(self, handle: RunHandle[Any]) -> None:
        self._handle = handle
        self._emitted = _Emitted()
        self._events = 0
        self._seen_events = -1

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event of the run."""
        self._emitted.take(event)
        self._events += 1

    def look(self) -> str | None:
        """The run as it is now; None if nothing has happened since the last look."""
        if self._seen_events == self._events:
            return None
        self._seen_events = self._events
        seen = self._view(with_state=False)
        return run_as_html(seen._replace(bars=self._emitted.bars(), output=self._emitted.text()))

    def last_look(self) -> str:
        """The run where it has stopped."""
        return run_as_html(self._view()._replace(output=self._emitted.text()))

    def look_when_left(self, problem: BaseException) -> str:
        """The run that isn't followed any longer."""
        step = NextStep("It isn't followed any longer. That changes nothing in the run.")
        if isinstance(problem, Exception):
            step = NextStep(f"It can't be followed any longer. {problem}")
        title = f"run {self._handle.run_id}"
        view = RunView(title, "not followed", next_steps=[step], output=self._emitted.text())
        return run_as_html(view)

    def _view(self, with_state: bool = True) -> RunView:
        return view_of_stored(self._handle._client, self._handle.run_id, self._handle._compiled, with_state)

    def __str__(self) -> str:
        return repr(self._handle)


class _Painter:
    """Paints what a source sees into one output of the cell, by a thread, until the run has stopped."""

    def __init__(self, source: _RunSource | _HandleSource) -> None:
        from IPython.display import display

        self._source = source
        self._changed = Monitor()
        self._is_over = False
        self._painted = text_as_html(str(source))
        self._output: Any = display(self._bundle(), raw=True, display_id=True)  # type: ignore[no-untyped-call]  # IPython's

    def begin(self) -> None:
        """Paint from now on, until `finish` or `leave`."""
        # With the context of the cell, by which the kernel knows whose output it is.
        start_thread(copy_context().run, "limpet-live", self._paint_until_over)

    def finish(self) -> None:
        """Paint the run where it has stopped."""
        self._stop()
        with suppress(Exception):  # the caller gets its run in any case
            self._paint(self._source.last_look())

    def leave(self, problem: BaseException) -> None:
        """Paint the run that its caller has left."""
        self._stop()
        with suppress(Exception):  # the caller gets the problem itself
            self._paint(self._source.look_when_left(problem))

    def _stop(self) -> None:
        with self._changed.lock:
            self._is_over = True
        self._changed.notify()

    def _paint_until_over(self) -> None:
        pause = REPAINT_INTERVAL
        while not self._changed.wait_for(lambda: self._is_over, pause):
            began = monotonic()
            try:
                html = self._source.look()
            except Exception:
                html = None  # the run has changed meanwhile: the next look is another one
            with self._changed.lock:
                if self._is_over:
                    return
                if html is not None and not self._has_painted(html):
                    return
            pause = max(REPAINT_INTERVAL, PAINTING_SHARE * (monotonic() - began))

    def _has_painted(self, html: str) -> bool:
        """Paint, and return whether there is still an output to paint into."""
        try:
            self._paint(html)
        except Exception:  # whatever happened to the notebook, it must not break the run
            return False
        return True

    def _paint(self, html: str) -> None:
        if html != self._painted:
            self._painted = html
            self._output.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        return {"text/html": self._painted, "text/plain": str(self._source)}


def _notebook_shell() -> Any:
    """The IPython shell of the notebook. Raises `UsageError` if there isn't one that shows HTML."""
    # Not imported: outside of IPython it would only take time.
    ipython = sys.modules.get("IPython")
    shell = None
    if ipython is not None:
        shell = ipython.get_ipython()
    if shell is None or any(kind.__name__ == "TerminalInteractiveShell" for kind in type(shell).__mro__):
        elsewhere = UsageError("live() updates an output of a notebook, and this isn't one")
        raise elsewhere.with_advice(
            'iterate graph.stream(…) for the events, or see the progress with compile(observers=["progress"])'
        )
    return shell


def _is_shown_in_cell(run: Any, shell: Any) -> None:
    """The run is also the value of the cell, mostly: then it isn't shown a second time."""
    run._is_shown = True

    def show_again(*_: Any) -> None:
        run._is_shown = False
        shell.events.unregister("post_run_cell", show_again)

    shell.events.register("post_run_cell", show_again)
