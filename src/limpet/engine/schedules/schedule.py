"""A schedule as it is kept in a store: what it starts, when, and how far it has come.

It is one document, which is changed only if it still has the version that was read. So of several workers that decide
about the same planned time, one succeeds, and the others look again.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from limpet.engine.schedules.timetable import Timetable, stamp
from limpet.errors import DamagedDocument, UnsupportedFormat
from limpet.graphs.names import SCHEDULES
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import Document, Store

Overlap = Literal["skip", "queue", "allow", "cancel_old"]
CatchUp = Literal["none", "last", "all"]
OVERLAPS: Final[tuple[Overlap, ...]] = ("skip", "queue", "allow", "cancel_old")
CATCH_UPS: Final[tuple[CatchUp, ...]] = ("none", "last", "all")

FIRED: Final = "fired"
SKIPPED: Final = "skipped"
FAILED: Final = "failed"

FORMAT: Final = 1
KEPT_FIRINGS: Final = 20
"""How many of its newest firings a schedule remembers."""
MAX_DETAIL: Final = 500
"""Characters of an error that a schedule remembers."""


class ScheduledStart(NamedTuple):
    """What the runs of a schedule start with. `input` and `config` are encoded: only workers need their classes."""

    graph: str
    input: bytes
    config: bytes
    tags: tuple[str, ...] = ()
    queue: str | None = None
    priority: int = 0
    secrets: tuple[str, ...] = ()
    """The keys of the input that are never shown."""


class SchedulePlan(NamedTuple):
    """What a user has decided about a schedule."""

    start: ScheduledStart
    timetable: Timetable
    overlap: Overlap = "skip"
    catch_up: CatchUp = "none"


class Place(NamedTuple):
    """How far a schedule has come in its timetable. It only moves forward, whatever the clock does.

    `next` is the first planned time that isn't decided. Those of `waiting` are to be fired, in this order, when the
    runs before them have ended. The runs of `starting` are decided and exist, but may not have begun. `triggers` are
    the ids of runs that a user wants besides the plan.
    """

    next: int | None
    waiting: tuple[int, ...] = ()
    starting: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    is_paused: bool = False
    newest: int | None = None
    """The newest planned time that is decided."""

    def due(self) -> float | None:
        """From when on a worker has something to do."""
        if self.starting or self.triggers:
            return 0.0
        if self.is_paused:
            return None
        # A time that waits has come, whatever the clock says by now.
        return 0.0 if self.waiting else self.next

    def head(self, now: float) -> int | None:
        """The planned time to decide about first, if it has come."""
        if self.waiting:
            return self.waiting[0]
        if self.next is not None and self.next <= now:
            return self.next
        return None


class Firing(NamedTuple):
    """The outcome of a planned time, or of a trigger: `fired`, `skipped` or `failed`; `detail` says why.

    `planned` is in seconds since the epoch; of a trigger, it is when a user asked for the run. `status` is that
    of its run now, where it was asked for.
    """

    planned: float
    outcome: str
    run_id: str | None = None
    detail: str = ""
    status: str | None = None


class Record(NamedTuple):
    """What a schedule has done. `recent` are its newest firings, the newest last."""

    fired: int = 0
    skipped: int = 0
    failed: int = 0
    recent: tuple[Firing, ...] = ()
    last_error: str = ""

    def with_firing(self, firing: Firing, count: int = 1) -> Record:
        """The record with one more firing, which stands for `count` of them."""
        recent = (*self.recent, firing._replace(detail=firing.detail[:MAX_DETAIL]))[-KEPT_FIRINGS:]
        match firing.outcome:
            case "fired":
                return self._replace(fired=self.fired + count, recent=recent)
            case "skipped":
                return self._replace(skipped=self.skipped + count, recent=recent)
            case _:
                return self._replace(
                    failed=self.failed + count, recent=recent, last_error=firing.detail[:MAX_DETAIL]
                )


class Schedule(NamedTuple):
    """A schedule, as of one version of its document."""

    name: str
    plan: SchedulePlan
    place: Place
    record: Record = Record()

    @property
    def tag(self) -> str:
        """The tag that all its runs have."""
        return f"schedule:{self.name}"

    def run_id(self, planned: float) -> str:
        """The id of the run of a planned time."""
        return f"{self.name}:{stamp(planned)}"

    def mentions(self, run_id: str) -> bool:
        """Whether it has yet to begin a run, or may find that it was prepared."""
        place = self.place
        heads = [*place.waiting[:1]]
        if place.next is not None:
            heads.append(place.next)
        return run_id in (*place.starting, *place.triggers, *map(self.run_id, heads))


def find_schedule(store: Store, name: str) -> tuple[Schedule, int] | None:
    """The schedule of this name with its version; None if there is none. Raises `StoreError`."""
    try:
        document = store.get_document(SCHEDULES + name)
    except DamagedDocument as damage:
        damage.with_advice(_damage_advice(name))
        raise
    if document is None:
        return None
    return read_schedule(document), document.version


def write_schedule(store: Store, schedule: Schedule, version: int) -> int | None:
    """Write a schedule that is still at this version (0: that doesn't exist); None if it isn't."""
    name = SCHEDULES + schedule.name
    return store.put_document(name, _encoded(schedule), version, schedule.place.due())


def read_schedule(document: Document) -> Schedule:
    """The schedule in a document. Raises `UnsupportedFormat` and `DamagedDocument`."""
    name = document.name.removeprefix(SCHEDULES)
    try:
        data = decode(document.body)
        if data["format"] == FORMAT:
            return _decoded(name, data)
        written = data["format"]
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        damage = DamagedDocument(
            document.name, document.version, f"it can't be read: {type(problem).__name__}: {problem}"
        )
        raise damage.with_advice(_damage_advice(name)) from problem
    raise UnsupportedFormat(
        f"schedule {name!r} has format {written!r}, which a newer version of Limpet wrote"
    )


def _damage_advice(name: str) -> str:
    return f"add it again with replace=True, or delete it with `limpet schedules delete {name}`"


def _encoded(schedule: Schedule) -> bytes:
    plan, place, record = schedule.plan, schedule.place, schedule.record
    data: dict[str, Any] = {
        "format": FORMAT,
        "start": plan.start._asdict(),
        "timetable": plan.timetable._asdict(),
        "overlap": plan.overlap,
        "catch_up": plan.catch_up,
        "place": place._asdict(),
        "record": {**record._asdict(), "recent": [tuple(each[:4]) for each in record.recent]},
    }
    return encode(data)


def _decoded(name: str, data: dict[str, Any]) -> Schedule:
    record = data["record"]
    firings = tuple(Firing(*each) for each in record["recent"])
    plan = SchedulePlan(
        ScheduledStart(**data["start"]), Timetable(**data["timetable"]), data["overlap"], data["catch_up"]
    )
    return Schedule(name, plan, Place(**data["place"]), Record(**{**record, "recent": firings}))
