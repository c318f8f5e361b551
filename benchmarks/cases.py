"""The measurements, one function each, with the goals they are held to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from math import log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import by_hand
from conversation import conversation
from data_flow import data_flow
from layers import layers, thousand_tasks
from measure import Result, against, folder, ratio, sizes, stored_bytes
from postgres import postgres_loop, postgres_runs
from processes import processes
from streaming import streaming
from workflow_cost import workflow_cost

from limpet import StateGraph, append, open_store

STEPS = 1000
HISTORY = 2000
ITEM = "x" * 1000
TASKS = 1000


def one_node(schema: Any, node: by_hand.Node, more: Any, **options: Any) -> StateGraph:
    """A graph of one node that runs until `more` says no."""
    graph = StateGraph(schema, max_iterations=10**9)
    graph.add_node("step", node)
    graph.set_entry_point("step")
    graph.add_edge("step", "step", more)
    graph.set_finish_point("step")
    return graph.compile(**options)


def tick(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def ticking(limit: int) -> Any:
    return lambda state: state["n"] < limit


def loop() -> Iterator[Result]:
    """1,000 trivial steps over a state of 20 keys, nothing saved: against a small graph runner by hand.

    The second line is what a graph costs at all: against `while`, call, merge. No goal is set for it.
    """
    graph, more = one_node({"n": int}, tick, ticking(STEPS)), ticking(STEPS)
    state = {"n": 0, **{f"key{number}": number for number in range(1, 20)}}
    for what, loop, goal in (
        ("", by_hand.graph_loop, 5.0),
        (" (bare while)", by_hand.bare_loop, float("inf")),
    ):
        yield against(
            f"loop, no store{what}",
            lambda: loop(tick, more, state),  # noqa: B023
            lambda: graph.execute(state),
            goal, STEPS, 25,
        )  # fmt: skip


def durable_loop() -> Iterator[Result]:
    """The same with SQLite, each step committed: on a RAM disk, and on the real one with an fsync each."""
    for ram, level, synchronous, goal in ((True, "process", "NORMAL", 1.5), (False, "disk", "FULL", 1.2)):
        with folder(ram=ram) as place:
            connection = by_hand.open_database(str(place / "hand.db"), synchronous)
            graph = one_node(
                {"n": int},
                tick,
                ticking(STEPS),
                store=f"sqlite:///{place}/ours.db?level={level}",
                preserve=True,
            )
            runs, more = count(), ticking(STEPS)
            yield against(
                f"loop, SQLite, {'RAM disk' if ram else 'real disk, fsync'}",
                lambda: by_hand.durable_loop(connection, f"run{next(runs)}", tick, more, {"n": 0}),  # noqa: B023
                lambda: graph.execute({"n": 0}),  # noqa: B023
                goal, STEPS, 21 if ram else 7,
            )  # fmt: skip
            connection.close()


def history() -> Iterator[Result]:
    """A history that grows by 1 KB a step, 2,000 steps: time, bytes, memory, and how time grows."""
    with folder() as place:
        runs = count()

        def ours(steps: int, name: str = "ours") -> None:
            schema = {"n": int, "log": Annotated[list, append]}
            store = f"sqlite:///{place}/{name}.db?level=process"
            grow = one_node(schema, _remember, ticking(steps), store=store, preserve=True)
            grow.execute({"n": 0})

        def hand(steps: int, name: str = "hand") -> None:
            connection = by_hand.open_database(f"{place}/{name}.db")
            state, run = {"n": 0, "log": []}, f"run{next(runs)}"
            while state["n"] < steps:
                update = _remember(state)
                state["n"] = update["n"]
                state["log"].append(update["log"])
                by_hand.save(connection, run, state["n"], update)
            connection.close()

        yield against(
            "history +1 KB a step: time", lambda: hand(HISTORY), lambda: ours(HISTORY), 2, HISTORY, 5
        )
        hand(HISTORY, "hand1")
        ours(HISTORY, "ours1")
        yield sizes(
            "history +1 KB a step: bytes",
            stored_bytes(place / "hand1.db"),
            stored_bytes(place / "ours1.db"),
            1.3,
        )
        short, long = _best(lambda: ours(HISTORY // 2)), _best(lambda: ours(HISTORY * 2))
        exponent = log(long / short) / log(4)
        yield Result(
            "history: exponent of time", "1.00", f"{exponent:.2f}", exponent, "≤ 1.05", exponent <= 1.05
        )
        peaks = []
        for work in (hand, ours):
            tracemalloc.start()
            work(HISTORY)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        yield sizes("history: peak memory", peaks[0], peaks[1], 1.5)


def _remember(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": f"{state['n']:06} {ITEM}"}


def big_state() -> Iterator[Result]:
    """A state of 1,000 task results, 1 MB, of which one small key changes a step: save time and bytes."""
    steps = 300
    results = {f"task{n}": {"id": n, "text": "y" * 950, "ok": True} for n in range(TASKS)}
    with folder() as place:
        moments: list[float] = []

        def node(state: dict[str, Any]) -> dict[str, Any]:
            moments.append(perf_counter())
            return {"n": state["n"] + 1}

        def gaps() -> float:
            found = median(b - a for a, b in pairwise(moments))
            moments.clear()
            return found

        connection = by_hand.open_database(f"{place}/hand.db")
        graph = one_node(
            {"n": int}, node, ticking(steps), store=f"sqlite:///{place}/ours.db?level=process", preserve=True
        )
        times: tuple[list[float], list[float]] = ([], [])
        for run in range(5):
            by_hand.durable_loop(connection, f"run{run}", node, ticking(steps), {"n": 0, **results})
            times[0].append(gaps())
            graph.execute({"n": 0, **results})
            times[1].append(gaps())
        yield ratio("1 MB state, small change: p50", min(times[0]), min(times[1]), 2)
        grown: dict[str, list[int]] = {"hand": [], "ours": []}
        for more in (ticking(steps), ticking(11 * steps)):  # what both runs store once cancels out
            before = {name: stored_bytes(place / f"{name}.db") for name in grown}
            by_hand.durable_loop(connection, f"bytes{before['hand']}", tick, more, {"n": 0, **results})
            ours = f"sqlite:///{place}/ours.db?level=process"
            one_node({"n": int}, tick, more, store=ours, preserve=True).execute({"n": 0, **results})
            for name, sizes_found in grown.items():
                sizes_found.append(stored_bytes(place / f"{name}.db") - before[name])
        hand, ours_too = ((many - few) / (10 * steps) for few, many in grown.values())
        yield sizes("1 MB state: bytes a checkpoint", hand, ours_too, 1.3)
        connection.close()


def many_runs() -> Iterator[Result]:
    """200 runs of 20 steps at once in one process, by threads and by asyncio, against one after the other by hand."""
    runs, steps = 200, 20
    with folder() as place:
        connection = by_hand.open_database(f"{place}/hand.db")
        store = open_store(f"sqlite:///{place}/ours.db?level=process")
        numbers, more = count(), ticking(steps)

        def hand() -> None:
            for _ in range(runs):
                by_hand.durable_loop(connection, f"run{next(numbers)}", tick, more, {"n": 0})

        async def atick(state: dict[str, Any]) -> dict[str, Any]:
            return {"n": state["n"] + 1}

        async def gather() -> None:
            await asyncio.gather(*(woven.aexecute({"n": 0}) for _ in range(runs)))

        def threads() -> None:
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(lambda _: graph.execute({"n": 0}), range(runs)))

        graph = one_node({"n": int}, tick, more, store=store)
        woven = one_node({"n": int}, atick, more, store=store)
        by_hand_time = _best(hand)
        for name, work in (("threads", threads), ("asyncio", lambda: asyncio.run(gather()))):
            taken = _best(work)
            rate, hand_rate = runs * steps / taken, runs * steps / by_hand_time
            share = rate / hand_rate
            yield Result(
                f"200 runs at once, SQLite, {name}", f"{hand_rate:,.0f} steps/s", f"{rate:,.0f} steps/s",
                share, "≥ 0.6×", share >= 0.6,
            )  # fmt: skip
        connection.close()


def parallel() -> Iterator[Result]:
    """A map over 1,000 trivial items: against a bare ThreadPoolExecutor, and one that commits each result."""
    numbers = count()
    state = {"items": list(range(TASKS)), **{f"key{number}": number for number in range(20)}}
    with folder() as place:
        connection = by_hand.open_database(f"{place}/hand.db")
        store = open_store(f"sqlite:///{place}/ours.db?level=process")

        def saving() -> None:
            run = f"run{next(numbers)}"
            by_hand.spread(add_one, state, save=lambda *step: by_hand.save(connection, run, *step))

        for what, hand, options in (
            ("no store", lambda: by_hand.spread(add_one, state), {}),
            ("SQLite", saving, {"store": store}),
        ):
            graph = _mapped(**options)
            yield against(
                f"map of 1,000 trivial tasks, {what}", hand, lambda: graph.execute(state),  # noqa: B023
                2.0, TASKS, unit="µs/task",
            )  # fmt: skip
        connection.close()


def add_one(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["item"] + 1}


def _mapped(**options: Any) -> StateGraph:
    graph = StateGraph()
    graph.add_node("begin")
    graph.add_map("begin", add_one, over="items", fan_in="total")
    graph.add_fanin_node(
        "total", lambda state, parallel_results: {"total": sum(each["n"] for each in parallel_results)}
    )
    graph.set_entry_point("begin")
    graph.set_finish_point("total")
    return graph.compile(**options)


def resume() -> Iterator[Result]:
    """From process start to the next step after kill -9 at step 500; and opening a run of 10,000 steps."""
    with folder() as place:
        taken: dict[str, list[float]] = {"hand": [], "ours": []}
        for _ in range(5):
            for who in taken:
                database = place / f"{who}.db"
                for leftover in place.glob(f"{who}*"):
                    leftover.unlink()
                _child(who, database, "kill")
                taken[who].append(_child(who, database, "resume"))
        yield ratio("kill -9 at step 500 → next step", min(taken["hand"]), min(taken["ours"]), 1.6, "ms")
        store = f"sqlite:///{place}/long.db?level=process"
        long = one_node({"n": int}, tick, ticking(10_000), store=store, preserve=True)
        long.execute({"n": 0}, run_id="long")
        began: list[float] = []

        def next_step(state: dict[str, Any]) -> dict[str, Any]:
            began.append(perf_counter())
            return {"n": state["n"] + 1}

        best = float("inf")
        for _ in range(5):
            long.rollback("long", 9_999)
            graph = one_node({"n": int}, next_step, ticking(0), store=store, preserve=True)
            start = perf_counter()
            graph.resume("long")
            best = min(best, began[-1] - start)
        yield Result(
            "resume of a 10,000-step run", "-", f"{best * 1e3:.1f} ms", best * 1e3, "≤ 20 ms", best <= 0.02
        )


def importing() -> Iterator[Result]:
    """`from limpet import StateGraph` over bare Python: names are imported when they are asked for."""
    bare, ours = (
        min(_timed([sys.executable, "-c", code]) for _ in range(15))
        for code in ("pass", "from limpet import StateGraph")
    )
    extra = (ours - bare) * 1e3
    yield Result(
        "import StateGraph",
        f"{bare * 1e3:.1f} ms",
        f"{ours * 1e3:.1f} ms",
        extra,
        "≤ 50 ms more",
        extra <= 50,
    )


def _child(who: str, database: Path, what: str) -> float:
    began = perf_counter()
    here = Path(__file__).parent
    command = [sys.executable, str(here / f"child_{who}.py"), str(database), what]
    child = subprocess.run(command, capture_output=True, text=True, env=_usual_environment())
    if what == "kill":
        assert child.returncode == -signal.SIGKILL, child.stderr
        return 0.0
    assert child.returncode == 0, child.stderr
    moment, step = child.stdout.split()
    assert step == "501", f"resumed at step {step}"
    return float(moment) - began


def _timed(command: list[str]) -> float:
    began = perf_counter()
    subprocess.run(command, check=True, env=_usual_environment())
    return perf_counter() - began


def _usual_environment() -> dict[str, str]:
    """With compiled modules kept, as they are wherever Python isn't told otherwise."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _best(work: Any, rounds: int = 3) -> float:
    taken = []
    for _ in range(rounds):
        began = perf_counter()
        work()
        taken.append(perf_counter() - began)
    return min(taken)


CASES = (
    loop,
    durable_loop,
    history,
    streaming,
    big_state,
    many_runs,
    parallel,
    data_flow,
    layers,
    thousand_tasks,
    workflow_cost,
    resume,
    conversation,
    importing,
    postgres_loop,
    postgres_runs,
    processes,
)
