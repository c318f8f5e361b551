"""The reference page of the command line, made from the parser, so that it says what can be typed."""

from __future__ import annotations

from argparse import Action, ArgumentParser, _SubParsersAction

from holdfast.cli.arguments import make_parser

COMMON = ("--help", "--store", "--graph", "--json", "--no-color")

OPENING = """\
# The command line

`holdfast`, or `python -m holdfast`. Results go to standard output, everything else to standard error; in a pipe there are
no colours. What a text of a run contains is shown without control characters.

Every command takes:

| option | |
|---|---|
| `--store URL` | the store; else that of the environment (`HOLDFAST_STORE`), else `store` under `[tool.holdfast]` in `pyproject.toml`, else that of the graph, else `holdfast.db` here |
| `--graph GRAPH` | where the code of graphs is, repeatable; else `HOLDFAST_GRAPHS` (with commas), else `graphs` under `[tool.holdfast]` |
| `--json` | for programs: one line of JSON; problems too, as `{"error": {"code", "message"}}` |
| `--no-color` | no colours, as with `NO_COLOR` |
| `--help` | what it takes |

A GRAPH is `file.yaml`, `file.py:attribute` or `package.module:attribute`: a graph, or a function that makes one. Its code is
imported. A store never says what is imported.

| exit code | meaning |
|---|---|
| 0 | ok |
| 1 | the run failed or was cancelled; damage was found |
| 2 | wrong use: the command, an input, or the graph |
| 3 | the run is paused, and waits for somebody |
| 4 | not found |
| 5 | conflict: somebody else has the run, or the id is taken |
| 6 | the store can't be used |
"""


def manual() -> str:
    """The page, as Markdown."""
    return OPENING + "".join(_sections(make_parser(), "holdfast"))


def _sections(parser: ArgumentParser, way: str) -> list[str]:
    nouns = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    if not nouns:
        return [_section(parser, way)]
    return [text for name, inner in nouns[0].choices.items() for text in _sections(inner, f"{way} {name}")]


def _section(parser: ArgumentParser, way: str) -> str:
    own = [action for action in parser._actions if not set(action.option_strings) & set(COMMON)]
    placed = " ".join(_placed(action) for action in own if not action.option_strings)
    rows = [f"| `{_called(action)}` | {action.help} |\n" for action in own if action.help]
    table = "\n| | |\n|---|---|\n" + "".join(rows) if rows else ""
    return f"\n## {way}\n\n`{f'{way} {placed}'.strip()}`: {(parser.description or '').removesuffix('.').lower()}.\n{table}"


def _placed(action: Action) -> str:
    name = str(action.metavar or action.dest.upper())
    if action.choices is not None:
        name = "|".join(map(str, action.choices))
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": name}.get(str(action.nargs), name)


def _called(action: Action) -> str:
    if not action.option_strings:
        return _placed(action)
    name = ", ".join(action.option_strings)
    return name if action.nargs == 0 else f"{name} {action.metavar or action.dest.upper()}"


if __name__ == "__main__":
    print(manual(), end="")
