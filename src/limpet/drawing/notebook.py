"""What notebooks show of runs: pieces of HTML that need nothing else, and that say nothing of a state's values."""

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

SHOWN = 100
"""How many runs a table has."""

_CELL = 'style="text-align:left;padding:2px 12px 2px 0;vertical-align:top"'


def run_as_html(plan: Plan, run_marks: RunMarks, questions: Iterable[Question]) -> str:
    """A run: its graph, coloured by how far it has come, and what it waits to be told."""
    asked = "".join(
        f"<li>{_said(each.prompt, 300)} <small>(<code>{_said(each.id, 80)}</code>)</small></li>"
        for each in questions
    )
    waiting = f"<p>It waits for an answer:</p><ul>{asked}</ul>" if asked else ""
    return f"<div>{svg(outline_for_run(plan, run_marks), run_marks)}{waiting}</div>"


def text_as_html(text: str) -> str:
    """Text as it is."""
    return f"<pre>{escape(single_line(text))}</pre>"


def runs_as_html(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """A table of runs, the first of them."""
    head = "".join(f"<th {_CELL}>{escape(each)}</th>" for each in headings)
    body = "".join(
        f"<tr>{''.join(f'<td {_CELL}>{_said(each, 200)}</td>' for each in row)}</tr>" for row in rows[:SHOWN]
    )
    more = f"<p>… and {len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def utc_time_text(seconds: float) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _said(text: str, most: int) -> str:
    return escape(shortened(text, most))
