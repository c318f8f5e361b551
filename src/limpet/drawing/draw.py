"""Drawing: from a graph, and optionally one of its runs, to a picture in one of the formats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal

from limpet.drawing.outline import Outline, outline_of_graph, outline_of_plan
from limpet.drawing.run_marks import RunMarks
from limpet.errors import UsageError, did_you_mean
from limpet.graphs.plan import Plan

Format = Literal["svg", "mermaid", "text"]

FORMATS: Final = ("svg", "mermaid", "text")
FORMAT_OF_SUFFIX: Final = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".txt": "text"}
MIN_TEXT_WIDTH: Final = 20


def chosen_format(format: str | None, path: str | os.PathLike[str] | None) -> str:
    """The format that is named, else that of the path's suffix, else SVG. Raises `UsageError` for an unknown one."""
    if format is None:
        suffix = ""
        if path is not None:
            suffix = Path(path).suffix.lower()
        return FORMAT_OF_SUFFIX.get(suffix, "svg")
    if format not in FORMATS:
        raise UsageError(
            f"a picture's format must be one of {', '.join(FORMATS)}, not {format!r}{did_you_mean(format, FORMATS)}"
        )
    return format


def render_picture(
    outline: Outline,
    run_marks: RunMarks | None,
    format: str,
    *,
    width: int | None = None,
    color: bool = False,
    ascii: bool = False,
) -> str:
    """An outline in one of the formats, coloured by how far a run has got. Raises `UsageError` for a bad width."""
    if format == "svg":
        from limpet.drawing.svg import svg

        return svg(outline, run_marks)
    if format == "mermaid":
        from limpet.drawing.mermaid import mermaid

        return mermaid(outline, run_marks)
    from limpet.drawing.terminal import DEFAULT_WIDTH, Style, text

    columns = DEFAULT_WIDTH if width is None else width
    if type(columns) is not int or columns < MIN_TEXT_WIDTH:
        raise UsageError(f"width must be a whole number of columns, at least {MIN_TEXT_WIDTH}, not {width!r}")
    return text(outline, run_marks, Style(columns, color, ascii))


def graph_as_svg(graph: Any) -> str:
    """A graph as a notebook shows it, finished or not, with its mistakes."""
    from limpet.drawing.svg import svg

    return svg(outline_of_graph(graph))


def outline_for_run(plan: Plan, run_marks: RunMarks | None) -> Outline:
    """The outline of a plan. For a run of a workflow, it has the tasks that the run has by now."""
    dag = None
    if run_marks is not None:
        dag = run_marks.dag
    return outline_of_plan(plan, dag)


def write_picture(text: str, path: str | os.PathLike[str]) -> None:
    """Write a picture to a file. Raises `UsageError` if it can't be written."""
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as problem:
        raise UsageError(
            f"the picture can't be written to {os.fspath(path)!r}: {problem.strerror}"
        ) from problem
