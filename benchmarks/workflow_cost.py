"""What a workflow costs a task: to define and compile it, and to run it; wide ones, and deep ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from itertools import count
from time import process_time
from typing import Any

import by_hand
from measure import Result, folder

from limpet import Workflow, open_store

WIDTH = 100
SIZES = (100, 1_000, 10_000)
MADE_IN = 25e-6
"""The goal for defining and compiling, in seconds a task."""

RUN_IN = 45e-6
"""The goal for running. A task of a chain has a commit of its own, and no goal."""


def workflow_cost() -> Iterator[Result]:
    """100, 1,000 and 10,000 trivial tasks: 100 chains of them side by side, and one chain.

    The times are those of the processor, as the goals are times: other work on the machine doesn't count. By hand, a
    workflow is a dict of names, sorted by `graphlib`; a run calls the functions in that order, and commits what
    those that are ready together result in.
    """
    for size in SIZES:
        for shape, width in ((f"{WIDTH} wide", WIDTH), ("a chain", 1)):
            what = f"{size:,} tasks, {shape}"
            rounds = max(3, 5_000 // size)
            hand = _best(lambda: _sorted_by_hand(size, width), rounds)  # noqa: B023
            ours = _best(lambda: _flow(size, width).compile(), rounds)  # noqa: B023
            yield _line(f"{what}: define, compile", hand / size, ours / size, MADE_IN)
            hand, ours = _run(size, width, max(2, 2_000 // size))
            goal = RUN_IN if width > 1 and size > WIDTH else float("inf")
            yield _line(f"{what}: run", hand / size, ours / size, goal)


def _flow(size: int, width: int) -> Workflow:
    flow = Workflow("cost")
    for number in range(size):
        if number < width:
            flow.add_task(f"t{number}", _add_one, arguments={"before": 0})
        else:
            flow.add_task(f"t{number}", _add_one, {"before": f"t{number - width}"})
    return flow


def _add_one(before: int) -> int:
    return before + 1


def _needed_by_hand(size: int, width: int) -> dict[str, list[str]]:
    return {f"t{number}": [f"t{number - width}"] if number >= width else [] for number in range(size)}


def _sorted_by_hand(size: int, width: int) -> list[str]:
    return list(TopologicalSorter(_needed_by_hand(size, width)).static_order())


def _run(size: int, width: int, rounds: int) -> tuple[float, float]:
    """The seconds that a run takes by hand, and as a workflow."""
    runs = count()
    with folder() as place:
        connection = by_hand.open_database(f"{place}/hand.db")
        store = open_store(f"sqlite:///{place}/ours.db?level=process")
        needed = _needed_by_hand(size, width)
        flow = _flow(size, width).compile(store=store)
        hand = _best(lambda: _run_by_hand(connection, f"run{next(runs)}", needed), rounds)
        ours = _best(flow.execute, rounds)
        connection.close()
    return hand, ours


def _run_by_hand(connection: Any, run: str, needed: dict[str, list[str]]) -> None:
    results: dict[str, int] = {}
    sorter = TopologicalSorter(needed)
    sorter.prepare()
    layer = 0
    while sorter.is_active():
        ready = sorter.get_ready()
        found = {name: _add_one(*([results[each] for each in needed[name]] or [0])) for name in ready}
        results.update(found)
        by_hand.save(connection, run, layer, found)
        layer += 1
        sorter.done(*ready)


def _best(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        gc.collect()
        began = process_time()
        work()
        taken.append(process_time() - began)
    return min(taken)


def _line(what: str, hand: float, ours: float, goal: float) -> Result:
    """A line whose goal is a time, as what is done by hand here is too little to be compared with."""
    shown = f"≤ {goal * 1e6:g} µs" if goal < float("inf") else "-"
    return Result(what, _shown(hand), _shown(ours), ours / hand, shown, ours <= goal)


def _shown(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs/task"
