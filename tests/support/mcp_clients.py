"""Clients of an MCP server in tests: the real one of the SDK, with replies that are prepared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult

from limpet import MemoryStore, supervise
from limpet.integrations.mcp import server
from limpet.journal.store import Store

T = TypeVar("T")
MODES = ("auto", "legacy")
"""The present protocol, and that with a handshake before it."""

WAIT = 60.0
"""Seconds that a call follows its run: on a busy machine, runs take long."""


class Person:
    """Who fills in forms: replies in turn, and what was asked."""

    def __init__(self, *replies: dict[str, Any] | str) -> None:
        self._replies = list(replies)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append((params.message, params.requested_schema))
        reply = self._replies.pop(0)
        if isinstance(reply, str):
            return ElicitResult(action=reply)  # type: ignore[arg-type]  # "decline" or "cancel"
        return ElicitResult(action="accept", content=reply)


def says(value: Any) -> dict[str, Any]:
    """A filled form with one field."""
    return {"answer": value}


@contextmanager
def serving(
    graphs: Sequence[Any], store: Store | None = None, wait: float = WAIT, **options: Any
) -> Iterator[Server[Any]]:
    """A server of these graphs, whose runs are executed here."""
    store = MemoryStore() if store is None else store
    with supervise(store, graphs, poll=0.05) as supervisor:
        yield server(store, graphs, supervisor=supervisor, wait=wait, **options)


def talk(
    target: Any,
    conversation: Callable[[Client], Awaitable[T]],
    mode: str = "auto",
    person: Any = None,
    **options: Any,
) -> T:
    """What a conversation with a server gives. Raises the error that the server answers with."""

    async def connect() -> T | MCPError:
        async with Client(target, mode=mode, elicitation_callback=person, **options) as client:
            try:
                return await conversation(client)
            except MCPError as problem:  # raised here, it would come in groups of errors
                return problem

    answer = asyncio.run(connect())
    if isinstance(answer, MCPError):
        raise answer
    return answer


def call(
    target: Any,
    tool: str,
    arguments: dict[str, Any] | None = None,
    mode: str = "auto",
    person: Any = None,
    **options: Any,
) -> CallToolResult:
    """The result of one call by a client of its own."""

    async def conversation(client: Client) -> CallToolResult:
        return await client.call_tool(tool, arguments or {})

    return talk(target, conversation, mode, person, **options)


def data(result: CallToolResult) -> Any:
    """What a call gave that was no error."""
    assert not result.is_error, result.content
    return result.structured_content


def problem(result: CallToolResult) -> dict[str, Any]:
    """What a call gave that was an error."""
    assert result.is_error, result.structured_content
    found: dict[str, Any] = result.structured_content
    return found
