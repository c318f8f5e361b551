"""The journal keeps what happened, in bytes that follow the change, and says so when it can't: H2, H5 and H6.

`Book` is a run's journal as the engine keeps it: a live `Progress`, a `JournalWriter` that turns what happens into
commits, and a store that takes them. It remembers what the progress was at every record, so that reading any
part of the journal can be compared with what was true at that time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.engine.sessions.start import new_run
from limpet.errors import Conflict, DamagedRecord, UnstorableValue, UsageError
from limpet.journal import snapshots as policy
from limpet.journal.delta import Delta, read_delta
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.encoding.user_types import register_type
from limpet.journal.progress import PATH_KEPT, Progress
from limpet.journal.reader import (
    check_complete,
    history,
    progress_at,
    read_progress,
    read_progress_and_weight,
    read_records,
)
from limpet.journal.record_shapes import read_summary
from limpet.journal.records import SNAPSHOT, STEP, move_record, snapshot_record
from limpet.journal.snapshots import RECORD_WEIGHT
from limpet.journal.store import PAUSED, RUNNING, Commit, Labels, RunHead, Tail
from limpet.journal.waits import AFTER, BEFORE, Question
from limpet.journal.writer import JournalWriter, Summary
from limpet.stores.memory import MemoryStore

RUN = "run-1"


class Book:
    """A run's journal, and what was true after all that happened (`was`) and after each of its records (`then`)."""

    def __init__(
        self, state: dict[str, Any] | None = None, remembers: bool = True, apart: bool = False
    ) -> None:
        """`apart` stores each thing that happens by itself; else what happens until a commit is one record."""
        self.store, self.now, self.remembers, self.apart = MemoryStore(), 100.0, remembers, apart
        self.live = Progress(RUN, "g", "f", "a", deepcopy(state or {}), at=self.now)
        lease = self.store.create(new_run(self.live, (), "here", 10.0))
        assert lease is not None
        self.writer = JournalWriter(RUN, lease.fence, 1)
        self.written = sum(map(len, self.tail.records))
        self.was: list[dict[str, Any]] = [all_of(self.live) if remembers else {}]
        self.then, self._committed = list(self.was), 1

    @property
    def tail(self) -> Tail:
        """All of it."""
        return self.store.read(RUN, first=1)

    def upto(self, number: int) -> Tail:
        """It as it was when record `number` was its last."""
        whole = self.tail
        return whole._replace(
            head=whole.head._replace(sequence=number), records=whole.records[: number - whole.first + 1]
        )

    def step(self, node: str = "a", following: str | None = "a", **changes: Any) -> None:
        """A node completed. `changes` are what it set, or a whole delta under "delta"."""
        delta = changes.pop("delta", None) or Delta(changes)
        self.now += 1.0
        data = delta.encode()
        read_delta(decode(data)).apply(self.live.state)
        self.live.complete(node, self.now, following)
        self.writer.add_step(self.live, data, following)
        self._remember()

    def move(self, changes: dict[str, Any], delta: Delta | None = None) -> None:
        """Something else happened."""
        data = None if delta is None else delta.encode()
        if data is not None:
            read_delta(decode(data)).apply(self.live.state)
        self.now += 1.0
        self.writer.add_record(move_record(self.live, changes, self.now, data))
        self.live.move(changes)
        self._remember()

    def memo(self, key: str, value: Any) -> None:
        self.now += 1.0
        self.writer.add_memo(self.live, (), key, value, self.now)
        self._remember()

    def whole(self) -> None:
        self.writer.add_snapshot(self.live)
        self._remember()

    def commit(self, status: str | None = None) -> Commit:
        """Have all that waits stored."""
        commit = self.writer.commit(status)
        assert self.store.append([commit]) == [None]
        self.writer.acknowledge(len(commit.records))
        self.written += sum(map(len, commit.records))
        stored = Counter(
            number for number, _ in read_records(Tail(self.tail.head, commit.expected + 1, commit.records))
        )
        for number in sorted(stored):
            self._committed += stored[number]
            self.then.append(self.was[self._committed - 1])
        return commit

    def reopen(self) -> None:
        """Go on as another process would, from what is stored."""
        tail = self.store.read(RUN)
        self.live, weight = read_progress_and_weight(tail)
        self.writer = JournalWriter(RUN, self.writer.fence, tail.head.sequence, weight)

    def snapshots(self) -> list[int]:
        """The numbers of the whole records."""
        return [number for number, record in read_records(self.tail) if record[0] == SNAPSHOT]

    def _remember(self) -> None:
        """A snapshot that came along with a record says the same as that record."""
        now = all_of(self.live) if self.remembers else {}
        writer = self.writer
        closed = sum(1 for _ in read_records(Tail(self.tail.head, writer.sequence + 1, writer._closed)))
        while len(self.was) < self._committed + closed + len(writer._pending):
            self.was.append(now)
        if self.apart:
            self.commit()


def all_of(progress: Progress) -> dict[str, Any]:
    """Every field, written so that types and the order of keys count."""
    return {each.name: repr(_plain(getattr(progress, each.name))) for each in fields(Progress)}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


@contextmanager
def eager_snapshots() -> Iterator[None]:
    """Have a snapshot after every few records, so that short journals have some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "MIN_WEIGHT", 1)
        patch.setattr(policy, "SNAPSHOT_FACTOR", 0.7)
        yield


# Reading is what was written

keys = st.sampled_from(["n", "xs", "d", "é"])
values = st.sampled_from([0, True, 1.5, 2**70, "é", None, (1, [2]), [1, (2,)], {"k": [1]}, {1: ()}, b"b", []])
lists = st.lists(values, max_size=2)
dicts = st.dictionaries(st.sampled_from("kl"), values, max_size=2)
texts = st.dictionaries(st.sampled_from("kl"), st.sampled_from(["", "é"]), max_size=2)
deltas = st.tuples(
    st.dictionaries(keys, values, max_size=2),
    st.dictionaries(st.just("log"), lists, max_size=1),
    st.dictionaries(st.just("book"), dicts, max_size=1),
    st.lists(keys, max_size=1),
)
asked = st.builds(
    lambda name, choices: Question(name, "sure?", "a", choices, None).to_data(),
    st.sampled_from("pq"),
    st.none() | lists,
)
moves = st.one_of(
    st.just({"status": PAUSED, "reason": "waits"}),
    st.just({"status": RUNNING, "reason": None, "cleared": True, "questions": []}),
    st.lists(asked, max_size=2).map(lambda questions: {"questions": questions}),
    dicts.map(lambda answers: {"answers": answers}),
    st.integers(0, 3).map(lambda attempts: {"attempts": attempts}),
    texts.map(lambda error: {"error": {"type": "E", **error}, "phase": "failed"}),
    dicts.map(lambda config: {"config": config, "meta": {"tags": ["t"]}}),
    st.just({"node": "b", "phase": BEFORE, "cleared": False}),
)
happenings = st.one_of(
    st.tuples(st.just("step"), st.sampled_from("abc"), st.sampled_from(["a", "b", None]), deltas),
    st.tuples(st.just("step"), st.sampled_from("abc"), st.just("c"), deltas),
    st.tuples(st.just("move"), moves, st.none() | deltas),
    st.tuples(st.just("memo"), st.sampled_from("kl"), values),
    st.tuples(st.just("whole")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("refused")),
    st.tuples(st.just("reopen")),
)


def happen(book: Book, happening: tuple[Any, ...]) -> None:
    match happening:
        case ("step", node, following, delta):
            book.step(node, following, delta=Delta(*deepcopy(delta)))
        case ("move", changes, delta):
            book.move(deepcopy(changes), delta and Delta(*deepcopy(delta)))
        case ("memo", key, value):
            book.memo(key, deepcopy(value))
        case ("whole",):
            book.whole()
        case ("commit",) if book.writer.pending:
            book.commit()
        case ("refused",) if book.writer.pending:
            stale = book.writer.commit()
            stale.fence -= 1
            assert isinstance(book.store.append([stale])[0], Conflict)
        case ("reopen",):
            if book.writer.pending:
                book.commit()
            book.reopen()


@settings(max_examples=150, deadline=None)
@given(st.lists(happenings, max_size=14), st.booleans())
def test_reading_any_beginning_of_a_journal_gives_what_was_true_then(history: Any, eager: bool) -> None:
    """H2, H4, H6: whatever happened, wherever snapshots fell, and however often a commit was refused."""
    book = Book({"log": [], "book": {}, "n": 0})
    with eager_snapshots() if eager else pytest.MonkeyPatch.context():
        for happening in history:
            happen(book, happening)
    book.commit()
    assert book.tail.head.sequence == len(book.then)
    for number, then in enumerate(book.then, 1):
        assert all_of(read_progress(book.upto(number))) == then, f"as of record {number}"
    newest = book.store.read(RUN)
    assert newest.first == book.snapshots()[-1]
    assert all_of(read_progress(newest)) == all_of(book.live) == book.was[-1]


@settings(max_examples=100, deadline=None)
@given(st.lists(happenings, max_size=14))
def test_the_state_of_every_step_can_be_read_across_snapshots(happened: Any) -> None:
    """H6: after the step and all that happened before the next; and the history lists exactly these steps."""
    book = Book({"log": [], "book": {}, "n": 0})
    with eager_snapshots():
        for happening in happened:
            happen(book, happening)
    book.commit()
    tail, last = book.tail, {int(then["step"]): then for then in book.was}
    assert [each.step for each in history(tail)] == sorted(last) == list(range(book.live.step + 1))
    for step, then in last.items():
        assert all_of(progress_at(tail, step)) == then
    for step in (-1, book.live.step + 1, 10**9):
        with pytest.raises(UsageError, match="no step"):
            progress_at(tail, step)


def test_the_history_shows_which_step_changed_what_and_when() -> None:
    """H6: a snapshot in between isn't a change, an update that came with a resume is."""
    book = Book({"n": 0, "log": []})
    book.step("a", "b", n=1)
    book.whole()
    book.step("b", None, delta=Delta({}, {"log": [1]}, {"book": {"k": 1}}, ["n"]))
    book.move({"status": PAUSED, "reason": "interrupted after 'b'"})
    book.move({"status": RUNNING, "reason": None}, Delta({"approved": True}))
    book.commit()
    found = history(book.tail)
    assert [(each.step, each.node, each.next, each.phase) for each in found] == [
        (0, None, "a", BEFORE),
        (1, "a", "b", BEFORE),
        (2, "b", "b", AFTER),
    ]
    assert [each.keys for each in found] == [("n", "log"), ("n",), ("log", "book", "n", "approved")]
    assert [each.timestamp for each in found] == [100.0, 101.0, 102.0]
    assert [each.id for each in found] == [f"{RUN}@0", f"{RUN}@1", f"{RUN}@2"]
    assert (found[-1].status, found[-1].reason) == (RUNNING, None)


def test_the_path_is_bounded_and_the_counts_are_not() -> None:
    """G7, H2: a run of any length restores in the same way."""
    book = Book()
    for _ in range(PATH_KEPT + 50):
        book.step("a", "b")
        book.step("b", "a")
    book.whole()
    book.step("c", "a")
    book.commit()
    found = read_progress(book.store.read(RUN))
    assert all_of(found) == all_of(book.live)
    assert (found.iterations, found.visits) == (613, {"a": 306, "b": 306, "c": 1})
    assert list(found.path) == [*["a", "b"] * 306, "c"][-PATH_KEPT:]


# Commits


def test_what_was_refused_is_committed_again_together_with_what_came_after() -> None:
    """H2: nothing is lost, nothing is there twice, and the numbers are right."""
    book = Book({"n": 0})
    book.step(n=1)
    first = book.writer.commit()
    book.step(n=2)
    book.whole()
    book.memo("k", 1)
    again = book.writer.commit(PAUSED, Summary({"step": 2}, Labels("node")))
    assert (first.expected, len(first.records), first.snapshot, first.status) == (1, 1, 0, None)
    assert (again.expected, len(again.records), again.snapshot) == (1, 3, 4)
    assert read_summary(again.note or b"") == {"step": 2, "sequence": 4}
    assert again.labels == Labels("node")
    assert again.records[0] == first.records[0]
    assert book.writer.pending == 3
    assert book.store.append([again]) == [None]
    book.writer.acknowledge(len(again.records))
    assert (book.writer.sequence, book.writer.pending) == (4, 0)
    assert isinstance(book.store.append([first])[0], Conflict)
    assert all_of(read_progress(book.store.read(RUN))) == book.was[-1]


def test_a_commit_without_records_changes_a_status_only() -> None:
    """H2"""
    book = Book()
    commit = book.writer.commit(PAUSED)
    assert (commit.records, commit.snapshot) == ([], 0)
    assert book.store.append([commit]) == [None]
    assert book.store.head(RUN).sequence == 1


def test_a_value_that_cannot_be_stored_leaves_the_ledger_as_it_was() -> None:
    """H4: neither a half record nor a moved progress."""
    book = Book({"n": 0})
    before = all_of(book.live)
    with pytest.raises(UnstorableValue):
        book.writer.add_memo(book.live, (), "k", object(), 1.0)
    with pytest.raises(UnstorableValue):
        book.writer.add_move(book.live, {"answers": {"q": object()}}, 1.0)
    assert book.writer.pending == 0
    assert all_of(book.live) == before


# When a snapshot is worth its bytes


def test_superseded_values_bring_a_snapshot_on() -> None:
    """H2: a kilobyte that is replaced at every step is read a few dozen times at most, not all of them."""
    book = Book(remembers=False)
    for number in range(600):
        book.step(value=bytes([number % 256]) * 1000)
        book.commit()
    assert 8 <= len(book.snapshots()) <= 20
    assert len(book.store.read(RUN).records) <= 80
    assert book.written < 600 * 1000 * 1.15


def test_many_tiny_records_bring_a_snapshot_on() -> None:
    """H2: a counter; what is read at a resume is bounded, what is written stays near what was said."""
    book = Book({"n": 0}, remembers=False)
    for number in range(5000):
        book.step(n=number)
        book.commit()
    assert 15 <= len(book.snapshots()) <= 35
    assert len(book.store.read(RUN).records) <= 300
    steps = [
        len(data)
        for data, (_, record) in zip(book.tail.records, read_records(book.tail), strict=True)
        if record[0] == STEP
    ]
    assert max(steps) < 50
    assert book.written < 1.3 * sum(steps)


def test_a_history_of_large_items_has_hardly_a_snapshot() -> None:
    """H2: reading the items one by one costs no more than reading them all at once."""
    book = Book({"log": []}, remembers=False)
    for number in range(2000):
        book.step(delta=Delta(appends={"log": [bytes([number % 256]) * 1000]}))
        book.commit()
    assert len(book.snapshots()) <= 2
    assert book.written < 2000 * 1000 * 1.1
    assert len(read_progress(book.store.read(RUN)).state["log"]) == 2000


def test_a_history_of_small_items_is_written_a_few_times_at_most() -> None:
    """H2: linear in what was said: twice the items, twice the bytes."""
    written = []
    for length in (4000, 8000):
        book = Book({"log": []}, remembers=False)
        for number in range(length):
            book.step(delta=Delta(appends={"log": [number]}))
            book.commit()
        written.append(book.written)
        assert len(book.store.read(RUN).records) <= length / 4
    assert written[1] < 2.3 * written[0] < 2.3 * 4000 * 200


class Looked:
    """Something that counts how often the state that holds it is looked at."""

    times = 0

    def __repr__(self) -> str:
        return "Looked()"


def _looked_to(value: Looked) -> bytes:
    Looked.times += 1
    return b"x" * 1_000_000


register_type(Looked, name="test_journal:Looked", to=_looked_to, restore=lambda stored: Looked())


def test_a_large_state_of_which_little_changes_is_seldom_looked_at() -> None:
    """H2: looking costs as much as the state is large, so it is done at weights that grow by a factor."""
    book = Book({"n": 0}, remembers=False)
    book.live.state["big"] = Looked()
    before = Looked.times
    for number in range(4000):
        book.writer.add_step(book.live, Delta({"n": number}).encode(), "a")
    assert Looked.times - before <= 4
    assert book.writer.commit().snapshot == 0


sizes = st.sampled_from([0, 20, 300, 3000, 30_000])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sizes, st.booleans(), st.integers(1, 120)), max_size=6), st.booleans())
def test_neither_writing_nor_reading_costs_much_more_than_it_must(phases: Any, reopened: bool) -> None:
    """H2: for any mixture of values that replace and items that add; also when every few steps are a new process.

    What all snapshots weigh is a fraction of what the records weigh, and what is to be read after the newest
    snapshot is at most as much as makes a look, or a factor of the state at its largest.
    """
    book = Book({"log": [], "value": b""}, remembers=False, apart=True)
    state = 0
    # Random bytes, which compression doesn't make smaller: the policy weighs records before they are compressed.
    noise = Random(0)
    for size, adds, times in phases:
        for _ in range(times):
            item = noise.randbytes(size)
            book.step(delta=Delta(appends={"log": [item]}) if adds else Delta({"value": item}))
        book.commit()
        state = max(state, len(snapshot_record(book.live)))
        if reopened:
            book.reopen()
    records = [
        (len(data), record)
        for data, (_, record) in zip(book.tail.records, read_records(book.tail), strict=True)
    ]
    plain = sum(size + RECORD_WEIGHT for size, record in records if record[0] != SNAPSHOT)
    snapshots = sum(size for size, record in records[1:] if record[0] == SNAPSHOT)
    assert snapshots <= plain / policy.SNAPSHOT_FACTOR
    largest = max(size for size, _ in records)
    most = max(policy.MIN_WEIGHT, policy.SNAPSHOT_FACTOR * (state + RECORD_WEIGHT))
    assert read_progress_and_weight(book.store.read(RUN))[1] <= 1.1 * most + largest + RECORD_WEIGHT


def test_being_resumed_often_neither_prevents_snapshots_nor_causes_them() -> None:
    """H2: what the records since the last one weigh is known again after a resume."""
    counts = []
    for every in (10_000, 7):
        book = Book({"n": 0, "log": []}, remembers=False)
        for number in range(1500):
            book.step(delta=Delta({"n": number}, {"log": [bytes(20)]}))
            if number % every == 0:
                book.commit()
                book.reopen()
        book.commit()
        counts.append(len(book.snapshots()))
    assert counts[0] > 3
    assert abs(counts[0] - counts[1]) <= 1


def test_a_step_costs_what_it_changes_whatever_the_state_holds() -> None:
    """H2: to the byte."""
    written = []
    for carried in (0, 1_000_000):
        book = Book({"n": 0, "big": bytes(carried)}, remembers=False)
        before = book.written
        for number in range(100):
            book.step(n=number)
            book.commit()
        written.append(book.written - before)
    assert written[0] == written[1] < 100 * 50


# Damage


def damaged_book() -> Book:
    """Eight records: the start, two steps, a snapshot, a move, a memo, and two steps."""
    book = Book({"n": 0, "log": [0]}, apart=True)
    book.step("a", "b", n=1)
    book.step("b", "a", delta=Delta({}, {"log": [1]}))
    book.whole()
    book.move({"attempts": 1}, Delta({"m": 1}))
    book.memo("k", [1])
    book.step("a", "b", n=2)
    book.step("b", "a", delta=Delta({}, {"log": [2]}))
    book.commit()
    return book


def with_records(book: Book, records: list[bytes]) -> Tail:
    return book.tail._replace(records=records)


@pytest.mark.parametrize(
    ("snapshot", "newest", "first", "count", "missing"),
    [
        (1, 3, 1, 3, None),
        (1, 3, 1, 2, 3),
        (3, 5, 3, 1, 4),
        (3, 5, 6, 0, 3),
        (5, 5, 6, 0, 5),
        (0, 0, 1, 0, None),
    ],
)
def test_records_that_are_missing_at_the_end_are_damage(
    snapshot: int, newest: int, first: int, count: int, missing: int | None
) -> None:
    """H4: the first that is missing is named, also where none is left."""
    head = RunHead("r", "g", RUNNING, newest, snapshot, 1, 0.0, 0.0)
    tail = Tail(head, first, [b""] * count)
    if missing is None:
        check_complete(tail)
        return
    with pytest.raises(DamagedRecord, match="it is missing") as caught:
        check_complete(tail)
    assert (caught.value.run_id, caught.value.sequence) == ("r", missing)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 7), st.data())
def test_damage_to_any_record_is_found_and_named(place: int, data: Any) -> None:
    """H5: a bit, a cut, something more, nothing at all; reading the run or its history never gives it as data."""
    book = damaged_book()
    records = list(book.tail.records)
    whole = records[place]
    kind = data.draw(st.sampled_from(["bit", "cut", "more", "nothing", "another's", "its neighbour's"]))
    match kind:
        case "bit":
            bit = data.draw(st.integers(0, 8 * len(whole) - 1))
            records[place] = bytes(
                byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(whole)
            )
        case "cut":
            records[place] = whole[: data.draw(st.integers(0, len(whole) - 1))]
        case "more":
            records[place] = whole + b"\0"
        case "nothing":
            records[place] = bytes(len(whole))
        case "another's":
            records[place] = Envelope("run-2").close(place + 1, whole[6:])
        case "its neighbour's":
            records[place] = records[place - 1]
    tail = with_records(book, records)
    for read in (read_progress, history):
        with pytest.raises(DamagedRecord) as found:
            read(tail)
        assert (found.value.run_id, found.value.sequence) == (RUN, place + 1)
        assert f"record {place + 1} of run '{RUN}'" in str(found.value)


@pytest.mark.parametrize("place", range(8))
def test_damage_elsewhere_does_not_keep_a_step_from_being_read(place: int) -> None:
    """H5, H6: what counts is the newest snapshot up to the step, and what follows it."""
    book = damaged_book()
    records = list(book.tail.records)
    records[place] = records[place][:-1] + bytes([records[place][-1] ^ 1])
    tail = with_records(book, records)
    last = {int(then["step"]): number for number, then in enumerate(book.was, 1)}
    for step, number in last.items():
        snapshot = max(each for each in book.snapshots() if each <= number)
        if snapshot <= place + 1 <= number:
            with pytest.raises(DamagedRecord) as found:
                progress_at(tail, step)
            assert found.value.sequence == place + 1
        elif place + 1 != number + 1:  # the record right after might have belonged to the step
            assert all_of(progress_at(tail, step)) == book.was[number - 1]


@pytest.mark.parametrize("place", range(7))
def test_a_record_that_is_missing_is_found(place: int) -> None:
    """H5: every record is tied to its number, so those after it don't move up."""
    book = damaged_book()
    records = list(book.tail.records)
    del records[place]
    with pytest.raises(DamagedRecord) as found:
        read_progress(with_records(book, records))
    assert found.value.sequence == place + 1


def test_a_record_that_is_missing_at_the_end_is_found() -> None:
    """H5 (invariant 2): the head knows how many there are; a step that was acknowledged would run again."""
    book = damaged_book()
    with pytest.raises(DamagedRecord):
        read_progress(with_records(book, book.tail.records[:-1]))


def test_a_journal_that_begins_in_the_middle_is_refused() -> None:
    """H5: nothing is built from changes to something that is not there."""
    book = damaged_book()
    for first in (2, 3, 5, 8):
        with pytest.raises(DamagedRecord) as found:
            read_progress(book.store.read(RUN, first=first))
        assert found.value.sequence == first


def test_what_was_pruned_is_gone_and_the_rest_can_be_read() -> None:
    """H6: down to the newest snapshot; what lies before it and has lost its own can't be built any more."""
    book = damaged_book()
    assert book.store.prune(RUN, before=3) == 2
    with pytest.raises((UsageError, DamagedRecord)):
        progress_at(book.tail, 1)
    assert book.store.prune(RUN, before=100) == 1
    tail = book.tail
    assert (tail.first, len(tail.records)) == (4, 5)
    assert [each.step for each in history(tail)] == [2, 3, 4]
    last = {int(then["step"]): then for then in book.was}
    for step in (2, 3, 4):
        assert all_of(progress_at(tail, step)) == last[step]
    for step in (0, 1):
        with pytest.raises(UsageError, match="no step"):
            progress_at(tail, step)


@pytest.mark.parametrize(
    "body",
    [
        [STEP, 5, 0.0, 0, "a", "b", [{}, {"n": [1]}, {}, []]],  # grows what isn't a list
        [STEP, 5, 0.0, 0, "a", "b", [{}, {}, {"log": {"k": 1}}, []]],  # merges into what isn't a dict
        [STEP, 5, 0.0, 0, "a"],
        [STEP, 5, 0.0, 0, "a", "b", [1, 2]],
        [SNAPSHOT, 5, 0.0, 0, {}],
        [3, 5, 0.0, 0, {"no such field": 1}],
        [3, 5, 0.0, 0, {"questions": [{"odd": 1}]}],
        [99, 5, 0.0, 0, {}, {}],
    ],
    ids=lambda body: f"{body[0]}-{len(body)}-{body[4:]}",
)
def test_a_record_that_does_not_follow_from_those_before_is_named(body: list[Any]) -> None:
    """H5: whole by its checksum, but not what a ledger writes."""
    book = damaged_book()
    tail = with_records(book, [*book.tail.records, Envelope(RUN).close(9, encode(body))])
    for read in (read_progress, history):
        with pytest.raises(DamagedRecord) as found:
            read(tail)
        assert (found.value.run_id, found.value.sequence) == (RUN, 9)


def test_a_snapshot_says_everything_and_a_step_says_what_it_must() -> None:
    """H2: the least that a run and a step of it take."""
    book = Book({"n": 0})
    book.step(n=1)
    start, step = book.writer.commit().records[0], book.tail.records[0]
    assert len(start) < 50
    assert len(step) < 120
    assert math.isclose(read_progress(book.tail).at, 100.0)
    assert all(
        later - earlier == 1 for earlier, later in pairwise(number for number, _ in read_records(book.tail))
    )
