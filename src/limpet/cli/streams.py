"""Standard output and standard error, where they are closed, full, or a pipe whose reader has gone.

Standard output has results: a command that can't write them fails. Standard error has what happens meanwhile: where
it can't be written to, it is left out, and the command continues. A run is never stopped by what is shown of it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


class CannotWrite(Exception):
    """Standard output can't be written to, and not because the reader of a pipe has seen enough."""


def prepare_streams() -> None:
    """Have streams that can be written to: a process may be started without some."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 – open as long as the process
        elif hasattr(stream, "reconfigure"):
            # A terminal that can't show a character must not end the command.
            stream.reconfigure(errors="backslashreplace")


def write(stream: TextIO, text: str) -> None:
    """Write a text whole, at once. Raises `CannotWrite` and `BrokenPipeError`, but only for standard output."""
    try:
        print(text, end="", file=stream, flush=True)
    except OSError as problem:
        if stream is sys.stderr:
            discard(stream)
        elif isinstance(problem, BrokenPipeError):
            raise
        else:
            raise CannotWrite(f"can't write to standard output: {problem.strerror}") from problem


def discard(stream: TextIO) -> None:
    """Lose what is written from now on. Otherwise Python would fail again when it flushes the stream at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
