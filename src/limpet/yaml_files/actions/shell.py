"""The action `shell`: run a program, read its output, and kill it when its time is over."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from limpet.errors import ActionFailed

PIPE_TIMEOUT = 5.0
"""Seconds to wait for what a killed program leaves in its pipes."""

MAX_ERROR_LETTERS = 200
"""How much of the last line of stderr a message shows."""


def run_program(
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

    Raises `ActionFailed` if it can't be started, takes too long or, with `check`, ends with a code other than 0.
    """
    import subprocess

    if script is not None:
        words = ["/bin/sh", "-c", script]
        name = "the script"
    else:
        words = [_word(each) for each in command or ()]
        name = words[0]  # without its arguments, which may be secret
    process = _start(words, name, cwd, env, reads_input=input is not None)
    try:
        stdout, stderr = process.communicate(None if input is None else input.encode(), timeout)
    except subprocess.TimeoutExpired as late:
        _kill_group(process)
        raise ActionFailed("shell", f"{name!r} took longer than {timeout} s, and was killed") from late
    finally:
        _clean_up(process)
    error_text = _decoded(stderr)
    if check and process.returncode:
        lines = error_text.strip().splitlines()
        last_line = ""
        if lines:
            last_line = f": {lines[-1][:MAX_ERROR_LETTERS]}"
        raise ActionFailed("shell", f"{name!r} ended with the exit code {process.returncode}{last_line}")
    return {"code": process.returncode, "stdout": _decoded(stdout), "stderr": error_text}


def _start(
    words: list[str], name: str, cwd: str | None, env: Mapping[str, Any] | None, reads_input: bool
) -> Any:
    import subprocess

    added_variables = {key: _word(value) for key, value in (env or {}).items()}
    try:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **added_variables},
            stdin=subprocess.PIPE if reads_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a process group of its own, which can be killed as a whole
        )
    except OSError as problem:
        raise ActionFailed("shell", f"{name!r} can't be started: {problem.strerror}") from problem
    except ValueError as problem:
        raise ActionFailed("shell", f"{name!r} can't be started: {problem}") from problem


def _word(value: Any) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ActionFailed("shell", f"an argument must be a text or a number, not {type(value).__name__}")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _clean_up(process: Any) -> None:
    """Leave no running process and no open pipe, also if the wait was interrupted."""
    import subprocess

    if process.poll() is None:
        _kill_group(process)
        with suppress(subprocess.TimeoutExpired, ValueError):
            process.communicate(timeout=PIPE_TIMEOUT)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _kill_group(process: Any) -> None:
    """Kill a program and all processes that it has started, which are in one group."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
