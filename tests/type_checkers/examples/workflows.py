"""Tasks by decorators, which depend on each other by their functions."""

from __future__ import annotations

from typing import assert_type

from limpet import Workflow, WorkflowState

flow = Workflow("etl")


@flow.task
def fetch(inputs: dict[str, str]) -> list[str]:
    return inputs["text"].split()


@flow.task(depends_on=[fetch])
def count(fetch: list[str]) -> int:
    return len(fetch)


@flow.task(depends_on={"words": fetch}, retry=2)
async def longest(words: list[str]) -> str:
    return max(words, key=len)


@flow.task(depends_on=[count, "longest"], optional=[fetch], name="report")
def write_report(count: int, longest: str, fetch: list[str] | None) -> str:
    return f"{count} words, the longest is {longest}"


@flow.template
def clean(text: str) -> str:
    return text.strip()


flow.add_task("again", count, depends_on={"fetch": fetch})
assert_type(fetch({"text": "a b"}), list[str])
assert_type(count(["a"]), int)


def run() -> WorkflowState:
    final = flow.execute({"text": "kelp grows"})
    assert_type(final, WorkflowState)
    return final
