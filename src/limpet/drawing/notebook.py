"""What notebooks show: self-contained HTML, without scripts, addresses or ids, light or dark as the notebook is.

The pictures in it contain no value of the state. The tables below a picture do, shortened and without secrets, as a
saved notebook keeps its outputs. `LIMPET_NOTEBOOK_VALUES=0` leaves values out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from itertools import islice
from typing import Any, Final, NamedTuple

from limpet.drawing.draw import outline_for_run
from limpet.drawing.outline import Outline
from limpet.drawing.palette import notebook_style
from limpet.drawing.run_marks import RunMarks
from limpet.drawing.shown_values import (
    MAX_TEXT,
    NO_SECRETS,
    Secrets,
    ShownValue,
    masked_value,
    own_items,
    secrets_in,
    shown_name,
    shown_under,
    shown_value,
)
from limpet.drawing.svg import svg
from limpet.drawing.text_width import shortened, single_line
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import MaskedDict
from limpet.graphs.state import State
from limpet.graphs.workflow.state import TASK_COMPLETED, TASK_SKIPPED

MAX_ROWS: Final = 100
"""How many rows a table has."""

MAX_LINE: Final = 2000
"""How many characters of a prompt or an error are shown."""

VALUES_VARIABLE: Final = "LIMPET_NOTEBOOK_VALUES"

_RULES: Final = (
    "&{background:var(--background);color:var(--text);border:1px solid var(--border);border-radius:8px;"
    "padding:10px 14px;margin:2px 0;font:13px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
    "overflow-x:auto;max-width:100%;box-sizing:border-box}"
    "& .lp-page{fill:none;stroke:none}& svg.lp{display:block;margin:-8px 0 -8px -14px;max-width:none}"
    "& p{margin:6px 0}& small,& .lp-faint{color:var(--small-text);font-size:12px}"
    "& thead{border:none}& table{border-collapse:collapse;margin:8px 0 4px;border:none;color:inherit;font-size:13px;"
    "line-height:1.5;table-layout:auto}"
    "& tr:nth-child(n){background:none}& tbody tr:hover{background:var(--shade)}"
    "& :is(th,td){text-align:left;vertical-align:top;padding:3px 16px 3px 0;border:none;"
    "border-bottom:1px solid var(--border);color:inherit;background:none;max-width:56em;white-space:normal}"
    "& th{color:var(--small-text);font-weight:500;font-size:12px}"
    "& :is(code,pre){font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;color:inherit;"
    "background:none;padding:0;margin:0;white-space:pre-wrap;overflow-wrap:anywhere;border:none}"
    "& td:first-child code{white-space:nowrap}"
    "& .lp-marked .lp-title{display:none}& .lp-marked svg.lp{margin-top:-32px}"
    "& pre.lp-code{background:var(--shade);border:1px solid var(--border);border-radius:6px;"
    "padding:5px 10px;margin:4px 0 8px;user-select:all}"
    "& pre.lp-output{background:var(--shade);border-radius:6px;padding:5px 10px;margin:6px 0}"
    "& .lp-status{font-weight:600;border-radius:9px;padding:1px 9px;margin-right:8px;font-size:12px}"
    "& .lp-error{color:var(--mistake-text)}"
    "& .lp-track{display:inline-block;width:180px;height:8px;border-radius:4px;background:var(--shade-strong);"
    "margin-right:8px;overflow:hidden}& .lp-filled{display:block;height:8px;background:var(--running-badge)}"
)
"""The rules of what is in a panel, in which & stands for the panel."""

_PANEL: Final = ".limpet" * 3
"""The selector of a panel, which outweighs what notebooks say of tables and code in outputs."""

_STATUS_COLOURS: Final = {
    "completed": "done",
    "failed": "failed",
    "quarantined": "failed",
    "damaged": "failed",
    "cancelled": "skipped",
    "paused": "paused",
    "degraded": "paused",
    "abandoned": "paused",
    "interrupted": "paused",
    "running": "running",
}
"""Which mark has the colours of a status; that of what comes next for all others."""


class NextStep(NamedTuple):
    """What to do about a run: a sentence, and code to copy, if there is some."""

    words: str
    code: str = ""


class ShownRow(NamedTuple):
    """A row of a state: a key, or the name of a task with what happened to it, and the value."""

    name: str
    value: ShownValue


class StateTable(NamedTuple):
    """The state of a run as it is shown: its keys, those of its tasks that are done, and how many are left out."""

    rows: Sequence[ShownRow]
    tasks: Sequence[ShownRow] = ()
    left_out: int = 0


class ProgressBar(NamedTuple):
    """How far a node says that it is."""

    node: str
    done: float
    total: float | None
    message: str


class RunView(NamedTuple):
    """A run as it is shown. Texts are without secrets; `facts` are pairs of what it is and its text."""

    title: str
    status: str
    facts: Sequence[tuple[str, str]] = ()
    plan: Plan | None = None
    marks: RunMarks | None = None
    error: tuple[str, str] | None = None
    """The type and the text of its error."""
    next_steps: Sequence[NextStep] = ()
    state: StateTable | None = None
    bars: Sequence[ProgressBar] = ()
    output: str = ""
    """The last lines that its nodes emitted."""
    problem: str = ""
    """Why not all of it is shown."""


def shows_values() -> bool:
    """Whether values of states are shown. The environment is asked each time."""
    return os.environ.get(VALUES_VARIABLE, "1").strip().lower() not in ("0", "false", "no", "off")


def quietly(make: Callable[[], str | None]) -> str | None:
    """What is shown of something, or None if that fails: a notebook then shows the repr."""
    try:
        return make()
    except Exception:
        return None


def graph_as_html(outline: Outline) -> str:
    """A graph, finished or not, with its mistakes."""
    return _panel(svg(outline, None, style=""))


def run_as_html(view: RunView) -> str:
    """A run: how it is, its graph with how far it has come, what it asks, what to do next, and its state."""
    parts = [_headline(view)]
    if view.problem:
        parts.append(f'<p class="lp-error">{_line(view.problem)}</p>')
    if view.marks is not None and view.plan is not None:
        picture = svg(outline_for_run(view.plan, view.marks), view.marks, style="")
        # What its title says is in the headline.
        parts.append(f'<div class="lp-marked">{picture}</div>')
    if view.error is not None:
        kind, text = view.error
        if text and shows_values():
            text = f": {_line(text)}"
        else:
            text = ""
        parts.append(f'<p class="lp-error"><b>{_line(kind)}</b>{text}</p>')
    for step in view.next_steps:
        parts.append(f"<p>{_line(step.words)}</p>")
        if step.code:
            parts.append(f'<pre class="lp-code">{escape(step.code)}</pre>')
    parts += [_bar(bar) for bar in view.bars]
    if view.output and shows_values():
        parts.append(f'<pre class="lp-output">{_lines(view.output)}</pre>')
    if view.state is not None:
        parts.append(_state(view.state))
    return _panel("".join(parts))


def state_table(state: Mapping[str, Any], secrets: Secrets) -> StateTable:
    """The rows of a state; of that of a workflow, its tasks by themselves."""
    values = own_items(state)
    tasks: dict[str, Any] = {}
    if isinstance(values.get("tasks"), dict) and isinstance(values.get("dag"), dict):
        tasks = values.pop("tasks")
        del values["dag"]
        values = {key: value for key, value in values.items() if value not in ({}, [], None)}
    rows = [
        ShownRow(
            shown_name(key, secrets),
            shown_under(key, value, secrets),
        )
        for key, value in islice(values.items(), MAX_ROWS)
    ]
    task_rows = [_task_row(name, record, secrets) for name, record in islice(tasks.items(), MAX_ROWS)]
    return StateTable(rows, task_rows, len(values) + len(tasks) - len(rows) - len(task_rows))


def state_view(state: State) -> str | None:
    """A state by itself, with where it came from. None if that fails."""
    return quietly(lambda: _state_as_html(state))


def difference_as_html(
    added: Mapping[str, Any], removed: Mapping[str, Any], changed: Mapping[str, tuple[Any, Any]]
) -> str:
    """How two states differ."""
    old = {key: pair[0] for key, pair in changed.items()}
    new = {key: pair[1] for key, pair in changed.items()}
    secrets = NO_SECRETS
    if isinstance(changed, MaskedDict):
        secrets = secrets_in(changed.names, [added, removed, old, new], changed.forms)
    found: list[tuple[str, str, tuple[Any] | None, tuple[Any] | None]]
    found = [(key, "added", None, (value,)) for key, value in added.items()]
    found += [(key, "removed", (value,), None) for key, value in removed.items()]
    found += [(key, "changed", (old[key],), (new[key],)) for key in changed]
    rows = [
        (_text(shown_name(key, secrets), 80), change, _side(key, before, secrets), _side(key, after, secrets))
        for key, change, before, after in found[:MAX_ROWS]
    ]
    return _panel(_table(("key", "change", "before", "after"), rows, len(found)))


def text_as_html(text: str) -> str:
    """Plain text as preformatted HTML."""
    return f"<pre>{escape(single_line(text))}</pre>"


def rows_as_html(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """A table of the first rows, in short texts."""
    shown = [tuple(_text(each, 200) for each in row) for row in rows[:MAX_ROWS]]
    return _panel(_table(headings, shown, len(rows)))


def utc_time_text(seconds: float) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@cache
def _style() -> str:
    return f"<style>{notebook_style()}{_RULES.replace('&', _PANEL)}</style>"


def _panel(content: str) -> str:
    return f'<div class="limpet">{_style()}{content}</div>'


def _headline(view: RunView) -> str:
    colours = _STATUS_COLOURS.get(view.status, "next")
    colour = f"background:var(--{colours}-fill);color:var(--{colours}-text)"
    shown = list(view.facts)
    if view.marks is not None and view.marks.note:
        shown.append(("", view.marks.note))
    facts = " · ".join(f"{escape(name)} {_text(text, 120)}".strip() for name, text in shown)
    return (
        f'<p><span class="lp-status" style="{colour}">{_text(view.status, 40)}</span>'
        f"<b>{_text(view.title, 120)}</b> <small>{facts}</small></p>"
    )


def _bar(bar: ProgressBar) -> str:
    amount = f"{bar.done:g}"
    track = ""
    if bar.total:
        amount += f"/{bar.total:g}"
        part = min(max(bar.done / bar.total, 0.0), 1.0)
        filled = f'<span class="lp-filled" style="width:{part:.0%}"></span>'
        track = f'<span class="lp-track">{filled}</span>'
    message = ""
    if shows_values():
        message = f" {_text(bar.message, 120)}"
    return f"<p>{track}{_text(bar.node, 60)} <small>{amount}{message}</small></p>"


def _state(state: StateTable) -> str:
    shown = _table(("key", "type", "value"), [_row_of(row) for row in state.rows])
    if not state.rows:
        shown = ""
    if not state.rows and not state.tasks:
        shown = "<p><small>The state is empty.</small></p>"
    if state.tasks:
        shown += _table(("task", "type of its result", "result"), [_row_of(row) for row in state.tasks])
    if state.left_out:
        shown += f"<p><small>… and {state.left_out:,} more</small></p>"
    return shown


def _state_as_html(state: State) -> str:
    caption = f"State of run {state.run_id}"
    if state.checkpoint_node:
        caption += f", after {state.checkpoint_node}"
    secrets = secrets_in(getattr(state, "_secrets", ()), [state])
    return _panel(f"<small>{_line(caption)}</small>{_state(state_table(state, secrets))}")


def _row_of(row: ShownRow) -> tuple[str, ...]:
    return f"<code>{escape(row.name)}</code>", f"<small>{escape(row.value.kind)}</small>", _value(row.value)


def _value(value: ShownValue) -> str:
    if not shows_values():
        return "<small>not shown</small>"
    size = ""
    if value.size:
        size = f" <small>({escape(value.size)})</small>"
    return f"<code>{escape(value.text)}</code>{size}"


def _side(key: str, value: tuple[Any] | None, secrets: Secrets) -> str:
    """The value before or after a change, if there was one."""
    if value is None:
        return ""
    return _value(shown_under(key, value[0], secrets))


def _task_row(name: str, record: Any, secrets: Secrets) -> ShownRow:
    """A task that is done: its result, or why it has none."""
    if not isinstance(record, dict):
        return ShownRow(shown_name(name, secrets), shown_value(record, secrets))
    sign = {TASK_COMPLETED: "✓", TASK_SKIPPED: "–"}.get(str(record.get("status")), "✗")
    shown = f"{sign} {shown_name(name, secrets)}"
    if record.get("status") != TASK_COMPLETED:
        error = record.get("error") or {}
        why = record.get("reason") or f"{error.get('type')}: {error.get('message')}"
        return ShownRow(shown, ShownValue("", shortened(secrets.hide(str(why)), MAX_TEXT)))
    result = record.get("result")
    if record.get("secret"):
        return ShownRow(shown, masked_value(result))
    return ShownRow(shown, shown_value(result, secrets))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], count: int = 0) -> str:
    """A table of cells that are HTML already. `count` is how many rows there are in all."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    shown = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in shown)
    more = ""
    if count > len(shown):
        more = f"<p><small>… and {count - len(shown)} more</small></p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(text: str, max_cells: int) -> str:
    return escape(shortened(text, max_cells))


def _line(text: str) -> str:
    """A sentence, or an error, that isn't endless."""
    return _text(text[: 2 * MAX_LINE], MAX_LINE)


def _lines(text: str) -> str:
    """A text of several lines."""
    return escape("\n".join(map(single_line, text.splitlines())))
