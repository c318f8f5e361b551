"""What a client gets as the result of a call: data, structured and as text, and errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mcp_types import CallToolResult, TextContent

from limpet.errors import LimpetError, Operation
from limpet.frontends.values import to_bytes

WITHOUT_STRUCTURE: Final = ("2024-11-05", "2025-03-26")
"""The versions of the protocol in which a result has only text."""

LARGE_TEXT: Final = 100_000
"""Bytes of data from which on it isn't repeated as text, where the client gets it structured."""

LONGEST_MESSAGE: Final = 4000
"""Characters of an error's message that are sent: it may quote what the client has sent."""

NEXT_CALLS: Final[Mapping[Operation, str]] = {
    "answer": "answer_run answers it",
    "cancel": "cancel_run cancels it",
    "fork": "fork_run starts a new run from one of its steps, which get_history lists",
    "history": "get_history lists its steps",
    "result": "get_run has its result",
    "resume": "retry_run hands it back to the workers",
    "retry": "retry_run hands it back to the workers",
    "send": "send_message sends what it waits for",
    "wait": "get_run waits for it",
    "watch": "get_run waits for it",
    "work": "a worker of the store continues it",
}
"""The tool for an operation that an error advises."""


def result_of(data: Mapping[str, Any], version: str, is_error: bool = False) -> CallToolResult:
    """The data as a result, for a client of this version of the protocol."""
    encoded = to_bytes(data)
    text = encoded.decode()
    if len(encoded) > LARGE_TEXT and version not in WITHOUT_STRUCTURE:
        text = _summary(data, len(encoded))
    structured = dict(data)
    if b"\\ud" in encoded:  # maybe half of a pair, which can't be sent
        structured = _sendable(structured)
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured, is_error=is_error
    )


def error_result(problem: LimpetError, version: str) -> CallToolResult:
    """An error of the library as a result, with the tool that helps."""
    data: dict[str, Any] = {"error": {"code": problem.code, "message": problem.message[:LONGEST_MESSAGE]}}
    run_id = getattr(problem, "run_id", None)
    if isinstance(run_id, str):
        data["run_id"] = run_id
    if problem.next_operation in NEXT_CALLS:
        data["next"] = NEXT_CALLS[problem.next_operation]
    return result_of(data, version, is_error=True)


def unexpected_error(version: str) -> CallToolResult:
    """What is said of an error that isn't ours: nothing of what it was about."""
    message = "an unexpected error; the server's log has it"
    return result_of({"error": {"code": "internal", "message": message}}, version, is_error=True)


def as_wire(result: CallToolResult) -> dict[str, Any]:
    """A result inside of another message."""
    dumped: dict[str, Any] = json.loads(result.model_dump_json(by_alias=True, exclude_none=True))
    return dumped


def _summary(data: Mapping[str, Any], size: int) -> str:
    """What is said of large data in place of all of it."""
    small = {key: value for key, value in data.items() if not isinstance(value, dict | list | str)}
    small |= {key: value for key, value in data.items() if isinstance(value, str) and len(value) < 1000}
    return f"{to_bytes(small).decode()}\nThe whole has {size:,} bytes: structuredContent has it."


def _sendable(value: Any) -> Any:
    """JSON in which halves of surrogate pairs are replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_sendable(key): _sendable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_sendable(each) for each in value]
    return value
