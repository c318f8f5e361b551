"""The rules of limits against a plain model, without a store: who has a slot, and what counts for the rate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.document import (
    CLAIMING,
    HELD,
    KEPT,
    RESERVED,
    LimitDocument,
    LineEntry,
    Slot,
    Values,
    limit_body,
    new_ticket,
    read_limit,
    ticket_number,
)
from limpet.engine.leases.limits.rules import Ask
from limpet.graphs.limits import Rate

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
RATES = st.none() | st.builds(Rate, st.integers(1, 4), st.sampled_from([0.5, 1.0, 10.0, 3600.0]))
SPANS = st.sampled_from([0.0, 0.01, 0.3, 1.0, 7.0, 61.0, 5000.0])
STEPS = st.lists(
    st.tuples(st.just("take"), NAMES, st.booleans())
    | st.tuples(st.just("release"), NAMES)
    | st.tuples(st.just("undo"), NAMES)
    | st.tuples(st.just("wait"), SPANS)
    | st.tuples(st.just("set clock"), st.sampled_from([-86400.0, -5.0, 5.0, 86400.0]))
    | st.tuples(st.just("set"), st.none() | st.integers(1, 3), RATES),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_there_are_never_more_slots_or_grants_than_allowed(steps: list[Any]) -> None:
    """H18: whichever way the clock is set. The rate may be a sixtieth of its period late, and is never early."""
    document = LimitDocument(declared=Values(2, Rate(2, 1.0)))
    now = 1_800_000_000.0
    held: set[str] = set()
    granted: dict[str, float] = {}
    grants: list[float] = []
    for kind, *given_values in steps:
        rate = document.values.rate
        if rate is not None:
            grants = [at for at in grants if at > now - rate.seconds]
        document = rules.normalised(document, now)
        if kind == "take":
            name, counts = given_values
            after = rules.take(document, Ask(name, 1, "call", counts=counts), now)
            if after is None:
                assert name not in held
                assert rules.room(document, now, counts) == 0
                continue
            if name not in held and counts:
                grants.append(now)
                granted[name] = now
            if document.values.concurrency is not None:
                assert name in held or len(held) < document.values.concurrency
                held.add(name)
            document = after
        elif kind in ("release", "undo"):
            (name,) = given_values
            if kind == "undo" and name in held and granted.get(name) == now:
                document = rules.undo(document, Ask(name, 1, "call"), now)
                grants.remove(now)
                granted.pop(name)
            else:
                document = rules.release(document, Ask(name, 1, "call"))
            held.discard(name)
        elif kind == "wait":
            now += given_values[0]
        elif kind == "set clock":
            now += given_values[0]
            grants = [min(at, now) for at in grants]
            granted = {}
        else:
            document = document._replace(declared=Values(*given_values))
            grants = []  # what was granted without this rate isn't known to it
            granted = {}
        assert {slot.run_id for slot in document.slots} == held
        if document.values.rate is not None:
            recent = [at for at in grants if at > now - document.values.rate.seconds]
            assert len(recent) <= document.values.rate.number
    assert read_limit("api", limit_body("api", document)) == document


@given(st.integers(1, 5), st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 3))
def test_reservations_go_to_the_first_in_line_and_to_no_others(
    concurrency: int, counts: list[bool], rate: int
) -> None:
    """H18."""
    document = LimitDocument(declared=Values(concurrency, Rate(rate, 60.0) if rate else None))
    line = [LineEntry(new_ticket(n, "x"), f"r{n}", "call", each) for n, each in enumerate(counts)]
    document, chosen = rules.reserve(document, line, 100.0)
    assert chosen == line[: len(chosen)]
    left = line[len(chosen) :]
    assert not left or rules.room(document, 100.0, left[0].counts) == 0
    assert [slot.mark for slot in document.slots] == [entry.ticket for entry in chosen]
    assert rules.overdue(document, 109.9, 10.0) == []
    assert rules.overdue(document, 110.0, 10.0) == list(document.slots)
    for entry in chosen:  # a reservation is taken without looking at the line
        ask = Ask(entry.run_id, 3, "call", counts=entry.counts)
        taken = rules.take(document._replace(first=1, last=9), ask, 101.0)
        assert taken is not None
        slot = rules.slot_of(taken, entry.run_id, "call")
        assert slot is not None
        assert (slot.state, slot.fence) == (HELD, 3)


def test_who_comes_new_doesnt_pass_the_line() -> None:
    """H18: but who has a slot, or needs none, isn't held up."""
    empty = LimitDocument(declared=Values(3))
    with_line, numbers = rules.new_numbers(empty, 2, 1000)
    assert list(numbers) == [1000, 1001]
    assert rules.take(with_line, Ask("new", 1, ""), 1.0) is None
    assert rules.take(rules.empty_line(with_line), Ask("new", 1, ""), 1.0) is not None
    assert rules.open_line_at(rules.empty_line(with_line), 1000).has_line
    assert rules.new_numbers(rules.empty_line(with_line), 1, 5)[1] == range(1002, 1003)
    only_rate = with_line._replace(declared=Values(None, Rate(1, 1.0)))
    assert rules.take(only_rate, Ask("again", 1, "", counts=False), 1.0) == only_rate


def test_a_slot_that_is_kept_for_another_line_counts_as_now_for_the_rate() -> None:
    """H18: its call begins later, when it has all its slots."""
    document = LimitDocument(declared=Values(None, Rate(1, 10.0)))
    ask = Ask("r", 1, "call")
    granted = rules.take(document, ask, 100.0)
    assert granted is not None
    kept = rules.keep(granted, ask, 100.0, "limit line/b/1", 100.0)
    assert [slot.state for slot in kept.slots] == [KEPT]
    later = rules.normalised(kept, 500.0)
    assert rules.room(later, 500.0) == 0
    begun = rules.take(later, ask._replace(fence=2), 500.0)
    assert begun is not None
    assert (begun.slots, rules.room(begun, 505.0), rules.room(begun, 511.0)) == ((), 0, 1)


def test_a_newer_lease_takes_out_what_was_held_under_earlier_ones() -> None:
    """H18: but a worker that is only about to claim the run doesn't."""
    slots = (
        Slot("r", 1, "x", HELD, 1.0),
        Slot("r", 2, "y", CLAIMING, 1.0, "w"),
        Slot("s", 1, "x", HELD, 1.0),
    )
    document = LimitDocument(declared=Values(3), slots=slots)
    assert rules.forget_earlier_leases(document, Ask("r", 3, "x")).slots == slots[2:]
    assert rules.forget_earlier_leases(document, Ask("r", 3, "x", owner="w")) == document
    assert rules.take(document, Ask("r", 2, "y", owner="other"), 1.0) is None
    assert rules.take(document, Ask("r", 2, "y", owner="w"), 1.0) == document
    assert not rules.is_left_over(document, Ask("r", 2, "y"), 10.9, 10.0)
    assert rules.is_left_over(document, Ask("r", 2, "y"), 11.0, 10.0)
    assert rules.release(document, Ask("r", 2, "y", owner="other")) == document
    assert rules.release(document, Ask("r", 2, "y")).slots == (slots[0], slots[2])


@pytest.mark.parametrize(
    ("state", "rate", "due"),
    [
        (RESERVED, None, 109.0),
        (HELD, None, 103.0),
        (HELD, Rate(1, 1.0), 101.0),
    ],
)
def test_a_limit_with_a_line_is_due_when_there_is_something_to_do(
    state: str, rate: Rate | None, due: float
) -> None:
    """H18: a reservation passes on, the rate has room, or a holder may be dead."""
    slot = Slot("r", 1, "x", state, 99.0)
    document = LimitDocument(declared=Values(5, rate), slots=(slot,), window=((100.0, 1),) if rate else ())
    assert rules.next_due(document, 100.0, 10.0, 3.0) is None
    found = rules.next_due(
        document._replace(first=1, last=2), 100.0, 10.0, 20.0 if state == RESERVED else 3.0
    )
    assert found == due


def test_a_grant_is_counted_again_if_there_is_room_for_it() -> None:
    """H18."""
    document = LimitDocument(declared=Values(None, Rate(2, 1.0)))
    ask = Ask("r", 1, "call")
    granted = rules.take(document, ask, 100.0)
    assert granted is not None
    moved = rules.recount(granted, ask, 100.0, 103.0)
    assert moved is not None
    assert (rules.used_rate(moved, 103.5), sum(count for _, count in moved.window)) == (1, 1)
    full = LimitDocument(declared=Values(None, Rate(1, 1.0)), window=((103.0, 1),))
    assert rules.recount(full, ask, 100.0, 103.0) is None
    with_slots = LimitDocument(declared=Values(1, Rate(9, 1.0)))
    assert rules.recount(with_slots, ask, 100.0, 103.0) is None  # it was taken out meanwhile


def test_tickets_sort_by_their_numbers() -> None:
    """H18: so the names of documents are the line."""
    tickets = [
        new_ticket(number, unique) for number, unique in ((2, "ff"), (10, "00"), (1_800_000_000_000, "0"))
    ]
    assert sorted(tickets) == tickets
    assert [ticket_number(ticket) for ticket in tickets] == [2, 10, 1_800_000_000_000]
