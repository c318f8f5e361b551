"""What `pause` and `once` return, by what they are given."""

from __future__ import annotations

from typing import Any, Literal, assert_type

from pydantic import BaseModel

from limpet import NodeContext, once, pause


class Verdict(BaseModel):
    approved: bool
    reason: str = ""


def by_schema() -> None:
    assert_type(pause("How many?", schema=int), int)
    assert_type(pause("Name?", schema=str, key="name", secret=True), str)
    assert_type(pause("Good?", schema=Verdict), Verdict)
    assert_type(pause("Good?", schema={"type": "object"}), Any)
    assert_type(pause("Good?"), Any)


def by_choices() -> None:
    assert_type(pause("Ship it?", choices=["yes", "no"]), str)
    assert_type(pause("How many?", choices=[1, 2, 3]), int)
    answer: Literal["yes", "no"] = pause("Ship it?", choices=["yes", "no"])
    assert answer


def with_deadline() -> None:
    assert_type(pause("How many?", schema=int, deadline=60), int)
    assert_type(pause("How many?", schema=int, deadline=60, default=None), int | None)
    assert_type(pause("How many?", schema=int, deadline=60, default=0), int)
    assert_type(pause("Good?", schema=Verdict, deadline=60, on_timeout=decide), Verdict | str)
    assert_type(pause("Ship it?", choices=["yes", "no"], deadline=60, default=None), str | None)


def decide() -> str:
    return "later"


async def in_an_async_node(ctx: NodeContext) -> None:
    assert_type(ctx.pause("How many?", schema=int), int)
    assert_type(ctx.pause("Good?", schema=Verdict, deadline=60, default=None), Verdict | None)
    assert_type(ctx.pause("Ship it?", choices=["yes", "no"]), str)
    assert_type(await once("price", price, "nets"), float)
    assert_type(ctx.once("length", len, "nets"), int)


async def price(item: str) -> float:
    return 2.5 * len(item)
