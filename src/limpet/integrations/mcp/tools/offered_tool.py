"""What a tool is: a name, what it takes, what it changes, and the function that answers a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from anyio.to_thread import run_sync
from mcp.server.context import ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    Tool,
    ToolAnnotations,
)

from limpet.engine.node_context.answer_schemas import why_unfit
from limpet.errors import UsageError, did_you_mean
from limpet.frontends.given_values import check_depth, check_no_mask, check_text
from limpet.integrations.mcp.run_answers import who_answers
from limpet.integrations.mcp.served_runs import ServedRuns

READS: Final = "reads"
ADDS: Final = "adds"
REPLACES: Final = "replaces"
DELETES: Final = "deletes"
"""What a tool does to the store. A read-only server has those that read."""

TEXT: Final = {"type": "string"}
NUMBER: Final = {"type": "number"}
WHOLE_NUMBER: Final = {"type": "integer"}
FLAG: Final = {"type": "boolean"}
OBJECT: Final = {"type": "object"}
TEXTS: Final = {"type": "array", "items": {"type": "string"}}
ANYTHING: Final[Mapping[str, Any]] = {}

Answer = CallToolResult | InputRequiredResult | dict[str, Any]
"""What a call gives: a result, a request for input, or data of which a result is made."""


class ToolCall(NamedTuple):
    """A call of a tool, after its arguments were checked."""

    served: ServedRuns
    context: ServerRequestContext[Any, Any]
    params: CallToolRequestParams
    values: Mapping[str, Any]

    @property
    def answers_as(self) -> str:
        """Who will be known to have answered."""
        return who_answers(self.context)


class OfferedTool(NamedTuple):
    """A tool: what clients see of it, and what it does."""

    name: str
    about: str
    schema: Mapping[str, Any]
    answer: Callable[[ToolCall], Awaitable[Answer]]
    effect: str = READS
    result_schema: Mapping[str, Any] | None = None
    free_texts: frozenset[str] = frozenset()
    """The arguments that may be any text, as they are values of a state. Others are names and ids."""
    prepare: Callable[[ToolCall], None] | None = None
    """What is to be done before a call is answered, also one with which a client hands back replies."""

    @property
    def as_listed(self) -> Tool:
        """The tool as a client sees it."""
        annotations = ToolAnnotations(
            read_only_hint=self.effect == READS,
            destructive_hint=self.effect in (REPLACES, DELETES),
            idempotent_hint=self.effect in (READS, DELETES),
        )
        result_schema = None if self.result_schema is None else dict(self.result_schema)
        return Tool(
            name=self.name,
            description=self.about,
            input_schema=dict(self.schema),
            output_schema=result_schema,
            annotations=annotations,
        )


def takes(required: Sequence[str] = (), **properties: tuple[Mapping[str, Any], str]) -> dict[str, Any]:
    """The schema of the arguments of a tool: each has a type, and says what it is for."""
    described = {name: {**kind, "description": about} for name, (kind, about) in properties.items()}
    schema: dict[str, Any] = {"type": "object", "properties": described, "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema


def in_thread(answer: Callable[[ToolCall], dict[str, Any]]) -> Callable[[ToolCall], Awaitable[Answer]]:
    """The function of a tool that waits for the store only."""

    async def call(call: ToolCall) -> Answer:
        return await run_sync(answer, call)

    return call


def checked_arguments(tool: OfferedTool, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call. Raises `UsageError` for what the tool doesn't take, and for masks of secrets."""
    check_depth(arguments, "the arguments")
    for name, value in arguments.items():
        if name not in tool.free_texts and isinstance(value, str):
            check_text(name, value)
    check_values(arguments, tool.schema, tool.name, "argument")
    for name, value in arguments.items():
        check_no_mask(f"the argument {name!r}", value)
    return arguments


def check_values(values: Mapping[str, Any], schema: Mapping[str, Any], taker: str, kind: str) -> None:
    """Raise `UsageError` unless these values fit the schema of an object, of which each value is a `kind`."""
    properties = schema.get("properties", {})
    for name in values:
        if name not in properties and schema.get("additionalProperties") is False:
            raise UsageError(f"{taker} takes no {kind} {name[:80]!r}{did_you_mean(name[:80], properties)}")
    for name in schema.get("required", ()):
        if name not in values:
            raise UsageError(f"{taker} needs the {kind} {name!r}")
    for name, value in values.items():
        # One by one, so that the message has the name; and no value of a secret one is quoted.
        wanted = {**properties.get(name, {}), "$defs": schema.get("$defs", {})}
        if problem := why_unfit(value, wanted, f"the {kind} {name!r}"):
            if wanted.get("writeOnly"):
                problem = f"the {kind} {name!r} doesn't fit its schema; as it is secret, it isn't shown"
            raise UsageError(problem)
