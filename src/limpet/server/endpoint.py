"""What a route of the API is: its method and path, what it takes, and the function that answers it.

`Endpoint` is the one description of a route. Requests are checked against it, and the OpenAPI document is made from
it. The function gets an `ApiRequest`, whose values have been checked, and returns plain data, a `FileAnswer` or a
`FileOnDisk`. It knows nothing of HTTP and may block: the application calls it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.errors import UsageError, did_you_mean
from limpet.frontends.given_values import check_depth, check_no_mask, check_text
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.frontends.shown_runs import ShownRuns, StoredState
from limpet.journal.store import Store
from limpet.runs import Runs
from limpet.schedules import Schedules
from limpet.server.run_changes import RunChanges
from limpet.server.run_counts import RecentAnswers, StatusCounts
from limpet.server.timeline import Timelines

TEXT: Final = "text"
TEXTS: Final = "texts"
INTEGER: Final = "integer"
FLAG: Final = "flag"
OBJECT: Final = "object"
ANYTHING: Final = "anything"

KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    TEXT: {"type": "string"},
    TEXTS: {"type": "array", "items": {"type": "string"}},
    INTEGER: {"type": "integer"},
    FLAG: {"type": "boolean"},
    OBJECT: {"type": "object"},
    ANYTHING: {},
}
"""The kinds of values that requests have, as JSON Schema."""

LARGEST_NUMBER: Final = 2**53
"""Whole numbers in requests are at most this large: JavaScript can't tell larger ones apart."""

MAX_DIGITS: Final = 17
"""Characters of such a number: one with thousands of zeros before it isn't read."""

MAX_VALUES: Final = 1000
"""Values in the query of a request, at most."""


class Parameter(NamedTuple):
    """A value that a request may have, in its query or in its body."""

    name: str
    kind: str
    about: str
    is_required: bool = False


ANSWERS_AS: Final = Parameter("by", TEXT, "who answers or approves, for the history: unless the server knows")


class Service(NamedTuple):
    """What requests are answered from: the runs in a store, and the graphs whose code is known here, by name."""

    store: Store
    runs: Runs
    schedules: Schedules
    graphs: Mapping[str, GraphOnStore]
    timelines: Timelines
    changes: RunChanges
    counts: RecentAnswers[StatusCounts]
    read_only: bool = False

    @property
    def shown(self) -> ShownRuns:
        """The runs as they may be shown."""
        return ShownRuns(self.store, self.graphs)

    def state(self, run_id: str, step: int | None = None, branch: str | None = None) -> StoredState:
        """The state of a run after a step, or its newest saved state; that of a branch, if one is named."""
        return self.shown.state(run_id, step, branch)

    def now(self) -> float:
        """The time by the store's clock, as far as that is known without asking."""
        return self.shown.now()

    def secrets(self, run_id: str) -> frozenset[str]:
        """The secret keys of a run, as far as they can be known. Raises `RunNotFound`."""
        return self.shown.secrets(run_id)

    def known_secrets(self, graph: str) -> frozenset[str]:
        """The keys that are secret by the code of a graph. Its runs know those that were when they were created."""
        return self.shown.known_secrets(graph)


class ApiRequest(NamedTuple):
    """A request after it was checked: the values in its path, and those of its query or body that were given."""

    service: Service
    path: Mapping[str, str]
    values: Mapping[str, Any]
    body: bytes = b""
    """The body, for a route that takes a file."""
    user: str = ""
    """Who makes it, as far as the server knows: what the host's own check gave."""

    @property
    def answers_as(self) -> str | None:
        """Who will be known to have answered: the user whom the server knows, else whom the request names."""
        return self.user or self.values.get("by") or None

    @property
    def run_id(self) -> str:
        """The run that the path names."""
        return self.path["run_id"]


class FileAnswer(NamedTuple):
    """An answer that isn't JSON."""

    content: bytes
    media_type: str
    name: str = ""
    """If it has one, browsers save it under this name."""
    policy: str = ""
    """The Content Security Policy of what browsers show by itself; that of the page, if it has none."""


class FileOnDisk(NamedTuple):
    """An answer that is sent from a file, however large it is. Afterwards `delete` deletes it."""

    path: Path
    media_type: str
    name: str
    delete: Callable[[], None]


class Endpoint(NamedTuple):
    """A route of the API."""

    method: str
    path: str
    answer: Callable[[ApiRequest], Any]
    summary: str
    gives: str
    """The schema of the answer, by its name in the OpenAPI document."""
    query: Sequence[Parameter] = ()
    body: Sequence[Parameter] = ()
    takes_file: bool = False
    is_public: bool = False
    """Whether it needs no token of the server: what it takes has one of its own."""
    is_costly: bool = False
    """Whether it looks through many runs: only a few such requests are answered at the same time."""
    may_be_over: bool = False
    """Whether a stream may have nothing more to give: the answer is 204 then, and clients don't come back."""

    @property
    def changes(self) -> bool:
        """Whether it changes anything, so that a read-only server refuses it."""
        return self.method != "GET"

    @property
    def streams(self) -> bool:
        """Whether its function is async, and returns server-sent events one by one."""
        return self.gives == "EventStream"


def limit_of(request: ApiRequest, most: int, usual: int) -> int:
    """How many things a page is to have. Raises `UsageError` for less than one, or too many."""
    limit = request.values.get("limit")
    if limit is None:
        return usual
    if not 1 <= limit <= most:
        raise UsageError(f"limit must be from 1 to {most}, not {limit}")
    return int(limit)


def query_values(endpoint: Endpoint, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The values in the query of a request. Raises `UsageError` for one that isn't known or doesn't fit."""
    known = {each.name: each for each in endpoint.query}
    found: dict[str, Any] = {}
    if len(pairs) > MAX_VALUES:
        raise UsageError(f"the query has {len(pairs):,} values, and at most {MAX_VALUES:,} are read")
    for name, text in pairs:
        parameter = known.get(name)
        if parameter is None:
            raise UsageError(f"there is no parameter {name[:80]!r} here{did_you_mean(name[:80], known)}")
        check_text(name, text)
        if parameter.kind == TEXTS:
            found.setdefault(name, []).append(text)
        elif name in found:
            raise UsageError(f"the parameter {name!r} was given twice")
        else:
            found[name] = _value_of_text(parameter, text)
    for parameter in endpoint.query:
        if parameter.is_required and parameter.name not in found:
            raise UsageError(f"the parameter {parameter.name!r} is needed: {parameter.about}")
    return found


def body_values(endpoint: Endpoint, body: Any) -> dict[str, Any]:
    """The values in the body of a request. Raises `UsageError` for one that isn't known or doesn't fit."""
    if not isinstance(body, dict):
        raise UsageError("the body of the request must be a JSON object")
    known = {each.name: each for each in endpoint.body}
    for name, value in body.items():
        if name not in known:
            raise UsageError(f"the body has no field {name[:80]!r} here{did_you_mean(name[:80], known)}")
        _check_value(known[name], value)
    check_depth(body, "the body of the request")
    for parameter in endpoint.body:
        if parameter.is_required and parameter.name not in body:
            raise UsageError(f"the body needs the field {parameter.name!r}: {parameter.about}")
    return body


def checked_for_urls(name: str | None) -> str | None:
    """A new id of a run, or name of a schedule. Raises `UsageError` for one that means another path in a URL."""
    if name in (".", ".."):
        raise UsageError(f"a run or a schedule can't be named {name!r} here: no URL could name it")
    return name


def _value_of_text(parameter: Parameter, text: str) -> Any:
    match parameter.kind:
        case "integer":
            is_whole = text.isascii() and text.removeprefix("-").isdecimal()
            if is_whole and len(text) <= MAX_DIGITS and abs(int(text)) <= LARGEST_NUMBER:
                return int(text)
            raise UsageError(f"the parameter {parameter.name!r} must be a whole number, not {text[:80]!r}")
        case "flag":
            if text in ("true", "false"):
                return text == "true"
            raise UsageError(f"the parameter {parameter.name!r} must be true or false, not {text[:80]!r}")
        case _:
            return text


def _check_value(parameter: Parameter, value: Any) -> None:
    if value is None and not parameter.is_required:
        return
    fits = True
    match parameter.kind:
        case "text":
            fits = isinstance(value, str)
        case "texts":
            fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        case "integer":
            fits = type(value) is int and abs(value) <= LARGEST_NUMBER
        case "flag":
            fits = isinstance(value, bool)
        case "object":
            fits = isinstance(value, dict)
    for text in _texts_of(parameter, value, fits):
        check_text(parameter.name, text)
    if parameter.kind in (OBJECT, ANYTHING):
        check_no_mask(f"the field {parameter.name!r}", value)
    if not fits:
        wanted = {TEXTS: "a list of texts", FLAG: "true or false", INTEGER: "a whole number"}
        raise UsageError(f"the field {parameter.name!r} must be {wanted.get(parameter.kind, parameter.kind)}")


def _texts_of(parameter: Parameter, value: Any, fits: bool) -> list[str]:
    if not fits or parameter.kind not in (TEXT, TEXTS):
        return []
    return [value] if parameter.kind == TEXT else value
