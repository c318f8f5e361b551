"""The same run with Limpet: `child_ours.py DATABASE kill|resume`."""

import os
import signal
import sys
from time import perf_counter
from typing import Any

from limpet import StateGraph

database, what = sys.argv[1:3]


def step(state: dict[str, Any]) -> dict[str, Any]:
    if what == "resume":
        print(perf_counter(), state["n"] + 1)
        sys.stdout.flush()
        os._exit(0)
    if state["n"] == 500:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": state["n"] + 1}


graph = StateGraph({"n": int})
graph.add_node("step", step)
graph.set_entry_point("step")
graph.add_edge("step", "step", lambda state: state["n"] < 1000)
graph.set_finish_point("step")
graph.compile(store=f"sqlite:///{database}?level=process")
if what == "kill":
    graph.execute({"n": 0}, run_id="run")
else:
    graph.resume("run")
