"""What following a run costs beside running it, and what a node pays to emit a token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import log
from time import process_time
from typing import Annotated, Any

import by_hand
from measure import Result, against, folder

from limpet import NodeContext, StateGraph, append

STEPS = 4000
ITEM = "x" * 1000
TOKENS = 5000


def streaming() -> Iterator[Result]:
    """4,000 steps with a history that grows by 1 KB each: `stream` beside `invoke`, which is the first column.

    Then how the time of `stream` grows with the steps, and a node that emits tokens to a follower by way of SQLite,
    against one `INSERT; COMMIT` for each token.
    """
    plain = remembering(STEPS)
    yield against(
        "stream beside invoke, growing history", lambda: invoke(plain), lambda: stream(plain), 2, STEPS, 5
    )
    with folder() as place:
        stored = remembering(STEPS, store=f"sqlite:///{place}/runs.db?level=process")
        yield against("  the same, SQLite", lambda: invoke(stored), lambda: stream(stored), 2, STEPS, 5)
        short = _best(remembering(STEPS // 4))
        long = _best(plain)
        exponent = log(long / short) / log(4)
        text = f"{exponent:.2f}"
        yield Result("  exponent of the time of stream", "1.00", text, exponent, "≤ 1.10", exponent <= 1.10)

        talking = one_node(_talk, store=f"sqlite:///{place}/tokens.db?level=process")
        connection = by_hand.open_database(f"{place}/hand.db")
        runs = count()

        def save_each() -> None:
            run = f"run{next(runs)}"
            for number in range(TOKENS):
                by_hand.save(connection, run, number, {"token": "token "})

        yield against(
            "a node emits tokens, SQLite", save_each, lambda: talking.execute({}), 2, TOKENS, 5, "µs/token"
        )
        connection.close()


def one_node(node: Any, more: Any = None, schema: Any = None, **options: Any) -> StateGraph:
    graph = StateGraph(schema, max_iterations=None)
    graph.add_node("step", node)
    graph.set_entry_point("step")
    if more is not None:
        graph.add_edge("step", "step", more)
    graph.set_finish_point("step")
    return graph.compile(**options)


def remembering(steps: int, **options: Any) -> StateGraph:
    def remember(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [f"{state['n']} {ITEM}"]}

    schema = {"n": int, "log": Annotated[list, append]}
    return one_node(remember, lambda state: state["n"] < steps, schema, **options)


def invoke(graph: StateGraph) -> None:
    for _ in graph.invoke({"n": 0}):
        pass


def stream(graph: StateGraph) -> None:
    for _ in graph.stream({"n": 0}):
        pass


def _talk(state: dict[str, Any], ctx: NodeContext) -> None:
    for _ in range(TOKENS):
        ctx.emit("token ")


def _best(graph: StateGraph) -> float:
    taken = []
    for _ in range(5):
        began = process_time()
        stream(graph)
        taken.append(process_time() - began)
    return min(taken)
