"""Drawing: from a graph, and a run of it if one is given, to a picture in one of the formats."""

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
SUFFIXES: Final = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".txt": "text"}


def chosen_format(format: str | None, path: str | os.PathLike[str] | None) -> str:
    """The format that is meant: the one that was named, or that of the path, or SVG. Raises `UsageError`."""
    if format is None:
        return SUFFIXES.get(Path(path).suffix.lower(), "svg") if path is not None else "svg"
    if format not in FORMATS:
        raise UsageError(
            f"a picture's format is one of {', '.join(FORMATS)}, not {format!r}{did_you_mean(format, FORMATS)}"
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
    """An outline in one of the formats, coloured by how a run stands."""
    if format == "svg":
        from limpet.drawing.svg import svg

        return svg(outline, run_marks)
    if format == "mermaid":
        from limpet.drawing.mermaid import mermaid

        return mermaid(outline, run_marks)
    from limpet.drawing.terminal import WIDTH, Style, text

    wide = WIDTH if width is None else width
    if type(wide) is not int or wide < 20:
        raise UsageError(f"width is a whole number of columns from 20, not {width!r}")
    return text(outline, run_marks, Style(wide, color, ascii))


def graph_as_svg(graph: Any) -> str:
    """A graph as a notebook shows it: whatever is there of it, with what is wrong with it."""
    from limpet.drawing.svg import svg

    return svg(outline_of_graph(graph))


def outline_for_run(plan: Plan, run_marks: RunMarks | None) -> Outline:
    """The outline of a plan, with the tasks that a run has by now."""
    return outline_of_plan(plan, run_marks.dag if run_marks is not None else None)


def write_picture(text: str, path: str | os.PathLike[str]) -> None:
    """Write a picture into a file. Raises `UsageError` where that can't be."""
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as problem:
        raise UsageError(
            f"the picture can't be written to {os.fspath(path)!r}: {problem.strerror}"
        ) from problem
