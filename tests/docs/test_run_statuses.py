"""The page on architecture shows the run statuses as the engine has them: drawn from its table."""

from __future__ import annotations

import os
from pathlib import Path

from limpet.engine.loop.run_lifecycle import NEW, RUN_STATUSES
from limpet.engine.operations.run_info import SHOWN_STATUSES

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
FIRST = "<!-- run statuses -->\n"
LAST = "<!-- end of run statuses -->\n"
WRITE_DOCS = "LIMPET_WRITE_DOCS"


def test_the_diagram_of_the_run_statuses_is_current() -> None:
    """Where this fails, run it once with LIMPET_WRITE_DOCS=1, and look at what changed."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(FIRST)
    _, found, after = rest.partition(LAST)
    assert found, f"{PAGE.name} has no block between {FIRST.strip()} and {LAST.strip()}"
    current = before + FIRST + diagram() + "\n" + stored_statuses() + "\n" + shown_statuses() + LAST + after
    if os.environ.get(WRITE_DOCS):
        PAGE.write_text(current, encoding="utf-8")
    assert text == current


def diagram() -> str:
    """The table as a Mermaid diagram; events with the same two ends share an arrow."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for before, events in RUN_STATUSES.items():
        arrows: dict[str, list[str]] = {}
        for event, after in events.items():
            arrows.setdefault(after, []).append(event)
        source = "[*]" if before == NEW else before
        lines += [f"    {source} --> {after}: {', '.join(names)}" for after, names in arrows.items()]
    return "\n".join([*lines, "```"]) + "\n"


def stored_statuses() -> str:
    """The table as text: one row for each status."""
    lines = ["| a run that is | can |", "|---|---|"]
    for before, events in RUN_STATUSES.items():
        source = "not stored yet" if before == NEW else f"`{before}`"
        lines.append(f"| {source} | {', '.join(f'{event} → `{after}`' for event, after in events.items())} |")
    return "\n".join(lines) + "\n"


def shown_statuses() -> str:
    lines = ["| also called | stored as | when |", "|---|---|---|"]
    lines += [f"| `{shown.name}` | `{shown.stored}` | {shown.when} |" for shown in SHOWN_STATUSES]
    return "\n".join(lines) + "\n"
