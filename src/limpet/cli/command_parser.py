"""How the command line is parsed: a parser that explains mistakes, nouns, verbs, and what all commands take."""

from __future__ import annotations

from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from limpet.errors import did_you_mean

if TYPE_CHECKING:
    Verbs = _SubParsersAction[ArgumentParser]

EXIT_CODES = """\
exit codes: 0 ok · 1 failed · 2 wrong usage · 3 paused or waiting · 4 not found
            5 conflict: another process holds the run · 6 the store can't be used
            130 interrupted by Ctrl-C"""

TARGET = "file.yaml, file.py:attribute or package.module:attribute"


class WrongCommandLine(Exception):
    """A command line that can't be parsed: what is wrong, and the usage of the command."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.message = message
        self.usage = usage


class CommandParser(ArgumentParser):
    """A parser that raises `WrongCommandLine`, and leaves it to the caller to say so."""

    ways: Sequence[str] = ()
    """All commands there are, as they are typed: `run`, `runs list` …"""

    def error(self, message: str) -> NoReturn:
        raise WrongCommandLine(message, self.format_usage().rstrip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse all there is: what isn't known is refused by the command that was given it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            near = did_you_mean(unknown[0].partition("=")[0], known)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found, unknown

    def _check_value(self, action: Action, value: Any) -> None:
        """Refuse a word that isn't one of the choices, and suggest one that is like it."""
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        near = did_you_mean(value, known)
        listed = ", ".join(known)
        if not isinstance(action, _SubParsersAction):
            raise ArgumentError(action, f"{value!r} isn't one of {listed}{near}")
        way_of = {way.split()[-1]: way for way in reversed(self.ways)}  # of several, the first
        # A verb without its noun counts more than a noun that is like it: `list` isn't `limits`.
        if not near or value in way_of:
            from difflib import get_close_matches  # late: only mistakes need it

            similar = get_close_matches(value, way_of, n=1)
            near = f"; did you mean 'limpet {way_of[similar[0]]}'?" if similar else ""
        kind = str(action.metavar).lower()
        raise ArgumentError(None, f"there is no {kind} {value!r}{near or f'; there are {listed}'}")


def add_subcommands(parser: ArgumentParser, kind: str) -> Verbs:
    parser.set_defaults(command=None, usage_of=parser)
    return parser.add_subparsers(metavar=kind)


def add_noun(commands: Verbs, name: str, about: str) -> Verbs:
    parser = commands.add_parser(name, help=about, description=_sentence(about))
    add_common(parser, hidden=True)
    return add_subcommands(parser, "VERB")


def add_verb(commands: Verbs, name: str, command: str, about: str) -> ArgumentParser:
    """A command, with the options that all commands take."""
    parser = commands.add_parser(
        name,
        help=about,
        description=_sentence(about),
        epilog=EXIT_CODES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_common(parser)
    parser.set_defaults(command=f"limpet.cli.commands.{command}")
    return parser


def add_common(parser: ArgumentParser, hidden: bool = False) -> None:
    """The options of all commands. They may be given before a verb as well, where the help doesn't list them."""
    # A default here would overwrite what was given before the verb: `make_parser` sets the defaults.
    add = partial(parser.add_argument, default=SUPPRESS)
    helps = {
        "store": "sqlite:///runs.db, postgresql://…; else LIMPET_STORE",
        "graph": "where the code of graphs is; repeatable",
        "json": "print JSON, for programs",
        "no_color": "no colours",
    }
    if hidden:
        helps = dict.fromkeys(helps, SUPPRESS)
    add("--store", metavar="URL", help=helps["store"])
    add("--graph", action="append", metavar="GRAPH", help=helps["graph"])
    add("--json", action="store_true", help=helps["json"])
    add("--no-color", action="store_true", help=helps["no_color"])


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."
