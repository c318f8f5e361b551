"""Data flow: two chains of tasks whose slow tasks aren't in the same layer, against a thread for each chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep

from measure import Result, against, folder

from limpet import Workflow, open_store

CHAINS = ((0.1, 0.3, 0.1), (0.3, 0.1, 0.1))
"""What each task takes, in seconds. The longest chain takes 0.5; with a barrier after each layer, it would be 0.7."""


def data_flow() -> Iterator[Result]:
    """Two chains of three tasks that wait: the second task of one begins while the first of the other still runs."""
    with folder() as place:
        store = open_store(f"sqlite:///{place}/flow.db")
        flow = _flow().compile(store=store)
        barriers = _flow(layers=True).compile(store=store)
        yield against("2 chains of 3 tasks: data flow", _by_hand, flow.execute, 1.1, rounds=3, unit="ms")
        yield against(
            "2 chains of 3 tasks: with barriers",
            _by_hand,
            barriers.execute,
            float("inf"),
            rounds=3,
            unit="ms",
        )


def _flow(*, layers: bool = False) -> Workflow:
    flow = Workflow("chains", layers=layers)
    for chain, seconds in enumerate(CHAINS):
        earlier: list[str] = []
        for number, each in enumerate(seconds):
            name = f"chain{chain}_task{number}"
            flow.add_task(name, _waiting(each), earlier)
            earlier = [name]
    return flow


def _waiting(seconds: float) -> Callable[[], None]:
    return lambda: sleep(seconds)


def _by_hand() -> None:
    with ThreadPoolExecutor(len(CHAINS)) as pool:
        list(pool.map(lambda seconds: [sleep(each) for each in seconds], CHAINS))
