"""The command `limpet`: reads what was asked for, has it done, and says how it ended by its exit code.

What a command needs is imported when it is called, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from limpet.cli.arguments import make_parser
from limpet.cli.exit_codes import INTERRUPTED, code_for, explain
from limpet.cli.output import Output
from limpet.errors import LimpetError


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal has no letters for must not end the command
            stream.reconfigure(errors="backslashreplace")
    given = make_parser().parse_args(arguments)
    output = Output(given.json, colour=False if given.no_color else None)
    module, _, function = given.command.partition(":")
    try:
        return int(getattr(import_module(module), function)(given, output))
    except LimpetError as problem:
        output.problem(explain(problem, given), problem)
        return code_for(problem)
    except KeyboardInterrupt:
        output.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read it has left
        return 0
