"""What notebooks show of runs: self-contained pieces of HTML, without any value of the state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from limpet.drawing.draw import outline_for_run
from limpet.drawing.run_marks import RunMarks
from limpet.drawing.svg import svg
from limpet.drawing.text_width import shortened, single_line
from limpet.graphs.plan import Plan
from limpet.journal.waits import Question

MAX_ROWS = 100
"""How many runs a table shows."""

_CELL_STYLE = 'style="text-align:left;padding:2px 12px 2px 0;vertical-align:top"'


def run_as_html(plan: Plan, run_marks: RunMarks, questions: Iterable[Question]) -> str:
    """A run: its graph, coloured by how far the run has got, and its open questions."""
    items = "".join(
        f"<li>{_text(each.prompt, 300)} <small>(<code>{_text(each.id, 80)}</code>)</small></li>"
        for each in questions
    )
    waiting = ""
    if items:
        waiting = f"<p>It waits for an answer:</p><ul>{items}</ul>"
    return f"<div>{svg(outline_for_run(plan, run_marks), run_marks)}{waiting}</div>"


def text_as_html(text: str) -> str:
    """Plain text as preformatted HTML."""
    return f"<pre>{escape(single_line(text))}</pre>"


def runs_as_html(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """A table of the first runs in a list."""
    head = "".join(f"<th {_CELL_STYLE}>{escape(each)}</th>" for each in headings)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows[:MAX_ROWS])
    more = ""
    if len(rows) > MAX_ROWS:
        more = f"<p>… and {len(rows) - MAX_ROWS} more</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def utc_time_text(seconds: float) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _row(row: Sequence[str]) -> str:
    return "".join(f"<td {_CELL_STYLE}>{_text(each, 200)}</td>" for each in row)


def _text(text: str, max_cells: int) -> str:
    return escape(shortened(text, max_cells))
