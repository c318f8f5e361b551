"""The workflows that the crash suites kill. Their tasks record what they do, see `recording`.

`keep` is how many checkpoints of a run are kept. An observed one is watched by an observer, too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from crash.recording import begin, note_save, pay
from limpet import Retry, TaskResult, Workflow
from limpet.testing import effects

LAYERS = 10
WIDTH = 20


def grid(store: Any) -> Workflow:
    return build_grid(None).compile(store=store, keep=1)


def grid_observed(store: Any) -> Workflow:
    return build_grid(note_save).compile(store=store, keep=5)


def grid_with_all_checkpoints(store: Any) -> Workflow:
    return build_grid(None).compile(store=store, keep=None)


def build_grid(observer: Any) -> Workflow:
    """Ten layers of twenty tasks of six kinds, each of which depends on three of the layer before."""
    kinds: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (plain, {}),
        (later, {}),
        (reporting, {}),
        (paying, {}),
        (plain, {}),
        (trying, {"retry": Retry(attempts=2, backoff=0.001)}),
        (failing, {"safe_to_fail": True}),
    ]
    flow = Workflow("grid", observer=observer)
    for layer in range(LAYERS):
        for place in range(WIDTH):
            run, policy = kinds[(place + layer) % len(kinds)]
            above: list[str] = []
            if layer:
                above = [f"{layer - 1}-{(place + step) % WIDTH:02}" for step in (0, 3, 11)]
            if place == 7:
                policy = {**policy, "condition": chosen(layer)}
            given = {"layer": layer, "place": place}
            flow.add_task(f"{layer}-{place:02}", run, optional=above, arguments=given, **policy)
    return flow


def chosen(layer: int) -> Callable[[], bool]:
    return lambda: layer % 3 != 2


def pretend_to_work(place: int) -> None:
    """Take a moment, so that tasks overtake each other."""
    if place % 4:
        time.sleep(place * 7 % 5 / 2500)


def plain(ctx: Any, results: dict[str, Any], layer: int, place: int) -> Any:
    begin(ctx)
    pretend_to_work(place)
    return place, len(repr(results)), Decimal(layer) / 8, [None, {"deep": (b"\x00", {3, 1})}]


async def later(ctx: Any, results: dict[str, Any], layer: int, place: int) -> Any:
    begin(ctx)
    await asyncio.sleep(place % 3 / 2000)
    ctx.add_message((ctx.node, len(results)))
    return {"when": datetime(2024, 2, 29, tzinfo=UTC) + timedelta(days=layer), "large": 10**30 + place}


def reporting(ctx: Any, context: dict[str, Any], layer: int, place: int) -> TaskResult:
    begin(ctx)
    pretend_to_work(place)
    # A page that replaces the one before: what is superseded brings on snapshots along the way.
    page = random.Random(f"{layer} {place}").randbytes(9000)
    ctx.add_decision("so be it", layer=layer, seen=len(context))
    shared = {f"page-{place}": page, f"last-of-{layer}": place}
    return TaskResult(frozenset([place]), messages=[f"{layer}:{place}", {"m": layer}], context=shared)


def paying(ctx: Any, results: dict[str, Any], layer: int, place: int) -> Any:
    begin(ctx)
    pretend_to_work(place)
    return pay(ctx, "fee", (layer, place))


def trying(ctx: Any, layer: int, place: int) -> Any:
    begin(ctx)
    pretend_to_work(place)
    if ctx.attempt == 1:
        raise ConnectionError("not now")
    ctx.add_context({"last-tried": (layer, place)})
    return layer


def failing(ctx: Any, layer: int, place: int) -> None:
    begin(ctx)
    pretend_to_work(place)
    raise ValueError(f"{layer} is bad")


def changing(store: Any) -> Workflow:
    return build_changing(None).compile(store=store, keep=1)


def changing_observed(store: Any) -> Workflow:
    return build_changing(note_save).compile(store=store, keep=5)


def changing_with_all_checkpoints(store: Any) -> Workflow:
    return build_changing(None).compile(store=store, keep=None)


def build_changing(observer: Any) -> Workflow:
    """A plan that grows as it is carried out: tasks add tasks and skip some, and so does the handler of layers."""
    flow = Workflow("changing", observer=observer)
    flow.add_task("plan", plan).add_template("work", work)
    flow.add_task("unwanted", name_itself, ["plan"]).add_task("spare", name_itself, ["late-2"])
    flow.add_task("late-0", name_itself, ["plan"])
    for number in range(1, 3):
        flow.add_task(f"late-{number}", name_itself, [f"late-{number - 1}"])
    flow.add_task("sum", add_up, ["plan"]).add_task("left-out", name_itself, ["sum"])
    flow.add_task("end", name_itself, optional=["left-out"])
    flow.after_layer(handle)
    return flow


def plan(ctx: Any) -> str:
    begin(ctx)
    for number in range(8):
        given = {"number": number}
        ctx.add_task(f"work-{number}", run="work", depends_on=["plan"], arguments=given, before=["sum"])
    ctx.skip("unwanted", reason="it is unwanted")
    return "planned"


def work(ctx: Any, number: int, **rest: Any) -> TaskResult:
    begin(ctx)
    pretend_to_work(number)
    ctx.add_message((ctx.node, sorted(rest)))
    if number >= 40:
        return TaskResult(number, context={"deepest": ctx.node})
    task = {"name": f"{ctx.node}.{number % 3}", "run": "work", "depends_on": [ctx.node], "before": ["sum"]}
    more: list[dict[str, Any]] = []
    if number % 2 == 0 or number > 4:
        more = [{**task, "arguments": {"number": number * 2 + 3}}]
    return TaskResult({number}, add_tasks=more, skip=["spare"] if number == 3 else [])


def add_up(ctx: Any, **rest: Any) -> Any:
    begin(ctx)
    ctx.skip_layers(reason="enough")
    return {name: type(value).__name__ for name, value in rest.items()}


def name_itself(ctx: Any) -> str:
    begin(ctx)
    name: str = ctx.node
    return name


def handle(layer: int, results: dict[str, Any], state: Any, ctx: Any) -> TaskResult:
    """What happens after each layer. Its effect `handle` has the number of the layer as its key."""
    effects.record("handle", str(layer))
    ctx.add_decision("seen", layer=layer, done=len(state.tasks), tasks=list(results))
    if layer in (1, 3):
        ctx.add_task(f"extra-{layer}", run="work", arguments={"number": 41 + layer}, before=["sum"])
    return TaskResult(messages=[("layer", layer)], context={"layer": layer, "page": b"%d" % layer * 400})


def superseding(store: Any) -> Workflow:
    return build_superseding(None).compile(store=store, keep=1)


def superseding_observed(store: Any) -> Workflow:
    return build_superseding(note_save).compile(store=store, keep=5)


def superseding_with_all_checkpoints(store: Any) -> Workflow:
    return build_superseding(None).compile(store=store, keep=None)


def build_superseding(observer: Any) -> Workflow:
    """Twenty layers whose large context replaces that of the layer before, so that old records are deleted."""
    flow = Workflow("superseding", observer=observer)
    for place in range(4):
        needed: list[str] = []
        for layer in range(20):
            given = {"layer": layer, "place": place}
            flow.add_task(f"{layer}-{place}", supersede, needed, arguments=given)
            needed = [f"{layer}-{place}"]
    return flow


def supersede(ctx: Any, layer: int, place: int) -> TaskResult:
    begin(ctx)
    return TaskResult(place, context={f"page-{place}": random.Random(layer).randbytes(20_000)})
