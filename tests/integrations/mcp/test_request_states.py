"""What a client hands back is sealed: it opens in each server of the store, expires, and counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, InputRequiredResult

from limpet import MemoryStore, Runs, StateGraph, pause
from limpet.engine.leases.lease_client import client_for
from limpet.errors import UsageError
from limpet.graphs.names import MCP_REPLIES
from limpet.integrations.mcp import app, server
from limpet.integrations.mcp.request_states import RequestState, is_first_use
from limpet.journal.store import Store
from support.mcp_clients import MODES, Person, data, problem, says, serving, talk
from support.mcp_graphs import article, asking
from support.waiting import SOON

GIVEN = {"topic": "kelp", "run_id": "kelp"}


def rounds() -> StateGraph:
    """It asks the same question again and again, in steps of their own."""
    graph = StateGraph({"all": list}, name="rounds")
    graph.add_node("ask", lambda state: {"all": [*(state.get("all") or []), pause("Next?")]})
    graph.set_entry_point("ask")
    graph.add_conditional_edges("ask", lambda state: len(state["all"]) < 2, {True: "ask", False: "stop"})
    graph.add_node("stop", lambda state: {})
    graph.set_finish_point("stop")
    return graph


GRAPHS = [article(), asking("name"), rounds()]


@pytest.fixture
def store() -> MemoryStore:
    """The store of a server."""
    return MemoryStore()


@pytest.fixture
def shop(store: Store) -> Iterator[Server[Any]]:
    """A server of the graphs."""
    with serving(GRAPHS, store) as made:
        yield made


def asked(target: Server[Any], tool: str = "article", given: Any = None) -> InputRequiredResult:
    """The request for input that a call gives."""
    found = exchange(target, tool, GIVEN if given is None else given)
    assert isinstance(found, InputRequiredResult)
    return found


def replied(
    target: Server[Any], state: str | None, reply: Any, tool: str = "article", given: Any = None
) -> Any:
    """What a call gives that hands back a state and the reply to a question."""
    return exchange(target, tool, GIVEN if given is None else given, state, reply)


def exchange(
    target: Server[Any], tool: str, given: Any, state: str | None = None, replies: Any = None
) -> Any:
    async def conversation(client: Client) -> Any:
        return await client.session.call_tool(
            tool, given, input_responses=replies, request_state=state, allow_input_required=True
        )

    return talk(target, conversation, "auto", Person())


def yes(question: str = "review:2:1") -> dict[str, ElicitResult]:
    return {question: ElicitResult(action="accept", content=says("yes"))}


def test_another_server_of_the_store_opens_it(store: Store, shop: Server[Any]) -> None:
    """P13: after a restart, say. A server of another store doesn't."""
    state = asked(shop).request_state
    other = server(store, GRAPHS, wait=60)
    with serving(GRAPHS) as elsewhere, pytest.raises(MCPError, match="Invalid or expired requestState"):
        replied(elsewhere, state, yes())
    assert data(replied(other, state, yes()))["result"]["verdict"] == "yes"


def test_what_was_changed_or_is_of_another_call_is_refused(shop: Server[Any]) -> None:
    """P13: nothing of it reaches the run."""
    state = asked(shop).request_state or ""
    other_run = {"topic": "kelp", "run_id": "other"}
    asked(shop, given=other_run)
    middle = len(state) // 2
    changed = f"{state[:middle]}{'A' if state[middle] != 'A' else 'B'}{state[middle + 1 :]}"
    plain = '["kelp", 0.0, "00", []]'
    for wrong in (changed, plain, "", state[:-4], "v1.AAAA"):
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            replied(shop, wrong, yes())
    for tool, given in (("article", other_run), ("get_run", {"run_id": "kelp", "wait": 1})):
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            replied(shop, state, yes(), tool, given)
    assert Runs(shop_store(shop)).get("kelp").status == "paused"


def shop_store(shop: Server[Any]) -> Any:
    """The store of a server, which its handlers have."""
    return shop.get_request_handler("tools/call").handler.__self__._served.store  # type: ignore[union-attr]


def test_it_expires(store: Store) -> None:
    """P13: then the client calls again, and is asked again."""
    with serving(GRAPHS, store, state_lasts=0.001) as brief:
        state = asked(brief).request_state
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            replied(brief, state, yes())
        assert asked(brief).input_requests


def test_it_counts_once(store: Store, shop: Server[Any]) -> None:
    """P13: a reply that comes again answers no other question, and gives what the run has become."""
    given = {"run_id": "r"}
    first = asked(shop, "rounds", given)
    (question,) = list(first.input_requests or {})
    reply = {question: ElicitResult(action="accept", content=says("one"))}
    second = replied(shop, first.request_state, reply, "rounds", given)
    assert question not in second.input_requests
    again = replied(shop, first.request_state, reply, "rounds", given)
    assert list(again.input_requests) == list(second.input_requests)
    Runs(store, GRAPHS).rollback("r", 0)
    Runs(store).retry("r")
    once_more = replied(shop, first.request_state, reply, "rounds", given)
    for answer in ("one", "two"):
        (question,) = once_more.input_requests
        reply = {question: ElicitResult(action="accept", content=says(answer))}
        once_more = replied(shop, once_more.request_state, reply, "rounds", given)
    assert data(once_more)["result"]["all"] == ["one", "two"]
    assert data(replied(shop, first.request_state, reply, "rounds", given)) == data(once_more)


def test_it_counts_once_even_if_the_reply_was_refused(shop: Server[Any]) -> None:
    """P13: the question is asked again, and takes the reply to that."""
    first = asked(shop)
    wrong = {"review:2:1": ElicitResult(action="accept", content=says("maybe"))}
    second = replied(shop, first.request_state, wrong)
    (request,) = second.input_requests.values()
    assert "'maybe' is not one of yes, no" in request.params.message
    assert isinstance(replied(shop, first.request_state, yes()), InputRequiredResult)
    assert data(replied(shop, second.request_state, yes()))["status"] == "completed"


def test_replies_to_what_was_not_asked_are_ignored(shop: Server[Any]) -> None:
    """P13: the run asks again."""
    state = asked(shop).request_state
    again = replied(shop, state, yes("review:7:1"))
    assert list(again.input_requests) == ["review:2:1"]


def test_a_later_run_of_the_same_id_is_another(store: Store, shop: Server[Any]) -> None:
    """P13, P6: a reply about a run that was deleted doesn't reach it."""
    state = asked(shop).request_state
    Runs(store).delete("kelp")
    asked(shop)
    with pytest.raises(MCPError, match="no longer there"):
        replied(shop, state, yes())


def test_marks_of_replies_are_deleted_when_their_time_is_over(store: Store) -> None:
    """P13: a store doesn't grow with each reply for ever; and no mark is gone before its state has expired."""
    for number in range(3):
        assert is_first_use(client_for(store), RequestState("kelp", 0.0, f"{number}"), -1.0)
    assert len(store.list_documents(MCP_REPLIES)) <= 1
    month = 30 * 24 * 3600.0
    with serving(GRAPHS, store, state_lasts=month) as patient:
        replied(patient, asked(patient).request_state, yes())
    (mark,) = store.list_documents(MCP_REPLIES)
    assert mark.due is not None
    assert mark.due > client_for(store).now() + month - 3600


def test_two_persons_who_answer_at_once_are_asked_once_each(store: Store, shop: Server[Any]) -> None:
    """P13, P6: one answer is posted while the other is stored. No person is asked again before it is taken in."""
    client = client_for(store)
    asks = Person()

    async def conversation(target: Any, mode: str) -> Any:
        given = {"topic": "kelp", "run_id": mode}

        async def reply(context: Any, params: Any) -> ElicitResult:
            held.enter_context(client.holding(mode))  # as another answer does, for a moment
            return await asks(context, params)

        async def release() -> None:
            while not client.head(mode).posted:
                await asyncio.sleep(0.01)
            held.close()

        with ExitStack() as held:
            async with Client(target, mode=mode, elicitation_callback=reply) as connected:
                called = asyncio.ensure_future(connected.call_tool("article", given))
                while not asks.asked:
                    await asyncio.sleep(0.01)
                await asyncio.wait_for(release(), SOON)
                return data(await called)["result"]["verdict"]

    for mode in MODES:
        asks = Person(says("yes"))
        assert asyncio.run(conversation(shop, mode)) == "yes"
        assert len(asks.asked) == 1
    state = asked(shop).request_state
    with client.holding("kelp"):
        late = data(replied(server(store, GRAPHS, wait=0.1), state, yes()))
    assert (late["status"], late["note"]) == (
        "paused",
        "an answer waits until a worker of the store takes it in",
    )


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "7d", None])
def test_how_long_a_reply_counts_is_checked(store: Store, seconds: Any) -> None:
    """P13: as how long a call waits is."""
    with pytest.raises(UsageError, match="state_lasts is for how many seconds"):
        server(store, GRAPHS, state_lasts=seconds)


def test_a_read_only_server_takes_none(store: Store, shop: Server[Any]) -> None:
    """P13: it has no key to open one, and changes nothing."""
    state = asked(shop).request_state
    looking = server(store, GRAPHS, read_only=True)
    for given in (state, '["kelp", 0.0, "00", []]'):
        with pytest.raises(MCPError, match="read-only"):
            replied(looking, given, yes(), "get_run", {"run_id": "kelp", "wait": 1})


def test_over_http_the_user_is_known_and_bound(store: Store, shop: Server[Any]) -> None:
    """P13, P6: by the check of the application; another user can't reply, and the history has the name."""

    def authenticate(headers: Any) -> str | None:
        return headers.get("x-user") or None

    async def conversation() -> list[Any]:
        application = app(shop, authenticate=authenticate)
        async with shop.session_manager.run():
            state = (await post(application, "ann", None)).get("requestState")
            foreign = await post(application, "bob", state)
            stranger = await post(application, "", state)
            return [foreign, stranger, await post(application, "ann", state)]

    foreign, stranger, done = asyncio.run(conversation())
    assert foreign["message"] == "Invalid or expired requestState"
    assert stranger["code"] == "not-allowed"
    assert done["structuredContent"]["result"]["verdict"] == "yes"
    answers = [each for each in Runs(store).get("kelp").events() if each["type"] == "answer"]
    assert [each["by"] for each in answers] == [{"review:2:1": "ann"}]


async def post(application: Any, user: str, state: str | None) -> dict[str, Any]:
    """The result or error of one call over HTTP."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    params: dict[str, Any] = {"name": "article", "arguments": GIVEN, "_meta": meta}
    if state is not None:
        reply = {"action": "accept", "content": says("yes")}
        params |= {"requestState": state, "inputResponses": {"review:2:1": reply}}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "article",
        "x-user": user,
    }
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = (await client.post("/mcp", json=body, headers=headers)).json()
    found: dict[str, Any] = answer.get("result") or answer.get("error") or answer
    return found


def test_an_inline_workflow_continues_in_a_new_server_by_the_same_text(store: Store) -> None:
    """P13: the call that hands back the reply has the text; no code comes from the store."""
    given = {
        "yaml": "name: asking\ntasks:\n  - name: ask\n    prompt: {text: Sure?, choices: [yes, no]}\n",
        "run_id": "i",
    }
    with serving([], store, allow_inline=True) as first:
        asked_here = asked(first, "run_inline", given)
        (question,) = list(asked_here.input_requests or {})
    reply = {question: ElicitResult(action="accept", content=says("yes"))}
    with serving([], store, allow_inline=True) as second:
        unknown = exchange(second, "get_run", {"run_id": "i"})
        assert problem(unknown)["error"]["code"] == "run-not-found"
        done = replied(second, asked_here.request_state, reply, "run_inline", given)
        assert data(done)["result"] == {"ask": "yes"}
