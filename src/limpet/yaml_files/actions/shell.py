"""The action `shell`: run a program, take what it says, and end it in time."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from limpet.errors import ActionFailed

GRACE = 5.0
"""Seconds to wait for what a killed program leaves in its pipes."""


def execute(
    ctx: Any,
    command: list[Any] | None = None,
    script: str | None = None,
    cwd: str | None = None,
    env: Mapping[str, Any] | None = None,
    input: str | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> dict[str, Any]:
    """Run a program, or a script by the shell, and give its exit `code`, `stdout` and `stderr`.

    Raises `ActionFailed` if it can't be started, takes too long or, with `check`, ends with another code than 0.
    """
    import subprocess

    words = ["/bin/sh", "-c", script] if script is not None else [_word(each) for each in command or ()]
    name = "the script" if script is not None else words[0]
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **{key: _word(value) for key, value in (env or {}).items()}},
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ActionFailed("shell", f"{name!r} can't be started: {reason}") from problem
    try:
        out, err = process.communicate(None if input is None else input.encode(), timeout)
    except subprocess.TimeoutExpired as late:
        _kill(process)
        raise ActionFailed("shell", f"{name!r} took longer than {timeout} s, and was killed") from late
    finally:
        _end(process)
    said = _text(err)
    if check and process.returncode:
        lines = said.strip().splitlines()
        last = f": {lines[-1][:200]}" if lines else ""
        raise ActionFailed("shell", f"{name!r} ended with the exit code {process.returncode}{last}")
    return {"code": process.returncode, "stdout": _text(out), "stderr": said}


def _word(value: Any) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ActionFailed("shell", f"an argument is a text or a number, not {type(value).__name__}")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _end(process: Any) -> None:
    """Leave nothing that runs, and nothing open."""
    import subprocess

    if process.poll() is None:
        _kill(process)
        with suppress(subprocess.TimeoutExpired, ValueError):
            process.communicate(timeout=GRACE)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _kill(process: Any) -> None:
    """Kill a program and whatever it has started, which is all in one group."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
