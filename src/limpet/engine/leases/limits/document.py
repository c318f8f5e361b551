"""What a store keeps of a limit: one document for the limit itself, and one for each call that stands in its line.

The document of a limit has its values, its slots, the recent grants for its rate, and the numbers of its line. It is
changed by compare-and-set alone, so what the rules in `rules.py` make of one version isn't mixed with another.
A call in the line is a document of its own, so that a long line makes the limit's document no larger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from limpet.errors import DamagedDocument, DamagedRecord, KeyMissing, UnsupportedFormat
from limpet.graphs.limits import Limit, Rate
from limpet.graphs.names import LIMITS, LINES
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.store import Document, Lane

FORMAT: Final = 1
"""The format of both kinds of documents."""

HELD: Final = "held"
"""A slot that a call or a run uses, under the lease of its run."""
CLAIMING: Final = "claiming"
"""A slot of a run that a worker is about to claim, or has claimed since: `mark` says which worker."""
RESERVED: Final = "reserved"
"""A slot for the first in line, whose run got a post: `mark` is the ticket."""
KEPT: Final = "kept"
"""A slot of a call that has it, and stands in line for another limit: `mark` names its document in that line."""

TICKET_DIGITS: Final = 16

T = TypeVar("T")


class Slot(NamedTuple):
    """One of the places that a limit has. `since` is by the store's clock.

    `counts` says whether it counts for the rate. `fence` is 0 while no lease is behind it. One that is reserved or
    kept for the next run of a lane has the `run_id` "", and the lane as its `call`.
    """

    run_id: str
    fence: int
    call: str
    state: str
    since: float
    mark: str = ""
    counts: bool = True


class Values(NamedTuple):
    """What a limit allows. None is without a limit."""

    concurrency: int | None = None
    rate: Rate | None = None
    queues: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [f"concurrency {self.concurrency}"] if self.concurrency is not None else []
        if self.rate is not None:
            words.append(f"rate {self.rate}")
        if self.queues:
            words.append(f"queues {', '.join(self.queues)}")
        return ", ".join(words) or "nothing"


class LimitDocument(NamedTuple):
    """What is stored of a limit.

    `declared` are the values that the code gives. Those fields of `changed` that `is_set` names were set at run time,
    and win. `window` has the recent grants that count for the rate: when each slice of time ends, and how many.
    Tickets of the line are numbered; from `first` to before `last` some may stand in line, and none if these are
    the same.
    """

    declared: Values = Values()
    changed: Values = Values()
    is_set: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    window: tuple[tuple[float, int], ...] = ()
    first: int = 0
    last: int = 0
    is_deleted: bool = False

    @property
    def values(self) -> Values:
        """What counts."""
        return self.declared._replace(**{name: getattr(self.changed, name) for name in self.is_set})

    @property
    def has_line(self) -> bool:
        """Whether a call may stand in line."""
        return self.first < self.last


class LineEntry(NamedTuple):
    """A call that stands in line, with its ticket. Or the next run of a lane: `run_id` is "", and `call` the lane.

    `round` is another one each time that the call has asked in vain: a run gets one post for each round.
    """

    ticket: str
    run_id: str
    call: str
    counts: bool
    round: str = ""
    version: int = 0
    """That of its document."""

    @property
    def is_of_lane(self) -> bool:
        """Whether it stands for the next run of a lane, whichever that is."""
        return not self.run_id


def lane_text(lane: Lane) -> str:
    """A lane, as a line and a slot name it."""
    return "\n".join(lane)


def lane_in(text: str) -> Lane:
    """The lane that a line or a slot names."""
    # The name of a graph may have any characters.
    queue, _, rest = text.partition("\n")
    graph, _, plan = rest.rpartition("\n")
    return Lane(queue, graph, plan)


def declared_values(limit: Limit) -> Values:
    """The values that the code gives."""
    return Values(limit.concurrency, limit.rate, limit.queues)


def new_ticket(number: int, unique: str) -> str:
    """A ticket. Tickets sort by their numbers."""
    return f"{number:0{TICKET_DIGITS}d}-{unique}"


def ticket_number(ticket: str) -> int:
    """The number of a ticket, which is its place in the line."""
    return int(ticket[:TICKET_DIGITS])


def limit_name(name: str) -> str:
    """The name of a limit's document."""
    return f"{LIMITS}{name}"


def line_prefix(limit: str) -> str:
    """How the names of the documents in a limit's line begin."""
    return f"{LINES}{limit}/"


def line_name(limit: str, ticket: str) -> str:
    """The name of the document of a call that stands in line."""
    return f"{line_prefix(limit)}{ticket}"


def limit_body(name: str, document: LimitDocument) -> bytes:
    """The bytes of a limit's document."""
    return _body(
        limit_name(name),
        {
            "declared": _values_data(document.declared),
            "changed": _values_data(document.changed),
            "is_set": list(document.is_set),
            "slots": [list(slot) for slot in document.slots],
            "window": [list(part) for part in document.window],
            "line": [document.first, document.last],
            "is_deleted": document.is_deleted,
        },
    )


def damage_advice(name: str) -> str:
    """What to do about a limit that can't be read."""
    return f"set its values again with `limpet limits set {name}`, or delete it with `limpet limits delete {name}`"


def read_limit(name: str, body: bytes, version: int = 0) -> LimitDocument:
    """A limit's document. Raises `DamagedDocument`, and `UnsupportedFormat` if a newer Limpet wrote it."""

    def made(data: Mapping[str, Any]) -> LimitDocument:
        first, last = data["line"]
        return LimitDocument(
            _read_values(data["declared"]),
            _read_values(data["changed"]),
            tuple(data["is_set"]),
            tuple(Slot(*slot) for slot in data["slots"]),
            tuple((float(end), int(count)) for end, count in data["window"]),
            int(first),
            int(last),
            bool(data["is_deleted"]),
        )

    return _read(Document(limit_name(name), version, body), made, damage_advice(name))


def entry_body(limit: str, entry: LineEntry) -> bytes:
    """The bytes of the document of a call that stands in line."""
    data = {"run": entry.run_id, "call": entry.call, "counts": entry.counts, "round": entry.round}
    return _body(line_name(limit, entry.ticket), data)


def read_entry(name: str, body: bytes, version: int) -> LineEntry:
    """A call that stands in line, from its document. Raises `StoreError` that names it."""
    ticket = name.rpartition("/")[2]

    def made(data: Mapping[str, Any]) -> LineEntry:
        return LineEntry(
            ticket, str(data["run"]), str(data["call"]), bool(data["counts"]), str(data["round"]), version
        )

    return _read(Document(name, version, body), made, "it is skipped")


def _values_data(values: Values) -> list[Any]:
    rate = None if values.rate is None else list(values.rate)
    return [values.concurrency, rate, list(values.queues)]


def _read_values(data: Any) -> Values:
    concurrency, rate, queues = data
    return Values(concurrency, None if rate is None else Rate(int(rate[0]), float(rate[1])), tuple(queues))


def _body(name: str, data: Mapping[str, Any]) -> bytes:
    return Envelope(name).close(0, encode({"format": FORMAT, **data}))


def _read(found: Document, made: Callable[[Mapping[str, Any]], T], advice: str) -> T:
    name = found.name
    try:
        data = decode(Envelope(name).open(0, found.body))
        if data["format"] == FORMAT:
            return made(data)
    except KeyMissing:
        raise
    except (DamagedRecord, TypeError, LookupError, ValueError) as problem:
        why = problem.reason if isinstance(problem, DamagedRecord) else str(problem)
        raise DamagedDocument(name, found.version, why).with_advice(advice) from problem
    newer = UnsupportedFormat(f"the document {name!r} has format {data['format']!r}: a newer Limpet wrote it")
    raise newer.with_advice("upgrade to read it")
