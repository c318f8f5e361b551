"""The command `limpet`: parses the command line, calls the command, and returns its exit code.

The modules of a command are imported when it is called, so that `--help` answers at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module

from limpet.cli.arguments import make_parser
from limpet.cli.command_parser import WrongCommandLine
from limpet.cli.exit_codes import FAILED, INTERRUPTED, OK, USAGE, code_for
from limpet.cli.output import Output, printable_log
from limpet.cli.streams import CannotWrite, discard, prepare_streams, write
from limpet.errors import LimpetError, UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and return the exit code."""
    prepare_streams()
    try:
        args = make_parser().parse_args(arguments)
    except WrongCommandLine as problem:
        return _explain(problem, sys.argv[1:] if arguments is None else arguments)
    output = Output(args.json, colour=False if args.no_color else None)
    if logging.lastResort is not None:  # what shows warnings where a program hasn't set up a log
        logging.lastResort.setFormatter(printable_log("%(message)s"))
    try:
        if args.command is None:
            write(sys.stdout, args.usage_of.format_help())
            return OK
        module, _, function = args.command.partition(":")
        return int(getattr(import_module(module), function)(args, output))
    except LimpetError as problem:
        from limpet.cli.next_commands import next_command

        output.problem(problem.message, problem.code, next_command(problem, args))
        return code_for(problem)
    except KeyboardInterrupt:
        output.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)  # its reader has seen enough
        return OK
    except CannotWrite as problem:
        discard(sys.stdout)
        Output(colour=False).problem(str(problem), "output")
        return FAILED


def _explain(problem: WrongCommandLine, arguments: Sequence[str]) -> int:
    """Say what is wrong with a command line that can't be parsed; to a program, if it asks for JSON."""
    output = Output("--json" in arguments, colour=False if "--no-color" in arguments else None)
    output.say(problem.usage)
    output.problem(problem.message, UsageError.code)
    return USAGE
