"""A process that has another live for each order it reads: `python -m limpet.testing.crash.fork_server`.

Where there is fork, a child costs milliseconds, since what it needs of Limpet was imported before; the user's
modules are imported by each child itself, as they would be in a new process. Elsewhere, and where it is asked for,
Python is started anew. An order is a JSON line, and so is the answer: how the child ended, and its outcome.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from pickle import loads
from select import select
from typing import IO, Any

LONGEST_PAUSE = 0.005


def main() -> None:
    """Carry out orders until there are no more; alone, if that is the argument: the one order there is."""
    if sys.argv[1:] == ["alone"]:
        be_the_child(json.loads(sys.stdin.readline()))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _warm_up()
    for line in sys.stdin:
        answer = carry_out(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    """Have a child live, and say how it ended: killed by a `signal`, out of `time`, or with an outcome."""
    outcome = Path(order["outcome"])
    outcome.unlink(missing_ok=True)
    status = _forked(order) if hasattr(os, "fork") and not order["fresh"] else _started(order)
    if status is None:
        return {"late": True}
    if outcome.exists():
        told: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
        return told
    return {"killed": True} if status == KILLED else {"died": status}


KILLED = -getattr(signal, "SIGKILL", -signal.SIGTERM)


def be_the_child(order: dict[str, Any]) -> None:
    """Live, leave the outcome, and end without looking back."""
    _redirect(order["output"])
    sys.path[:] = order["path"]
    try:
        from limpet.testing.crash.graph_source import Origin, load
        from limpet.testing.crash.stage import live

        place = Origin(*order["origin"])
        load(place)  # so that what was pickled finds its classes
        told: dict[str, Any] = {"ended": live(place, given=loads(b64decode(order["given"])), **order["life"])}
    except BaseException as problem:
        told = {"raised": f"{type(problem).__name__}: {problem}", "traceback": traceback.format_exc()}
    sys.stdout.flush()
    sys.stderr.flush()
    path = order["outcome"]
    Path(path + ".new").write_text(json.dumps(told), encoding="utf-8")
    os.replace(path + ".new", path)
    os._exit(0)


def _warm_up() -> None:
    """Import what every child needs."""
    import limpet.engine.drivers.async_driver
    import limpet.testing.crash.stage
    import limpet.workflow  # noqa: F401  # a child may need it

    with suppress(ImportError):
        import pytest  # noqa: F401  # a graph that is defined in a test's module needs it


def _forked(order: dict[str, Any]) -> int | None:
    child = os.fork()
    if child == 0:
        be_the_child(order)
    deadline, pause = time.monotonic() + order["timeout"], 0.0005
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline or _is_orphan(pause):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _is_orphan(pause: float) -> bool:
    """Whether nobody is there any more to give orders; takes a moment to find out."""
    ready, _, _ = select([sys.stdin], [], [], pause)
    return bool(ready)  # no order comes before the answer to the last one, so this is the end of them


def _started(order: dict[str, Any]) -> int | None:
    command = [sys.executable, "-m", "limpet.testing.crash.fork_server", "alone"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    try:
        child.communicate(json.dumps(order) + "\n", timeout=order["timeout"])
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return None
    return child.returncode


def _redirect(output: str) -> None:
    """What the user's code prints goes to a file."""
    file: IO[bytes] = open(output, "ab", buffering=0)  # noqa: SIM115  # it stays open until the process ends
    for number in (1, 2):
        os.dup2(file.fileno(), number)


if __name__ == "__main__":
    main()
