"""`limpet runs send`, and how a run that waits for messages is shown. H16."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from limpet import open_store
from support.command_line import Command

CHAT = """
from limpet import StateGraph, receive

chat = StateGraph({"said": str, "more": object}, name="chat")
chat.add_node("turn", lambda state: {"said": receive("user"), "more": receive("more", deadline=3600)})
chat.set_entry_point("turn")
chat.set_finish_point("turn")


def talk(state, ctx):
    return dict(ctx.join(ctx.start(chat, {})))


host = StateGraph(name="host").add_node("talk", talk).set_entry_point("talk").set_finish_point("talk")
"""


@pytest.fixture
def waiting(limpet: Command, here: Path) -> Command:
    """A command line in whose store the run "c" waits for the message "user"."""
    (here / "chats.py").write_text(CHAT, encoding="utf-8")
    result = limpet("run", "chats.py:chat", "--id", "c")
    assert result.code == 3
    assert "turn waits for the message user" in result.err
    return limpet


def test_a_message_is_sent_and_the_run_continues(waiting: Command) -> None:
    """H16: text is sent as it is, and other values as JSON."""
    shown = waiting("runs", "show", "c")
    assert "waiting" in shown.out
    assert "the message user, at turn" in shown.out
    sent = waiting("runs", "send", "c", "user", "What is kelp?")
    assert (sent.code, "sent user to run c" in sent.out) == (0, True)
    assert "1 not taken in yet" in waiting("runs", "show", "c").out
    assert waiting("resume", "c", "--graph", "chats.py:chat").code == 3
    shown = waiting("runs", "show", "c")
    assert "the message more, at turn (until " in shown.out
    waiting("runs", "send", "c", "more", '{"n": [1, 2]}')
    assert waiting("resume", "c", "--graph", "chats.py:chat").code == 0
    state = waiting("runs", "state", "c", "--json").data
    assert state == {"said": "What is kelp?", "more": {"n": [1, 2]}}


def test_a_request_to_cancel_is_not_shown_as_a_message(waiting: Command) -> None:
    """G12, H16: while the process that executes the run hasn't taken it in."""
    store = open_store("sqlite:///limpet.db")
    store.claim("c", "elsewhere|boot|namespace|124|456", 60.0)
    assert waiting("runs", "show", "c", "--json").data["cancel_requested"] is False
    waiting("runs", "cancel", "c")
    shown = waiting("runs", "show", "c")
    assert re.search("^cancellation +requested$", shown.out, re.M)
    assert "not taken in yet" not in shown.out
    waiting("runs", "send", "c", "user", "hello")
    assert re.search("^messages +1 not taken in yet$", waiting("runs", "show", "c").out, re.M)
    facts = waiting("runs", "show", "c", "--json").data
    assert (facts["cancel_requested"], facts["inbox"]) == (True, 2)


def test_sending_another_message_than_the_run_waits_for_says_so(waiting: Command) -> None:
    """H16: the name may be misspelt; or the message comes early, which is fine."""
    sent = waiting("runs", "send", "c", "usre", "hello")
    assert sent.code == 0
    assert "now the run waits for user: usre waits until a node receives it" in sent.err
    assert "waits for user" not in waiting("runs", "send", "c", "user", "hello").err


def test_a_key_sends_a_message_once(waiting: Command) -> None:
    """H16: a script may be run again."""
    assert waiting("runs", "send", "c", "other", "1", "--key", "k", "--json").data["new"] is True
    assert waiting("runs", "send", "c", "other", "2", "--key", "k", "--json").data["new"] is False
    again = waiting("runs", "send", "c", "other", "2", "--key", "k")
    assert (again.code, "nothing was sent" in again.out) == (0, True)
    facts = waiting("runs", "show", "c", "--json").data
    assert facts["inbox"] == 1


def test_runs_that_wait_are_listed(waiting: Command) -> None:
    """H16: with what they wait for."""
    listed = waiting("runs", "list", "--status", "waiting")
    assert "waits for the message user, at turn" in listed.out
    (facts,) = waiting("runs", "list", "--status", "waiting", "--json").data
    assert [wait["name"] for wait in facts["waits"]] == ["user"]


def test_a_message_to_a_run_that_has_ended_is_refused(waiting: Command) -> None:
    """H16: with the command that helps."""
    waiting("runs", "cancel", "c", "--yes")
    refused = waiting("runs", "send", "c", "user", "hello")
    assert refused.code == 2
    assert "cancelled" in refused.err
    assert "resume c" in refused.err


def test_a_run_that_waits_for_a_child_run_leads_to_it(waiting: Command) -> None:
    """H16: the child waits itself; what to do next is shown there."""
    stopped = waiting("run", "chats.py:host", "--id", "h")
    (child,) = waiting("runs", "list", "--parent", "h", "--json").data
    assert stopped.code == 3
    assert f"talk waits for the child run {child['run_id']}. Look at it with:" in stopped.err
    assert f"runs show {child['run_id']}" in stopped.err
    assert f"runs send {child['run_id']} user VALUE" in waiting("runs", "show", child["run_id"]).err
