"""The reference is complete. That of the command line is generated from the parser, except for its introduction."""

from __future__ import annotations

import os
import re
from argparse import Action, ArgumentParser, _SubParsersAction
from pathlib import Path

from limpet.cli.arguments import make_parser
from limpet.compile_options import WorkflowOptions

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
COMMON = {"--help", "--store", "--graph", "--json", "--no-color"}
WRITE_DOCS = "LIMPET_WRITE_DOCS"
FOR_CHILD_PROCESSES = {"PATH", "PLACE", "VERSION"}
"""What tests set for the processes that they start."""


def test_the_reference_of_the_command_line_is_current() -> None:
    """F13, H6: if this fails, run it once with LIMPET_WRITE_DOCS=1, and review the changes."""
    opening, found = PAGE.read_text(encoding="utf-8").split("\n## ", 1)
    made = "".join(_sections(make_parser(), "limpet"))
    if os.environ.get(WRITE_DOCS):
        PAGE.write_text(opening + made, encoding="utf-8")
    assert f"\n## {found}" == made


def test_the_settings_of_a_workflow_are_all_documented() -> None:
    """H18: in the table of the guide; `test_api_reference` checks the reference."""
    guide = (PAGE.parents[1] / "how-to" / "workflows.md").read_text(encoding="utf-8")
    for name in WorkflowOptions.__annotations__:
        assert f"\n| `{name}` |" in guide.partition("\n## Settings\n")[2]


def test_the_variables_that_tests_read_are_all_documented() -> None:
    """Those by which a test hunts for longer, or repeats what failed."""
    tests = PAGE.parents[2] / "tests"
    reads = re.compile(r'environ(?:\.get\(|\[)"([A-Z_]+)"|"([A-Z_]+)" in os\.environ')
    found = {
        name
        for path in tests.rglob("*.py")
        for names in reads.findall(path.read_text(encoding="utf-8"))
        for name in names
        if name
    }
    assert {"FIRE_MINUTES", "CRASH_EVERY_POINT"} <= found
    guide = (PAGE.parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(?:make hunt )?([A-Z_]+)=", guide))
    assert found - FOR_CHILD_PROCESSES - documented == set()


def _sections(parser: ArgumentParser, way: str) -> list[str]:
    nouns = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    if not nouns:
        return [_section(parser, way)]
    return [text for name, inner in nouns[0].choices.items() for text in _sections(inner, f"{way} {name}")]


def _section(parser: ArgumentParser, way: str) -> str:
    own = [action for action in parser._actions if not set(action.option_strings) & COMMON]
    placed = " ".join(_placed(action) for action in own if not action.option_strings)
    rows = [f"| `{_called(action)}` | {action.help} |\n" for action in own if action.help]
    table = "\n| | |\n|---|---|\n" + "".join(rows) if rows else ""
    about = (parser.description or "").removesuffix(".")
    return f"\n## {way}\n\n`{f'{way} {placed}'.strip()}`: {about[:1].lower()}{about[1:]}.\n{table}"


def _placed(action: Action) -> str:
    name = str(action.metavar or action.dest.upper())
    if action.choices is not None:
        name = "|".join(map(str, action.choices))
    if action.nargs == "+" and not action.required:
        return f"[{name} …]"
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": name}.get(str(action.nargs), name)


def _called(action: Action) -> str:
    if not action.option_strings:
        return _placed(action)
    name = ", ".join(action.option_strings)
    return name if action.nargs == 0 else f"{name} {action.metavar or action.dest.upper()}"
