"""The tool of a graph: it runs the graph durably, has its questions answered, and says what has become of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp_types import ErrorData

from limpet import MemoryStore, Runs
from limpet.graphs.secrets import MASK
from limpet.journal.store import COMPLETED
from support.mcp_clients import MODES, Person, call, data, problem, says, serving, talk
from support.mcp_graphs import (
    House,
    Trip,
    approved,
    article,
    asking,
    failing,
    large,
    listening,
    report,
    twice,
    vault,
)
from support.waiting import until

STORE = MemoryStore()
GRAPHS = [
    article(),
    asking("trip", "Where to?", schema=Trip),
    asking("house", "Which rooms?", schema=House),
    asking("sure", "Sure?", schema=bool),
    asking("size", "Which size?", choices=[1, 2, "large"]),
    asking("name", "Your name?"),
    twice(),
    approved(),
    failing(),
    vault(),
    large(),
    listening(),
    report(),
]


@pytest.fixture(scope="module")
def shop() -> Iterator[Server[Any]]:
    """A server of all graphs."""
    with serving(GRAPHS, STORE) as server:
        yield server


def test_each_graph_is_a_tool_with_the_schema_of_its_state(shop: Server[Any]) -> None:
    """P13: with what it is for, and what it changes."""
    tools = {tool.name: tool for tool in talk(shop, Client.list_tools).tools}
    schema = tools["article"].input_schema
    assert set(schema["properties"]) == {"topic", "text", "verdict", "run_id"}
    assert schema["properties"]["topic"]["type"] == "string"
    assert tools["article"].description == (
        "Write about a topic, once a person agrees.\n\nRun article: the nodes draft, review."
    )
    hints = {name: tool.annotations for name, tool in tools.items() if tool.annotations}
    assert [name for name, hint in hints.items() if hint.read_only_hint] == [
        "list_graphs",
        "describe_graph",
        "list_runs",
        "get_run",
        "get_history",
        "get_state",
    ]
    assert [name for name, hint in hints.items() if hint.destructive_hint] == ["cancel_run", "retry_run"]
    assert tools["report"].input_schema["required"] == ["topic"]


@pytest.mark.parametrize("mode", MODES)
def test_a_question_is_a_form_and_the_reply_continues_the_run(shop: Server[Any], mode: str) -> None:
    """P13: by both generations of the protocol; the history says who answered."""
    person = Person(says("yes"))
    given = {"topic": "kelp", "run_id": f"kelp-{mode}"}
    done = data(call(shop, "article", given, mode, person))
    result = {"topic": "kelp", "text": "About kelp.", "verdict": "yes"}
    assert done == {"run_id": given["run_id"], "graph": "article", "status": COMPLETED, "result": result}
    ((message, schema),) = person.asked
    assert message == "Publish?"
    assert schema["properties"] == {"answer": {"type": "string", "enum": ["yes", "no"]}}
    answers = [each for each in Runs(STORE).get(given["run_id"]).events() if each["type"] == "answer"]
    assert [each["by"] for each in answers] == [{"review:2:1": "mcp"}]


def test_the_same_call_with_the_same_id_is_the_same_run(shop: Server[Any]) -> None:
    """P13: a client that has lost its answer calls again."""
    first = call(shop, "article", {"topic": "moss", "run_id": "moss"}, person=Person(says("no")))
    again = call(shop, "article", {"topic": "moss", "run_id": "moss"})
    assert data(again) == data(first)
    assert (
        "run 'moss'"
        in problem(call(shop, "article", {"topic": "fern", "run_id": "moss"}))["error"]["message"]
    )


@pytest.mark.parametrize(
    ("graph", "properties", "replies", "out"),
    [
        (
            "trip",
            {
                "city": {"type": "string", "title": "City"},
                "nights": {"type": "integer", "title": "Nights", "default": 2},
                "breakfast": {"type": "boolean", "title": "Breakfast", "default": False},
            },
            [{"city": "Voss", "nights": 3, "breakfast": True}],
            {"city": "Voss", "nights": 3, "breakfast": True},
        ),
        (
            "house",
            None,
            [says("no JSON"), says('{"rooms": [{"name": "attic"}]}')],
            {"rooms": [{"name": "attic"}]},
        ),
        ("sure", {"answer": {"type": "boolean"}}, [says(True)], True),
        ("size", {"answer": {"type": "string", "enum": ["1", "2", "large"]}}, [says("2")], 2),
        ("name", {"answer": {"type": "string"}}, [says("Ann")], "Ann"),
    ],
)
def test_the_form_is_made_of_the_question(
    shop: Server[Any], graph: str, properties: Any, replies: list[Any], out: Any
) -> None:
    """P13: a flat schema is the form; what isn't flat is asked for as JSON; a wrong reply is asked for again."""
    person = Person(*replies)
    done = data(call(shop, graph, person=person))
    state = done["result"]["out"]
    assert state == out
    assert properties is None or person.asked[0][1]["properties"] == properties
    if len(replies) > 1:
        assert (
            "The last answer was refused: question 'only:1:1' refused the answer: it isn't JSON"
            in (person.asked[1][0])
        )


@pytest.mark.parametrize("mode", MODES)
def test_several_questions_are_asked_at_once(shop: Server[Any], mode: str) -> None:
    """P13, P3: an answer that doesn't fit is asked for again, and the other one counts."""

    asked: list[str] = []

    async def reply(context: Any, params: Any) -> Any:
        asked.append(params.message)
        again = "refused" in params.message
        content = says({"A": 7 if again else 7.5, "B": "b"}[params.message[0]])
        return await Person(content)(context, params)

    done = data(call(shop, "twice", mode=mode, person=reply))
    assert [each.get("a", each.get("b")) for each in done["result"]["sum"]] == [7, "b"]
    assert sorted(message.partition("\n")[0] for message in asked) == ["A?", "A?", "B?"]


def test_an_approval_is_a_form_too(shop: Server[Any]) -> None:
    """P13: only a run that was approved continues."""
    person = Person(says(False))
    stopped = data(call(shop, "approved", {"run_id": "a"}, person=person))
    assert stopped["status"] == "paused"
    assert person.asked[0][0] == "Run a of approved was interrupted before 'only'. May it continue?"
    assert data(call(shop, "approved", {"run_id": "a"}, person=Person(says(True))))["status"] == COMPLETED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_declined_form_leaves_the_run_as_it_is(shop: Server[Any], mode: str, action: str) -> None:
    """P13: the answer says what to do next."""
    stopped = data(call(shop, "name", mode=mode, person=Person(action)))
    assert stopped["status"] == "paused"
    assert stopped["note"] == "the user didn't answer: the run stays as it is"
    answered = call(shop, "answer_run", {"run_id": stopped["run_id"], "value": "Ann"}, mode)
    assert data(answered)["result"] == {"out": "Ann"}


def test_a_client_that_can_not_show_a_form_gets_the_question(shop: Server[Any]) -> None:
    """P13: it has said that it takes forms, and then refuses one."""

    async def refuse(context: Any, params: Any) -> ErrorData:
        return ErrorData(code=-32602, message="too small a screen")

    stopped = data(call(shop, "name", mode="legacy", person=refuse))
    assert (stopped["status"], stopped["questions"][0]["prompt"]) == ("paused", "Your name?")
    assert stopped["note"] == "the client didn't ask the user: too small a screen"


@pytest.mark.parametrize("mode", MODES)
def test_a_client_without_forms_gets_the_question_and_the_tool(shop: Server[Any], mode: str) -> None:
    """P13: and the id of the run."""
    stopped = data(call(shop, "article", {"topic": "kelp"}, mode))
    (question,) = stopped["questions"]
    assert question == {
        "id": "review:2:1",
        "prompt": "Publish?",
        "node": "review",
        "choices": ["yes", "no"],
    }
    assert f"answer_run(run_id={stopped['run_id']!r}, value=…)" in stopped["next"]
    wrong = problem(call(shop, "answer_run", {"run_id": stopped["run_id"], "value": "maybe"}, mode))
    assert wrong["error"]["code"] == "answer-refused"
    given = {"run_id": stopped["run_id"], "answers": {question["id"]: "no"}, "by": "Ann"}
    assert data(call(shop, "answer_run", given, mode))["result"]["verdict"] == "no"


@pytest.mark.parametrize("mode", MODES)
def test_a_secret_is_neither_shown_nor_asked_for(shop: Server[Any], mode: str) -> None:
    """P13, P6: no form asks for it, no tool takes it, and no answer has it."""
    person = Person()
    run_id = f"vault-{mode}"
    stopped = call(shop, "vault", {"token": "s3cret", "run_id": run_id}, mode, person)
    assert person.asked == []
    assert f"limpet answer {run_id}" in data(stopped)["next"]
    refused = call(shop, "answer_run", {"run_id": run_id, "value": "1234"}, mode)
    assert "isn't taken here" in problem(refused)["error"]["message"]
    Runs(STORE).answer(run_id, "1234")
    done = call(shop, "get_run", {"run_id": run_id, "wait": 30}, mode)
    assert data(done)["result"] == {"token": MASK, "seen": 10}
    state = call(shop, "get_state", {"run_id": run_id, "key": "token"}, mode)
    everything = [each.model_dump_json() for each in (stopped, refused, done, state)]
    assert not any("s3cret" in text or "1234" in text for text in everything)
    masked = problem(call(shop, "vault", {"token": MASK}, mode))["error"]["message"]
    assert "shown in place of a secret" in masked


def test_a_run_that_fails_is_an_error_that_says_what_to_do(shop: Server[Any]) -> None:
    """P13: and the run is retried by its id."""
    failed = problem(call(shop, "failing", {"run_id": "f"}))
    assert failed["run_id"] == "f"
    assert failed["error"] == {"type": "ValueError", "message": "the line is busy", "node": "only"}
    assert failed["next"].startswith("retry_run(run_id='f')")
    retried = call(shop, "retry_run", {"run_id": "f", "update": {"repaired": True}})
    assert data(retried)["result"]["out"] == "done"


def test_a_workflow_has_the_results_of_its_tasks(shop: Server[Any]) -> None:
    """P13, D1."""
    done = data(call(shop, "report", {"topic": "kelp"}, person=Person(says(True))))
    assert done["result"] == {"fetch": "kelp grows", "count": 2, "sign": True}
    needed = problem(call(shop, "report"))["error"]["message"]
    assert needed == "report needs the argument 'topic'"


def test_a_large_result_comes_once(shop: Server[Any]) -> None:
    """P13: 10 MB, structured; a client that knows only text gets it as text."""
    done = call(shop, "large", {"size": 10_000_000, "run_id": "big"})
    assert len(data(done)["result"]["out"]) == 10_000_000
    text = done.content[0].text  # type: ignore[union-attr]
    assert len(text) < 1000
    assert "structuredContent has it" in text
    state = data(call(shop, "get_state", {"run_id": "big"}))
    assert state["large"]["out"] == 10_000_000


def test_a_call_that_waits_too_long_says_what_to_do_next(shop: Server[Any]) -> None:
    """P13: and its run continues."""
    given = {"graph": "listening", "run_id": "long", "wait": 0}
    waiting = data(call(shop, "run_graph", given))
    assert waiting["status"] in ("queued", "running", "waiting")
    assert (
        "get_run(run_id='long', wait=30) waits for it" in waiting["next"] or "send_message" in waiting["next"]
    )
    until(lambda: Runs(STORE).get("long").info.waits, "the wait")
    waiting = data(call(shop, "get_run", {"run_id": "long"}))
    assert "send_message(run_id='long', name='note', value=…)" in waiting["next"]
    assert data(call(shop, "send_message", {"run_id": "long", "name": "note", "value": 5}))["sent"]
    assert data(call(shop, "get_run", {"run_id": "long", "wait": 30}))["result"] == {"out": 5}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_cancelled_leaves_its_run(shop: Server[Any], mode: str) -> None:
    """P13: so does a client that is gone."""
    run_id = f"left-{mode}"

    async def leave(client: Client) -> None:
        with anyio.move_on_after(0.3):
            await client.call_tool("listening", {"run_id": run_id})

    talk(shop, leave, mode)
    until(lambda: Runs(STORE).get(run_id).info.waits, "the wait")
    Runs(STORE).send(run_id, "note", 6)
    assert data(call(shop, "get_run", {"run_id": run_id, "wait": 30}, mode))["result"] == {"out": 6}


def test_progress_is_what_nodes_have_completed(shop: Server[Any]) -> None:
    """P13: to clients that ask for it; it only grows."""
    seen: list[tuple[float, str | None]] = []

    async def watch(client: Client) -> None:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, message))

        await client.call_tool("article", {"topic": "kelp", "run_id": "p"}, progress_callback=note)

    talk(shop, watch, "legacy", Person(says("yes")))
    assert seen[0] == (1.0, "run p has begun")
    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers))


def test_progress_comes_by_any_token(shop: Server[Any]) -> None:
    """P13: also to a client that counts its tokens from 0."""
    seen: list[Any] = []

    async def watch(client: Client) -> None:
        await client.call_tool("article", {"topic": "kelp", "run_id": "p0"}, meta={"progressToken": 0})

    async def note(message: Any) -> None:
        seen.append(message)

    talk(shop, watch, "legacy", message_handler=note)
    assert seen[0].params.progress_token == 0
    assert seen[0].params.message == "run p0 has begun"
