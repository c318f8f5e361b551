"""The same loop with other libraries: what a saved step costs, and what runs again after kill -9.

    pip install langgraph langgraph-checkpoint-sqlite dbos burr limpet
    python benchmarks/compared.py

Each library runs a loop of one trivial node over a counter, and saves it after each step to SQLite, with its own
store, in a process of its own. Then the same loop is killed in the middle of a node, and a new process continues it
as the library's documentation says. Those that aren't installed are left out. `BENCH_DIR` is where the stores are,
such as a RAM disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

STEPS = 1000
KILLED_AT = 50
CRASH_STEPS = 60

Work = Callable[[int], int]
Loop = Callable[[Path, int, Work, bool], None]


def limpet(folder: Path, steps: int, work: Work, resumes: bool) -> None:
    from limpet import StateGraph

    graph = StateGraph({"n": int}, name="loop", max_iterations=None)
    graph.add_node("work", lambda state: {"n": work(state["n"])})
    graph.set_entry_point("work").add_edge("work", "work", lambda state: state["n"] < steps)
    graph.set_finish_point("work").compile(store=f"sqlite:///{folder}/runs.db?level=process")
    if resumes:
        graph.resume("r")
    else:
        graph.execute({"n": 0}, run_id="r")


def langgraph(folder: Path, steps: int, work: Work, resumes: bool, durability: str = "async") -> None:
    import sqlite3
    from typing import Any, TypedDict

    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        n: int

    graph: Any = StateGraph(State)
    graph.add_node("work", lambda state: {"n": work(state["n"])})
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["n"] < steps else END)
    connection = sqlite3.connect(folder / "runs.db", check_same_thread=False)
    app = graph.compile(checkpointer=SqliteSaver(connection))
    config = {"configurable": {"thread_id": "r"}, "recursion_limit": steps + 10}
    app.invoke(None if resumes else {"n": 0}, config, durability=durability)


def langgraph_sync(folder: Path, steps: int, work: Work, resumes: bool) -> None:
    langgraph(folder, steps, work, resumes, "sync")


def dbos(folder: Path, steps: int, work: Work, resumes: bool) -> None:
    import logging

    from dbos import DBOS, SetWorkflowID

    DBOS(config={"name": "compared", "system_database_url": f"sqlite:///{folder}/runs.db"})
    logging.getLogger("dbos").setLevel(logging.ERROR)

    @DBOS.step()
    def step(n: int) -> int:
        return work(n)

    @DBOS.workflow()
    def loop() -> int:
        n = 0
        while n < steps:
            n = step(n)
        return n

    DBOS.launch()
    if resumes:
        DBOS.retrieve_workflow("r").get_result()
    else:
        with SetWorkflowID("r"):
            loop()
    DBOS.destroy()


def burr(folder: Path, steps: int, work: Work, resumes: bool) -> None:
    from burr.core import ApplicationBuilder, State, action, default, expr
    from burr.core.persistence import SQLitePersister

    @action(reads=["n"], writes=["n"])
    def step(state: State) -> State:
        return state.update(n=work(state["n"]))

    @action(reads=["n"], writes=[])
    def end(state: State) -> State:
        return state

    keeper = SQLitePersister(str(folder / "runs.db"), table_name="runs")
    keeper.initialize()
    builder = ApplicationBuilder().with_actions(step=step, end=end)
    builder = builder.with_transitions(("step", "end", expr(f"n >= {steps}")), ("step", "step", default))
    builder = builder.initialize_from(
        keeper, resume_at_next_action=True, default_state={"n": 0}, default_entrypoint="step"
    )
    builder = builder.with_state_persister(keeper).with_identifiers(app_id="r", partition_key="p")
    builder.build().run(halt_after=["end"])


LIBRARIES: dict[str, tuple[str, Loop]] = {
    "Limpet": ("limpet", limpet),
    "LangGraph": ("langgraph", langgraph),
    'LangGraph, durability="sync"': ("langgraph", langgraph_sync),
    "DBOS": ("dbos", dbos),
    "Burr": ("burr", burr),
}


def child(name: str, what: str, folder: Path) -> None:
    """What a process of its own does: measure the loop, die in its middle, or continue it."""
    loop = LIBRARIES[name][1]
    if what == "cost":
        loop(folder / "warm", 3, lambda n: n + 1, False)
        began = perf_counter()
        loop(folder, STEPS, lambda n: n + 1, False)
        print((perf_counter() - began) / STEPS * 1e6)
        return

    def noted(n: int) -> int:
        with open(folder / "calls", "a") as calls:
            calls.write(f"{n}\n")
        if what == "crash" and n == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return n + 1

    loop(folder, CRASH_STEPS, noted, what == "resume")


def output_of(name: str, what: str, folder: Path) -> str:
    command = [sys.executable, __file__, name, what, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != (-signal.SIGKILL if what == "crash" else 0):
        raise SystemExit(f"{name}, {what}:\n{done.stderr}")
    return done.stdout


def main() -> None:
    print("| library | µs a saved step | finished steps that ran again after kill -9 |\n|---|---|---|")
    for name, (package, _) in LIBRARIES.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as place:
            folders = [Path(place, each) for each in ("cost", "cost/warm", "crash")]
            for folder in folders:
                folder.mkdir()
            cost = float(output_of(name, "cost", folders[0]).split()[-1])
            output_of(name, "crash", folders[2])
            output_of(name, "resume", folders[2])
            calls = Counter(int(line) for line in (folders[2] / "calls").read_text().split())
        assert set(calls) == set(range(CRASH_STEPS)), name
        repeated = sum(count - 1 for n, count in calls.items() if n != KILLED_AT)
        print(f"| {name} {installed} | {cost:,.0f} | {repeated} |")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        child(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    else:
        main()
