"""A run by hand that kills itself at step 500, or resumes from there: `child_hand.py DATABASE kill|resume`."""

import os
import signal
import sys
from time import perf_counter
from typing import Any

import by_hand

database, what = sys.argv[1:3]


def step(state: dict[str, Any]) -> dict[str, Any]:
    if what == "resume":
        print(perf_counter(), state["n"] + 1)
        sys.stdout.flush()
        os._exit(0)
    if state["n"] == 500:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": state["n"] + 1}


connection = by_hand.open_database(database)
number, found = by_hand.restore(connection, "run", {"n": 0})
by_hand.durable_loop(connection, "run", step, lambda state: state["n"] < 1000, found, number + 1)
