"""What a store knows of its runs, for lists and for a look at one: `RunInfo`, and the statuses shown to people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from time import time
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from limpet.defaults import QUEUE
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.process_identity import describe_holder, is_dead, this_process
from limpet.engine.operations.stored_state import viewed_tail
from limpet.errors import (
    DamagedRecord,
    KeyMissing,
    LimpetError,
    Operation,
    RunNotFound,
    RunQuarantined,
    UnsupportedFormat,
)
from limpet.graphs.edges import END
from limpet.graphs.plan import PLANNER
from limpet.journal.encoding.envelope import key_id_of, no_key
from limpet.journal.inbox import is_answer_to
from limpet.journal.optional_calls import ListsUnreadable, provides
from limpet.journal.record_shapes import read_summary
from limpet.journal.run_filter import Cursor, LeaseState, RunFilter
from limpet.journal.store import (
    CANCELLED,
    DAMAGED,
    FAILED,
    PAUSED,
    RUNNING,
    STATUSES,
    RunHead,
    Store,
    is_due_by,
)
from limpet.journal.threads.kinds import LIBRARIES, kind_of
from limpet.journal.verify import readable_head
from limpet.journal.waits import INTERRUPTED, MESSAGE, PostWait, Question, box_of, reason_of
from limpet.stores.heads import unreadable

QUEUED: Final = "queued"
SLEEPING: Final = "sleeping"
RETRYING: Final = "retrying"
WAITING: Final = "waiting"
ABANDONED: Final = "abandoned"
QUARANTINED: Final = "quarantined"
THREAD: Final = "thread"


class ShownStatus(NamedTuple):
    """A finer status for people, derived from the stored one and from what else is known of the run."""

    name: str
    stored: str
    when: str


LISTED_STATUSES: Final = (*STATUSES, DAMAGED)
"""The statuses that `RunInfo.status` has. The last one is never stored."""

SHOWN_STATUSES: Final = (
    ShownStatus(QUEUED, RUNNING, "it is due and no process holds it: the next free worker claims it"),
    ShownStatus(SLEEPING, RUNNING, "no process holds it, and it is due later"),
    ShownStatus(RETRYING, RUNNING, "its node failed, no process holds it, and the next attempt is due later"),
    ShownStatus(
        WAITING, RUNNING, "no process holds it, and it waits for something else than a time or an answer"
    ),
    ShownStatus(ABANDONED, RUNNING, "the process that holds it has crashed, or its lease has expired"),
    ShownStatus(QUARANTINED, FAILED, "its process crashed too many times in a row at the same node"),
    ShownStatus(THREAD, PAUSED, "it is a thread of another library, such as LangGraph, which continues it"),
)
"""`RunInfo.shown_status` gives these."""


class RunInfo(NamedTuple):
    """What a store knows of a run: enough for a list, and to see what a paused or failed run needs.

    `step` and `node` are where the run is now, `created` and `updated` are seconds since the epoch, `reason` is why
    it has stopped, and `error` is its last one. `due` is from when on the run needs a process, by the store's
    clock: 0 means at once, None not by itself. `parent` is the run that started it.
    """

    run_id: str
    graph: str
    status: str
    created: float
    updated: float
    tags: tuple[str, ...]
    parent: str | None
    step: int
    node: str
    reason: str | None
    error: dict[str, Any] | None
    questions: list[Question]
    holder: str | None
    due: float | None = None
    problem: str | None = None
    """Why no more is known of the run: its key is missing, or it is damaged, as its status then says."""
    waits_for: str = ""
    """The kind of what it waits for, where that is neither a time nor an answer."""
    lease_expired: bool = False
    """Whether its holder hasn't renewed its lease in time: it has crashed, or is cut off from the store."""
    deadline: float | None = None
    """When the run fails if it hasn't ended, by the store's clock."""
    waits: Sequence[PostWait] = ()
    """What its nodes wait for, where that is neither a time nor an answer: messages, by name."""
    messages: Mapping[str, int] = MappingProxyType({})
    """How many messages of each name wait for it to receive them, of those that it has taken in."""
    inbox: int = 0
    """How many posts wait for a process to take them in: messages, answers, requests to cancel."""
    forked_from: str | None = None
    """The checkpoint that it was forked from."""
    queue: str = QUEUE
    """The queue from which workers take it."""
    plan: str = ""
    """The fingerprint of the plan that its graph had when it was last saved whole; empty if that isn't known."""
    priority: int = 0
    """Workers take runs of a higher one first."""

    @property
    def shown_status(self) -> str:
        """The status as people see it: one of `SHOWN_STATUSES` where one applies, else the stored status."""
        return self.shown_at(time())

    def shown_at(self, now: float) -> str:
        """`shown_status` at a time by the store's clock."""
        return status_for_people(self, (self.error or {}).get("type"), self.lease_expired, now)

    @property
    def kind(self) -> str:
        """The library whose thread it is, such as "langgraph"; "" for a run that Limpet executes."""
        return kind_of(self.plan)

    @property
    def waits_for_approval(self) -> bool:
        """Whether it was interrupted before or after a node: `answer()` without a value approves it."""
        return self.status == PAUSED and not self.questions and (self.reason or "").startswith(INTERRUPTED)

    def _repr_html_(self) -> str | None:
        # By its name, as the views belong to a layer above this one.
        shown: str | None = import_module("limpet.engine.views.run_view").html_of_info(self)
        return shown

    @property
    def cursor(self) -> str:
        """Its place in a list, for `list(after=…)`."""
        return cursor_text(Cursor(self.created, self.run_id))

    @property
    def held_by(self) -> str | None:
        """The process that holds the run, in words; None if no process holds it."""
        if self.holder is None:
            return None
        return describe_holder(self.holder)


def status_for_people(run: RunInfo | RunHead, error: str | None, has_expired: bool, now: float) -> str:
    """The status as people see it, at a time by the store's clock: one rule for runs and for their heads.

    `error` is the type of its last error, and `has_expired` says whether its lease has.
    """
    if run.status == FAILED and error == RunQuarantined.__name__:
        return QUARANTINED
    if run.status != RUNNING:
        if run.status == PAUSED and kind_of(run.plan):
            return THREAD
        return run.status
    if run.holder is not None:
        return ABANDONED if has_expired or is_dead(run.holder) else RUNNING
    if is_due_by(now, run.due, run.created):
        return QUEUED
    if run.waits_for:
        return WAITING
    if run.due is None:
        return QUEUED
    return RETRYING if error else SLEEPING


class RunList(list[RunInfo]):
    """Runs in a list, which a notebook shows as a table.

    `next` is where the next page begins, for `list(after=…)`; None if there is none. `searched` is how many runs were
    looked through for a text, if that was as many as a list looks through at once: then others may match, too.
    """

    __slots__ = ("next", "searched")

    def __init__(self, runs: Iterable[RunInfo] = ()) -> None:
        super().__init__(runs)
        self.next: str | None = None
        self.searched: int | None = None

    def _repr_html_(self) -> str:
        from limpet.drawing.notebook import rows_as_html

        columns = ("run", "graph", "status", "node", "step", "updated", "waits for, or failed with")
        return rows_as_html([_table_row(info) for info in self], columns)


class WayOn(NamedTuple):
    """What to do about a run: the advice of an error, and the operation that it advises."""

    advice: str
    operation: Operation


def way_on(info: RunInfo) -> WayOn:
    """What to do about a run that isn't as a call needs it, by how it is shown."""
    run_id = info.run_id
    match info.shown_status:
        case "paused" if info.questions:
            return WayOn(f"answer({run_id!r}, …) answers what it asks", "answer")
        case "paused" if info.waits_for_approval:
            return WayOn(f"answer({run_id!r}) without a value approves it", "answer")
        case "paused":
            advice = f"retry({run_id!r}) hands it to the workers, and resume({run_id!r}) continues it here"
            return WayOn(advice, "resume")
        case "queued" | "sleeping" | "retrying" | "abandoned":
            return WayOn("a supervisor of the store continues it: is one running for its graph?", "work")
        case "waiting" if any(wait.kind == MESSAGE for wait in info.waits):
            names = [wait.name for wait in info.waits if wait.kind == MESSAGE]
            return WayOn(f"send({run_id!r}, {names[0]!r}, …) sends what it waits for", "send")
        case "running" | "waiting":
            return WayOn(f"get({run_id!r}).wait() waits until it stops or asks", "watch")
        case "failed" | "quarantined":
            return WayOn(f"retry({run_id!r}) hands it back to the workers", "retry")
        case "cancelled":
            return WayOn(f"resume({run_id!r}) continues it all the same", "resume")
        case "thread":
            library = LIBRARIES.get(info.kind, info.kind)
            return WayOn(f"{library} continues it: invoke its graph with its thread_id", "")
        case "damaged":
            return WayOn(f"verify({run_id!r}) lists what is damaged", "verify")
        case _:
            return WayOn(f"get({run_id!r}).result() returns its result", "result")


def unfit_to_retry(info: RunInfo) -> str:
    """Why a run can't be retried; empty if it can. A retry neither answers nor approves anything."""
    if why := unfit_as_thread(info):
        return why
    is_waiting = bool(info.questions) or info.waits_for_approval
    if info.status in (FAILED, CANCELLED) or (info.status == PAUSED and not is_waiting):
        return ""
    return f"it is {info.shown_status}: only a run that failed, or was cancelled, forked or rolled back, is retried"


def unfit_as_thread(info: RunInfo) -> str:
    """Why nothing is done with a thread of another library; empty for a run that Limpet executes."""
    return f"it is a thread of {LIBRARIES.get(info.kind, info.kind)}" if info.kind else ""


def run_info(head: RunHead) -> RunInfo:
    """The contents of a head. Raises `DamagedRecord` or `KeyMissing` if its summary can't be read."""
    summary = _summary_of(head)
    return RunInfo(
        run_id=head.run_id,
        graph=head.graph,
        status=head.status,
        created=head.created,
        updated=head.updated,
        tags=head.tags,
        parent=summary.get("child_of"),
        step=summary.get("step", 0),
        node=summary.get("node", ""),
        reason=summary.get("reason"),
        error=summary.get("error"),
        questions=summary.get("questions", []),
        holder=head.holder,
        due=head.due,
        waits_for=head.waits_for,
        deadline=summary.get("deadline"),
        waits=summary.get("waits", ()),
        messages=_message_counts(summary.get("mailbox", {})),
        inbox=head.posted - head.taken,
        forked_from=_origin_of(head, summary),
        queue=head.queue,
        plan=head.plan,
        priority=head.priority,
    )


def _message_counts(boxes: Mapping[str, int]) -> dict[str, int]:
    """The numbers by the name of the messages, from those by box."""
    prefix = box_of(MESSAGE, "")
    return {box.removeprefix(prefix): count for box, count in boxes.items() if box.startswith(prefix)}


def _origin_of(head: RunHead, summary: dict[str, Any]) -> str | None:
    """The checkpoint that a run was forked from. Its head has that in the place of a parent."""
    if "child_of" in summary:
        return None
    return head.parent


def is_quarantined(head: RunHead) -> bool:
    """Whether a run was quarantined, as far as its head can be read."""
    try:
        return run_info(head).shown_status == QUARANTINED
    except LimpetError:
        return False


def info_of(client: LeaseClient, run_id: str) -> RunInfo:
    """What a store knows of a run, even if it is damaged. Raises `RunNotFound`, and `KeyMissing`."""
    try:
        return info_by_head(client, client.head(run_id))
    except DamagedRecord as damage:
        return _damaged_info(client.store, unreadable(run_id, 0.0), damage)


def info_by_head(client: LeaseClient, head: RunHead) -> RunInfo:
    """The same of a run that had this head; of one under way, the position that it has reached by now."""
    try:
        return with_position(client, head, _info_from(client, head))
    except DamagedRecord as damage:
        return _damaged_info(client.store, unreadable(head.run_id, 0.0), damage)


def info_at_last_stop(client: LeaseClient, run_id: str) -> RunInfo:
    """The same without a look at the journal: the step and the node of a run under way are those of its last stop."""
    try:
        head = client.head(run_id)
        return _without_answered(client, head, _info_from(client, head))
    except DamagedRecord as damage:
        return _damaged_info(client.store, unreadable(run_id, 0.0), damage)


def _info_from(client: LeaseClient, head: RunHead) -> RunInfo:
    info = run_info(head)
    # The store is asked only where its answer isn't clear: this is called often, and some stores search all runs.
    if head.lease_until is not None and head.lease_until > client.now():
        return info
    return info._replace(lease_expired=head.run_id in expired_leases(client, [head]))


def expired_leases(client: LeaseClient, heads: Sequence[RunHead]) -> set[str]:
    """The runs among these, in the order of a list, whose holder hasn't renewed its lease in time.

    Only the store knows the time that leases go by, so it is asked; but not about holders that are known to be dead.
    """
    mine = this_process()
    others = [head for head in heads if head.status == RUNNING and head.holder not in (None, mine)]
    held = [head for head in others if not is_dead(head.holder or "")]
    if not held:
        return set()
    which = RunFilter(
        statuses=(RUNNING,),
        lease_states=(LeaseState.EXPIRED,),
        created_since=held[-1].created,
        created_before=math.nextafter(held[0].created, math.inf),
    )
    return {head.run_id for head, _ in list_all(client.store, which)}


def cursor_text(cursor: Cursor) -> str:
    """A place in a list, as users hand it on."""
    return f"{cursor.created.hex()}:{cursor.run_id}"


def list_all(store: Store, which: RunFilter) -> Sequence[tuple[RunHead, Exception | None]]:
    """The runs that match, and for those that the store can't read, why."""
    if provides(store, ListsUnreadable):
        return store.list_all(which)
    return [(head, None) for head in store.list(which)]


def listed_info(store: Store, head: RunHead, problem: Exception | None) -> RunInfo:
    """What is known of a run. A run that can't be read is listed too: it must not hide the others."""
    try:
        if head.status == DAMAGED and problem is None:
            head = store.head(head.run_id)  # raises what is wrong with it
        if problem is not None:
            raise problem
        return run_info(head)
    except RunNotFound:
        return run_info(head)._replace(
            problem="its head can't be read, and its id isn't known from elsewhere"
        )
    except DamagedRecord as damage:
        return _damaged_info(store, head, damage)
    except KeyMissing as missing:
        return run_info(head._replace(note=b""))._replace(problem=_message(missing))


def _damaged_info(store: Store, listed: RunHead, damage: DamagedRecord) -> RunInfo:
    """What is known of a damaged run: by its journal, as far as that can be read, and else by a list."""
    try:
        known = readable_head(store, listed.run_id)
        info = run_info(known._replace(note=known.note if known.status == DAMAGED else b""))
    except LimpetError:
        info = run_info(listed._replace(note=b""))
    return info._replace(
        status=DAMAGED,
        created=listed.created or info.created,
        updated=listed.updated or info.updated,
        holder=None,
        due=None,
        problem=_message(damage),
    )


def _message(problem: Exception) -> str:
    return problem.message if isinstance(problem, LimpetError) else str(problem)


def with_position(client: LeaseClient, head: RunHead, info: RunInfo) -> RunInfo:
    """What is known of a run by its head, with the step and the node that it has reached by now.

    The journal is read only of a run that has moved on since its head was last written whole: it is under way, or its
    process left it. So of many that are queued, none is.
    """
    if info.status != RUNNING or info.problem or _is_current(head):
        return _without_answered(client, head, info)
    try:
        head, progress = viewed_tail(client, info.run_id)
    except (DamagedRecord, KeyMissing, UnsupportedFormat) as problem:
        return info._replace(problem=problem.message)
    except LimpetError:
        return info  # deleted meanwhile
    if head.status != RUNNING:
        return listed_info(client.store, head, None)  # it has stopped meanwhile
    info = info._replace(
        step=progress.step,
        node=progress.current_node(),
        reason=None,
        deadline=progress.deadline,
        waits=progress.all_waits(),
        messages=_message_counts({box: len(letters) for box, letters in progress.mailbox.items()}),
    )
    return _without_answered(client, head, info._replace(questions=progress.open_questions()))


def _without_answered(client: LeaseClient, head: RunHead, info: RunInfo) -> RunInfo:
    """The same without the questions to which answers wait for the process that executes the run."""
    if info.status != RUNNING or not info.questions or head.posted == head.taken:
        return info
    try:
        keys = [post.key for post in client.store.inbox(head.run_id)]
    except RunNotFound:
        return info  # deleted meanwhile
    still_open = [each for each in info.questions if not any(is_answer_to(each.id, key) for key in keys)]
    return info._replace(questions=still_open)


def _is_current(head: RunHead) -> bool:
    """Whether the summary in a head takes all records of the run into account."""
    if not head.note:
        return False
    # A run that no process has begun has one record, and a list may have many of them.
    return head.sequence == 1 or read_summary(head.note).get("sequence") == head.sequence


def _table_row(info: RunInfo) -> tuple[str, ...]:
    from limpet.drawing.notebook import utc_time_text

    prompts = " · ".join(question.prompt for question in info.questions)
    error_type = (info.error or {}).get("type", "")
    node = info.node
    if node in (END, PLANNER):
        node = ""
    return (
        info.run_id,
        info.graph,
        info.status,
        node,
        str(info.step),
        utc_time_text(info.updated),
        prompts or error_type or reason_of(info.waits),
    )


def _summary_of(head: RunHead) -> dict[str, Any]:
    """What the run's last commit with a summary says of it, decoded."""
    if not head.note:
        return {}
    try:
        summary = read_summary(head.note)
        questions = [Question(**each) for each in summary.get("questions", ())]
        waits = [PostWait(**each) for each in summary.get("waits", ())]
    except LimpetError:
        raise
    except ValueError as problem:
        key_id = key_id_of(head.note)
        if key_id is not None:
            raise no_key(f"the summary of run {head.run_id!r}", key_id) from None
        raise DamagedRecord(head.run_id, 0, f"its summary can't be read ({problem})") from problem
    return {**summary, "questions": questions, "waits": waits}
