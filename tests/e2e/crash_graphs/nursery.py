"""A process that forks another for each order it reads, so that a new process costs milliseconds.

An order is a JSON line: the arguments of `fifty.live`, and with `lines` (and `delay`) when to kill the child from
outside: so many seconds after the log has so many lines. The answer is a JSON line: the signal that ended
the child, or what it returned or raised. The nursery itself opens no store.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from typing import Any

from fifty import live

import limpet.engine.drivers.async_driver  # noqa: F401  # so that no child has to import it


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), flush=True)


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    lines, delay = order.pop("lines", None), order.pop("delay", 0.0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        be_the_child(order, writing)
    os.close(writing)
    if lines is not None:
        kill_at(child, order["log"], lines, delay)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"signal": 0, **json.loads(said)}


def be_the_child(order: dict[str, Any], writing: int) -> None:
    try:
        outcome = {"returned": live(**order)}
    except BaseException:
        outcome = {"raised": traceback.format_exc()}
    with open(writing, "wb") as pipe:
        pipe.write(json.dumps(outcome).encode())
    os._exit(0)


def kill_at(child: int, log: str, lines: int, delay: float) -> None:
    """Kill the child when the log is so long, a moment later; not if it ends before."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        if length(log) >= lines:
            break
        time.sleep(0.0001)
    moment = time.monotonic() + delay
    while time.monotonic() < moment:
        pass
    os.kill(child, signal.SIGKILL)


def length(log: str) -> int:
    try:
        with open(log, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main()
