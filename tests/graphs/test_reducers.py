"""`add_messages`: a list of messages in which one with a known id replaces the older one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from limpet import END, ExecutionError, State, StateGraph, add_messages
from support.graphs import Crash, chain, crash_once


class Message(BaseModel):
    id: str
    text: str = ""


@dataclass
class Chat:
    messages: Annotated[list[Message], add_messages] = field(default_factory=list)


class ChatModel(BaseModel):
    messages: Annotated[list[Message], add_messages] = []


SCHEMA = {"messages": Annotated[list, add_messages]}


def said(id: str | None, text: str) -> dict[str, Any]:
    return {"text": text} if id is None else {"id": id, "text": text}


def texts(messages: list[Any]) -> list[Any]:
    return [each["text"] if isinstance(each, dict) else each.text for each in messages]


@given(
    st.lists(st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.integers(0, 99)), max_size=4))
)
def test_a_run_and_a_resumed_run_have_the_messages_that_the_reducer_alone_gives(
    updates: list[list[tuple[str | None, int]]],
) -> None:
    """H14: live, with a store, and from the journal."""
    rounds = [[said(id, str(number)) for id, number in update] for update in updates]
    expected: list[Any] = []
    for update in rounds:
        expected = add_messages(expected, update)
    nodes = [lambda state, update=update: {"messages": update} for update in rounds] or [lambda state: None]
    assert chain(*nodes, schema=SCHEMA).execute({})["messages"] == expected
    graph = chain(*nodes, schema=SCHEMA).compile(store="memory://", preserve=True)
    assert graph.execute({}, run_id="r")["messages"] == expected
    assert graph.state_at("r")["messages"] == expected
    ids = [each["id"] for each in expected if "id" in each]
    assert len(ids) == len(set(ids))


def test_a_single_message_and_objects_with_ids_work() -> None:
    """H14: and what enters a checked state is checked."""
    for schema in (Chat, ChatModel):
        nodes = [
            lambda state: {"messages": Message(id="a", text="1")},
            lambda state: {"messages": [Message(id="b", text="2"), Message(id="a", text="3")]},
        ]
        for store in (None, "memory://"):
            final = chain(*nodes, schema=schema).compile(store=store).execute({})
            assert final.model.messages == [Message(id="a", text="3"), Message(id="b", text="2")]
            for wrong in ({"messages": [5]}, {"messages": [Message(id="a"), 5]}):
                graph = chain(nodes[0], lambda state, wrong=wrong: wrong, schema=schema)
                with pytest.raises(ExecutionError, match="InvalidValue: the update doesn't fit Chat"):
                    graph.compile(store=store).execute({})


def test_a_resume_has_replaced_messages_in_their_places() -> None:
    """H14: after a crash behind the step that replaced one."""
    nodes = [
        lambda state: {"messages": [said("a", "1"), said("b", "2")]},
        lambda state: {"messages": [said("a", "3"), said("c", "4")]},
        crash_once(lambda state: {"messages": said("b", "5")}),
    ]
    graph = chain(*nodes, schema=SCHEMA).compile(store="memory://")
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    assert texts(graph.resume("r")["messages"]) == ["3", "5", "4"]


def test_branches_replace_in_their_own_copies() -> None:
    """H14: the list that they share stays as it was for the others."""

    def left(state: State) -> dict[str, Any]:
        return {"messages": said("a", "left")}

    def right(state: State) -> dict[str, Any]:
        return {"messages": said("b", "right")}

    def join(state: State, parallel_results: list[Any]) -> dict[str, Any]:
        assert [texts(each["messages"]) for each in parallel_results] == [["left", "2"], ["1", "right"]]
        assert texts(state["messages"]) == ["1", "2"]
        return {"messages": [parallel_results[0]["messages"][0], parallel_results[1]["messages"][1]]}

    for store in (None, "memory://"):
        graph = StateGraph(SCHEMA).add_node("src").add_node(left).add_node(right).add_fanin_node(join)
        graph.add_parallel_edge("src", "left", "join").add_parallel_edge("src", "right", "join")
        graph.set_entry_point("src").set_finish_point("join").compile(store=store)
        final = graph.execute({"messages": [said("a", "1"), said("b", "2")]})
        assert texts(final["messages"]) == ["left", "right"]


def test_only_what_is_new_or_replaced_is_stored() -> None:
    """H14, H4: a message that is streamed into, among hundreds, costs as much as itself."""

    def talk(state: State) -> dict[str, Any]:
        turn = state["turn"] + 1
        return {"turn": turn, "messages": [said(str(turn), "x" * 500), said("summary", f"{turn} turns")]}

    graph = StateGraph({"turn": int, **SCHEMA}).add_node("talk", talk).set_entry_point("talk")
    graph.add_conditional_edges("talk", lambda state: "talk" if state["turn"] < 200 else END)
    graph.compile(store="memory://", preserve=True)
    final = graph.execute({"turn": 0}, run_id="r")
    assert texts(final["messages"])[1] == "200 turns"
    assert len(final["messages"]) == 201
    tail = graph.compiled().need_client("test").store.read("r", 1)
    assert sum(map(len, tail.records)) < 400_000
    assert graph.state_at("r") == final


def test_an_event_has_the_messages_as_they_were_at_its_step() -> None:
    """H14, H12: a message that is replaced later stays in earlier events, whenever they are read."""
    nodes = [
        lambda state: {"messages": [said("a", "1"), said("b", "2")]},
        lambda state: {"messages": [said("c", "4"), said("a", "3")]},
        lambda state: {"messages": said("c", "5")},
    ]
    for store in (None, "memory://"):
        graph = chain(*nodes, schema=SCHEMA).compile(store=store)
        events = [event for event in graph.stream({}) if event["type"] == "state"]
        assert [texts(event["state"]["messages"]) for event in events] == [
            ["1", "2"],
            ["3", "2", "4"],
            ["3", "2", "5"],
        ]
        assert [texts(event["update"]["messages"]) for event in events] == [["1", "2"], ["3", "4"], ["5"]]
