"""What nodes do besides returning an update: child runs, messages, where to go next, resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from limpet import (
    CaughtError,
    Goto,
    NodeContext,
    Resource,
    RunHandle,
    State,
    StateGraph,
    Workflow,
    WorkflowState,
)


@dataclass
class Page:
    text: str
    words: int = 0


class Client:
    def fetch(self, topic: str) -> str:
        return topic

    def close(self) -> None: ...


pages = StateGraph(Page, name="pages")
flow = Workflow("etl")


def read(state: State[Page], ctx: NodeContext) -> dict[str, Any]:
    child = ctx.start(pages, Page("kelp"), key="one", deadline="2h")
    assert_type(child, RunHandle[State[Page]])
    assert_type(ctx.join(child), State[Page])
    assert_type(ctx.join(child.run_id, pages), State[Page])
    assert_type(ctx.join(child.run_id), Any)
    return {"words": ctx.join(child).model.words}


async def read_later(state: State[Page], ctx: NodeContext) -> dict[str, Any]:
    child = await ctx.astart(flow, {"text": "kelp"})
    assert_type(child, RunHandle[WorkflowState])
    assert_type(await ctx.ajoin(child), WorkflowState)
    assert_type(await ctx.ajoin(child.run_id, flow), WorkflowState)
    ctx.emit({"token": "a"})
    ctx.progress(1, 2, "half of it")
    return {"text": await ctx.areceive("note", deadline="1h", default=None)}


def choose(page: Page, client: Client) -> Goto[Literal["read", "give_up"]] | dict[str, str]:
    if not page.text:
        return Goto("give_up", {"text": client.fetch("kelp")})
    return {"text": "kelp"}


def give_up(error: CaughtError | None) -> None:
    if error is not None:
        print(error.node, error.attempts)


pages.add_node(choose).add_node(read).add_node("give_up", give_up, goto=["read"])
pages.add_error_edge("read", "give_up", on=(ValueError, KeyError))
pages.compile(resources={"client": Resource(Client, close=Client.close)}, observers=["log", print])
