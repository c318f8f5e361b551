"""The OpenAPI document of the API, made from its routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from limpet.frontends.problems import MEDIA_TYPE
from limpet.server.endpoint import KINDS, TEXTS, Endpoint, Parameter
from limpet.version import VERSION


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "number"}
_INTEGER: Final = {"type": "integer"}
_OBJECT: Final = {"type": "object"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
_SIZES: Final = {"type": "object", "additionalProperties": _INTEGER}
_TEXTS_BY_KEY: Final = {"type": "object", "additionalProperties": _TEXT}


def _list_of(name: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}


SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "About": _object(
        {
            "version": _TEXT,
            "store": _TEXT,
            "graphs": {"type": "array", "items": _TEXT},
            "read_only": {"type": "boolean"},
            "filters": {"type": "object", "additionalProperties": _TEXT},
            "statuses": {"type": "object", "additionalProperties": _TEXT},
            "now": _NUMBER,
            "user": _TEXT,
        }
    ),
    "Run": _object(
        {
            "run_id": _TEXT,
            "graph": _TEXT,
            "status": _TEXT,
            "stored_status": _TEXT,
            "created": _NUMBER,
            "updated": _NUMBER,
            "step": _INTEGER,
            "node": _OPTIONAL_TEXT,
            "reason": _OPTIONAL_TEXT,
            "tags": {"type": "array", "items": _TEXT},
            "questions": {"type": "array", "items": _OBJECT},
            "question_count": _INTEGER,
            "cursor": _TEXT,
        }
    ),
    "RunPage": _object(
        {"runs": _list_of("Run"), "next": _OPTIONAL_TEXT, "searched": {"type": ["integer", "null"]}}
    ),
    "Step": _object(
        {
            "id": _TEXT,
            "step": _INTEGER,
            "node": _OPTIONAL_TEXT,
            "branch": _OPTIONAL_TEXT,
            "at": _NUMBER,
            "next": _OPTIONAL_TEXT,
            "status": _TEXT,
            "keys": {"type": "array", "items": _TEXT},
            "reason": _OPTIONAL_TEXT,
        }
    ),
    "StepPage": _object({"steps": _list_of("Step"), "next": {"type": ["integer", "null"]}}),
    "State": _object(
        {"values": _OBJECT, "large": _SIZES, "not_json": _TEXTS_BY_KEY, "incomplete": _TEXTS_BY_KEY}
    ),
    "Sizes": _object({"sizes": _SIZES}),
    "Task": _object(
        {"task": _TEXT, "depends_on": {"type": "array", "items": _TEXT}, "status": _OPTIONAL_TEXT},
        result={},
        result_size=_INTEGER,
        timestamp=_NUMBER,
        duration=_NUMBER,
        attempts=_INTEGER,
        layer=_INTEGER,
        reason=_OPTIONAL_TEXT,
        error={"type": ["object", "null"]},
        secret={"type": "boolean"},
    ),
    "TaskList": _object({"tasks": _list_of("Task"), "next": _OPTIONAL_TEXT}),
    "OutputPage": _object(
        {
            "items": {"type": "array", "items": _object({"number": _INTEGER, "type": _TEXT, "at": _NUMBER})},
            "next": {"type": ["integer", "null"]},
        }
    ),
    "QuestionList": _object(
        {"questions": {"type": "array", "items": _object({"id": _TEXT, "prompt": _TEXT})}}
    ),
    "Difference": _object(
        {"changes": {"type": "object", "additionalProperties": _object({"change": _TEXT})}}
    ),
    "Outcome": _object({"run_id": _TEXT, "graph": _TEXT, "status": _TEXT, "result": _TEXT, "reason": _TEXT}),
    "Outcomes": _object(
        {
            "done": _INTEGER,
            "planned": _INTEGER,
            "skipped": _INTEGER,
            "failed": _INTEGER,
            "runs": _list_of("Outcome"),
        },
        created={"type": "object", "additionalProperties": _TEXT},
    ),
    "Counts": _object(
        {
            "counts": {"type": "object", "additionalProperties": _INTEGER},
            "more": {"type": "array", "items": _TEXT},
        }
    ),
    "Timeline": _object(
        {
            "version": _TEXT,
            "reset": {"type": "boolean"},
            "rows": {"type": "array", "items": _object({"id": _INTEGER, "status": _TEXT, "start": _NUMBER})},
            "total": _INTEGER,
            "dropped": _INTEGER,
            "more": {"type": "boolean"},
            "ready": _NUMBER,
            "active": {
                "type": "array",
                "items": _object({"branch": _TEXT, "label": _TEXT, "since": _NUMBER}),
            },
            "run": {"$ref": "#/components/schemas/Run"},
            "problem": _OPTIONAL_TEXT,
        }
    ),
    "RowDetail": _object(
        {
            "row": _OBJECT,
            "update": {"type": ["object", "null"]},
            "large": {"type": "object", "additionalProperties": _INTEGER},
            "bytes": _INTEGER,
            "attempts": {"type": "array", "items": _OBJECT},
            "error": {"type": ["object", "null"]},
            "questions": {"type": "array", "items": _OBJECT},
            "answers": _OBJECT,
            "by": {"type": "object", "additionalProperties": _TEXT},
            "answered": {"type": "object", "additionalProperties": _NUMBER},
            "approved_by": _OPTIONAL_TEXT,
            "output": {"type": "array", "items": _OBJECT},
            "more_output": {"type": "boolean"},
        },
        removed={"type": "array", "items": _TEXT},
    ),
    "EventPage": _object(
        {
            "events": {"type": "array", "items": _object({"type": _TEXT, "at": _NUMBER, "cursor": _TEXT})},
            "next": _OPTIONAL_TEXT,
            "more": {"type": "boolean"},
            "problem": _OPTIONAL_TEXT,
        }
    ),
    "Comparison": _object({"changes": _OBJECT, "same": {"type": "array", "items": _TEXT}}),
    "WaitingRuns": _object({"runs": _list_of("Run"), "total": _INTEGER, "more": {"type": "boolean"}}),
    "Link": _object({"path": _TEXT, "expires": _NUMBER}),
    "LinkedQuestion": _object(
        {
            "graph": _TEXT,
            "run_id": _TEXT,
            "is_open": {"type": "boolean"},
            "expires": _NUMBER,
            "question": {"type": ["object", "null"]},
        }
    ),
    "Answered": _object({"answered": _TEXT, "run_id": _TEXT}),
    "Schedule": _object(
        {"name": _TEXT, "graph": _TEXT, "status": _TEXT, "when": _TEXT, "timezone": _TEXT},
        input={"type": ["object", "null"]},
        input_size=_INTEGER,
        config={"type": ["object", "null"]},
        config_size=_INTEGER,
    ),
    "ScheduleList": _object({"schedules": _list_of("Schedule")}),
    "Times": _object({"times": {"type": "array", "items": _NUMBER}}),
    "RunId": _object({"run_id": _TEXT}),
    "Workers": _object(
        {"workers": {"type": "array", "items": _OBJECT}, "unserved": {"type": "array", "items": _OBJECT}}
    ),
    "Sent": _object({"sent": {"type": "boolean"}}),
    "Deleted": _object({"deleted": _TEXT}),
    "Graph": _object(
        {
            "name": _TEXT,
            "fingerprint": _TEXT,
            "kind": {"enum": ["graph", "workflow"]},
            "schema": _OBJECT,
            "nodes": {"type": "array", "items": _TEXT},
            "keys": {
                "type": "object",
                "additionalProperties": _object(
                    {"type": _TEXT, "secret": {"type": "boolean"}, "has_default": {"type": "boolean"}}
                ),
            },
        }
    ),
    "GraphList": _object({"graphs": _list_of("Graph")}),
    "Problem": _object(
        {"type": _TEXT, "title": _TEXT, "status": _INTEGER, "code": _TEXT, "detail": _TEXT},
        advice=_TEXT,
        next=_TEXT,
        run_id=_TEXT,
    ),
    "File": {"type": "string", "format": "binary"},
    "Picture": _TEXT,
    "Metrics": _TEXT,
    "Health": _object({"status": _TEXT}),
    "EventStream": {
        "type": "string",
        "description": (
            "server-sent events, each with its cursor as its id; the last one is `end` (there won't be more) "
            "or `problem` (with a Problem), after which the client closes the stream"
        ),
    },
}
"""The schemas of answers, by name."""

LAST_EVENT_ID: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "the id of the last message that the client got, as browsers send it; in place of `after`",
    "schema": _TEXT,
}

MEDIA_TYPES: Final = {
    "File": "application/octet-stream",
    "Picture": "image/svg+xml",
    "Metrics": "text/plain",
    "EventStream": "text/event-stream",
}
"""The answers that aren't JSON."""


HEALTH: Final = Endpoint(
    "GET", "/healthz", lambda _: None, "Whether the store answers", "Health", is_public=True
)
METRICS: Final = Endpoint("GET", "/metrics", lambda _: None, "Numbers for Prometheus", "Metrics")
"""What a program asks about the server itself, outside of the API; the application answers it."""


def openapi(endpoints: Iterable[Endpoint], root: str, prefix: str) -> dict[str, Any]:
    """The document. The routes are under the prefix, and that under the path where the application is mounted."""
    paths: dict[str, dict[str, Any]] = {}
    for each in (HEALTH, METRICS):
        paths[root + each.path] = {each.method.lower(): _operation(each)}
    for endpoint in endpoints:
        path = root + prefix + re.sub(r":\w+}", "}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Limpet", "version": VERSION, "summary": "The runs in a store"},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    media_type = MEDIA_TYPES.get(endpoint.gives, "application/json")
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method.lower()}{re.sub(r'[^a-z]+', '_', endpoint.path)}".rstrip("_"),
        "parameters": [*_path_parameters(endpoint), *map(_query_parameter, endpoint.query)],
        "responses": {
            "200": {
                "description": endpoint.summary,
                "content": {media_type: {"schema": {"$ref": f"#/components/schemas/{endpoint.gives}"}}},
            },
            "default": {
                "description": "what went wrong",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if endpoint.takes_file:
        content: dict[str, Any] = {"application/octet-stream": {"schema": SCHEMAS["File"]}}
        operation["requestBody"] = {"required": True, "content": content}
    elif endpoint.body:
        fields = {each.name: _field(each) for each in endpoint.body}
        required = [each.name for each in endpoint.body if each.is_required]
        schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        operation["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": schema}},
        }
    if endpoint.streams:
        operation["parameters"].append(LAST_EVENT_ID)
    if endpoint.may_be_over:
        operation["responses"]["204"] = {"description": "there won't be more"}
    if endpoint.is_public:
        operation["security"] = []
    return operation


def _field(parameter: Parameter) -> dict[str, Any]:
    """What a field of a body may be: one that isn't needed may also be null, as if it was left out."""
    described = {**KINDS[parameter.kind], "description": parameter.about}
    if "type" in described and not parameter.is_required:
        described["type"] = [described["type"], "null"]
    return described


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": "query",
        "required": parameter.is_required,
        "description": parameter.about,
        "schema": dict(KINDS[parameter.kind]),
    }
    if parameter.kind == TEXTS:
        described["explode"] = True
    return described
