"""Questions that pause a run: asking, reading the question elsewhere, answering, and being refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pydantic
import pytest

from limpet import (
    AlreadyAnswered,
    AnswerRefused,
    ExecutionError,
    MemoryStore,
    NodeContext,
    Retry,
    RunPaused,
    State,
    StateGraph,
    UsageError,
    once,
    pause,
)
from support.graphs import Crash, asking, chain, single


def one(run: Callable[..., Any], store: Any = "memory://", **policy: Any) -> StateGraph:
    """A graph of one node."""
    return single(run, "ask", name="ask", **policy).compile(store=store)


def test_a_pause_stops_the_run_with_a_question() -> None:
    """P1: the run is saved, its status is `paused`, and an event carries the question."""
    run = one(asking(choices=["yes", "no"])).invoke({"draft": "text"})
    (event,) = run
    assert event["type"] == "pause"
    assert (event["node"], event["state"], event["run_id"]) == ("ask", {"draft": "text"}, run.id)
    assert event["checkpoint_path"] == f"{run.id}@0"
    (question,) = run.questions
    assert (question.prompt, question.node, question.choices) == ("Ship it?", "ask", ["yes", "no"])
    assert event["questions"] == [question.to_data()]
    assert run.status == "paused"


def test_any_process_that_shares_the_store_can_read_the_question() -> None:
    """P1: without the code that asked, from the list of runs."""
    store = MemoryStore()
    run = one(asking(schema=int), store).invoke({}).wait()
    elsewhere = one(lambda state: pytest.fail("ran"), store)
    (info,) = elsewhere.runs("paused")
    assert (info.run_id, info.node, info.reason) == (run.id, "ask", "'ask' asks: Ship it?")
    assert [(question.prompt, question.schema) for question in info.questions] == [
        ("Ship it?", {"type": "integer"})
    ]
    with pytest.raises(AnswerRefused):
        elsewhere.resume(run.id, "three")


@pytest.mark.parametrize("how", ["value", "response", "answers", "checkpoint"])
def test_a_resume_makes_the_call_return_the_response(how: str) -> None:
    """P1: `resume(id, response)`, by name, by question id, and through the checkpoint; in a new graph object."""
    store = MemoryStore()
    run = one(asking(), store).invoke({"kept": 1})
    (event,) = run
    graph = one(asking(), store)
    if how == "value":
        final = graph.resume(run.id, ("yes", 1))
    elif how == "response":
        final = graph.resume(run.id, response=("yes", 1))
    elif how == "answers":
        final = graph.resume(run.id, answers={event["questions"][0]["id"]: ("yes", 1)})
    else:
        (last,) = graph.invoke(("yes", 1), checkpoint=event["checkpoint_path"])
        final = last["state"]
    assert final == {"kept": 1, "answer": ("yes", 1)}
    assert graph.runs()[0].status == "completed"


@pytest.mark.parametrize("answer", [None, False, 0, "", [], {}])
def test_an_empty_answer_is_an_answer(answer: Any) -> None:
    """P1: what is false isn't missing."""
    graph = one(asking())
    run = graph.invoke({}).wait()
    assert graph.resume(run.id, answer) == {"answer": answer}


def test_a_resume_without_an_answer_is_refused() -> None:
    """P1, D11: the question stays open; the error repeats it."""
    calls: list[int] = []

    def ask(state: State) -> dict[str, Any]:
        calls.append(1)
        return {"answer": pause("Ship it?")}

    graph = one(ask)
    run = graph.invoke({})
    (event,) = run
    for attempt in (
        lambda: graph.resume(run.id),
        lambda: graph.resume(run.id, update={"x": 1}),
        lambda: graph.invoke(None, checkpoint=event["checkpoint_path"]).result(),
    ):
        with pytest.raises(RunPaused, match=r"Ship it\?") as caught:
            attempt()
        assert [question.prompt for question in caught.value.questions] == ["Ship it?"]
    assert calls == [1]
    assert [(info.status, len(info.questions)) for info in graph.runs()] == [("paused", 1)]
    assert graph.resume(run.id, "yes") == {"answer": "yes"}


def test_execute_raises_with_the_questions() -> None:
    """P1: the caller knows what to ask, and how to resume."""
    with pytest.raises(
        RunPaused, match=r"'ask' asks: Ship it\? — resume\('r', answer\) continues it"
    ) as caught:
        one(asking()).execute({}, run_id="r")
    assert (caught.value.run_id, caught.value.node) == ("r", "ask")
    assert [question.id for question in caught.value.questions] == ["ask:1:1"]


class Verdict(pydantic.BaseModel):
    ok: bool
    grade: int = pydantic.Field(ge=1, le=5, default=3)
    tags: list[str] = []
    kind: Literal["minor", "major"] = "minor"


NESTED = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 4},
        "size": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
        "parts": {"type": "array", "items": {"type": "number"}},
        "mode": {"enum": ["a", "b"]},
        "fixed": {"const": 1},
        "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
    },
}


@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        ({"choices": ["yes", "no"]}, ["yes", "no"], ["maybe", None, "Yes", ["yes"]]),
        ({"choices": [1, 2]}, [1], [True, 1.0, "1", 3]),
        ({"schema": str}, ["text", ""], [5, None, ["text"], b"text"]),
        ({"schema": int}, [5, -1], ["5", 5.0, True, None]),
        ({"schema": float}, [5.5, 5], ["5", True]),
        ({"schema": bool}, [True, False], [1, 0, "yes", None]),
        ({"schema": list}, [[], [1]], ["text", {}, 1]),
        ({"schema": dict}, [{}, {"a": 1}], [[], "text"]),
        ({"schema": {"type": "integer", "minimum": 3, "maximum": 5}}, [3, 5], [2, 6, 3.5, "3"]),
        (
            {"schema": NESTED},
            [
                {"name": "ab"},
                {"name": "abcd", "size": None, "parts": [1, 2.5], "mode": "a", "fixed": 1, "either": True},
            ],
            [
                {},
                {"name": "a"},
                {"name": "abcde"},
                {"name": "ab", "size": 0},
                {"name": "ab", "size": 10},
                {"name": "ab", "parts": [1, "x"]},
                {"name": "ab", "mode": "c"},
                {"name": "ab", "fixed": 2},
                {"name": "ab", "either": 1},
                "ab",
            ],
        ),
        (
            {"schema": Verdict},
            [{"ok": True, "grade": 5, "tags": ["a"], "kind": "major"}],
            [{}, {"ok": "yes"}, {"ok": True, "grade": 6}, {"ok": True, "kind": "x"}, {"ok": True, "tags": [1]}],
        ),
        ({"choices": ["a", "bb"], "schema": {"type": "string", "minLength": 2}}, ["bb"], ["a", "cc"]),
    ],
    ids=["choices", "exact choices", "str", "int", "float", "bool", "list", "dict", "JSON schema",
         "nested JSON schema", "pydantic", "both"],
)  # fmt: skip
def test_an_answer_must_fit_its_question(
    question: dict[str, Any], right: list[Any], wrong: list[Any]
) -> None:
    """P1: choices, a type, a JSON Schema or a pydantic model; a wrong answer leaves the question open."""
    graph = one(asking(**question))
    run = graph.invoke({}).wait()
    for answer in wrong:
        with pytest.raises(
            AnswerRefused, match=r"question 'ask:1:1' refused the answer: .*; it is still open"
        ) as caught:
            graph.resume(run.id, answer)
        assert caught.value.question_id == "ask:1:1"
        assert [(info.status, len(info.questions)) for info in graph.runs()] == [("paused", 1)]
    assert graph.resume(run.id, right[0]) == {"answer": right[0]}
    for answer in right[1:]:
        again = graph.invoke({}).wait()
        assert graph.resume(again.id, answer) == {"answer": answer}


def test_a_refusal_says_where_the_answer_is_wrong() -> None:
    """P1: the path to the part that doesn't fit."""
    graph = one(asking(schema=NESTED))
    run = graph.invoke({}).wait()
    for answer, reason in {
        "the answer has no 'name'": {"size": 3},
        "the answer.name is shorter than 2 characters": {"name": "a"},
        "the answer.parts[1] is 'x', not of type number": {"name": "ab", "parts": [1, "x"]},
        "the answer.size is 10, above 9": {"name": "ab", "size": 10},
    }.items():
        with pytest.raises(AnswerRefused) as caught:
            graph.resume(run.id, reason)
        assert caught.value.reason == answer


def test_with_a_pydantic_model_the_call_returns_an_instance() -> None:
    """P1: validated and with its defaults, each time the node runs."""
    seen: list[Any] = []

    def ask(state: State) -> dict[str, Any]:
        verdict = pause("Good?", schema=Verdict)
        seen.append(verdict)
        return {"grade": verdict.grade, "more": pause("More?")}

    graph = one(ask)
    run = graph.invoke({}).wait()
    with pytest.raises(RunPaused, match=r"More\?"):
        graph.resume(run.id, {"ok": True, "tags": ["x"]})
    assert graph.resume(run.id, "no") == {"grade": 3, "more": "no"}
    assert seen == [Verdict(ok=True, tags=["x"])] * 2


@pytest.mark.parametrize("schema", [tuple, object(), "string", 5])
def test_an_invalid_schema_fails_the_node(schema: Any) -> None:
    """P1: a question that no answer could be checked against isn't asked."""
    with pytest.raises(ExecutionError, match="schema is a type") as caught:
        one(asking(schema=schema)).execute({})
    assert isinstance(caught.value.cause, UsageError)


def test_a_node_may_ask_several_questions_one_after_the_other() -> None:
    """P1: each has its own id; the node runs again from its first line and gets the answers it was given."""
    seen: list[list[Any]] = []

    def ask(state: State) -> dict[str, Any]:
        answers: list[Any] = []
        seen.append(answers)
        for prompt in ("Name?", "Size?", "Sure?"):
            answers.append(pause(prompt))
        return {"answers": tuple(answers)}

    graph = one(ask)
    run = graph.invoke({}).wait()
    asked = [run.questions[0]]
    for answer in ("kelp", 3):
        with pytest.raises(RunPaused) as caught:
            graph.resume(run.id, answer)
        asked += caught.value.questions
    assert graph.resume(run.id, True) == {"answers": ("kelp", 3, True)}
    assert [question.prompt for question in asked] == ["Name?", "Size?", "Sure?"]
    assert len({question.id for question in asked}) == 3
    assert seen == [[], ["kelp"], ["kelp", 3], ["kelp", 3, True]]


def test_a_key_distinguishes_questions_whatever_their_order() -> None:
    """P1: with `key=`, a node may ask in another order when it runs again."""
    turn: list[int] = []

    def ask(state: State) -> dict[str, Any]:
        turn.append(1)
        keys = ["a", "b"] if len(turn) % 2 else ["b", "a"]
        found = {key: pause(f"{key}?", key=key) for key in keys}
        return {"found": {key: found[key] for key in "ab"}}

    graph = one(ask)
    run = graph.invoke({}).wait()
    assert [question.id for question in run.questions] == ["ask:1:a"]
    with pytest.raises(RunPaused) as caught:
        graph.resume(run.id, answers={"ask:1:a": 1})
    assert [question.id for question in caught.value.questions] == ["ask:1:b"]
    assert graph.resume(run.id, 2) == {"found": {"a": 1, "b": 2}}


@pytest.mark.parametrize("wrong", [{"key": 5}, {"key": b"a"}, {"key": "5"}, {"choices": 5}, {"choices": []}])
def test_a_wrong_key_and_wrong_choices_are_explained(wrong: dict[str, Any]) -> None:
    """P1: a key is a str that isn't a number; choices are a list."""
    with pytest.raises(
        ExecutionError, match=r"UsageError: (pause\(key=.+\): a key is a str|choices is a list)"
    ):
        one(lambda state: pause("Well?", **wrong)).execute({})


def test_the_same_question_at_the_next_visit_is_another_question() -> None:
    """P1: an answer belongs to its step and isn't used twice."""
    graph = StateGraph(name="loop").add_node(
        "ask", run=lambda state: {"log": [*state.get("log", []), pause("Next?")]}
    )
    graph.set_entry_point("ask").set_finish_point("ask")
    graph.add_edge("ask", "ask", lambda state: len(state["log"]) < 2).compile(store="memory://")
    run = graph.invoke({}).wait()
    first = run.questions[0].id
    with pytest.raises(RunPaused) as caught:
        graph.resume(run.id, "a")
    assert caught.value.questions[0].id != first
    with pytest.raises(AlreadyAnswered, match=f"no longer waits for an answer to question '{first}'"):
        graph.resume(run.id, answers={first: "again"})
    assert graph.resume(run.id, "b") == {"log": ["a", "b"]}


def test_an_answer_to_a_question_that_is_not_open_is_refused() -> None:
    """P1: the error lists those that are."""
    graph = one(asking())
    run = graph.invoke({}).wait()
    with pytest.raises(UsageError, match=r"has no open question 'x'; open: 'ask:1:1'"):
        graph.resume(run.id, answers={"x": 1})
    with pytest.raises(UsageError, match="give the answer once"):
        graph.resume(run.id, "a", response="b")
    assert graph.resume(run.id, "a") == {"answer": "a"}


def test_an_answer_that_can_not_be_stored_leaves_the_question_open() -> None:
    """P1, H4: answers are durable, so they are data."""
    graph = one(asking())
    run = graph.invoke({}).wait()
    with pytest.raises(UsageError, match="can't be stored"):
        graph.resume(run.id, print)
    assert [info.status for info in graph.runs()] == ["paused"]
    assert graph.resume(run.id, "a") == {"answer": "a"}


def test_an_answer_may_come_with_values_and_settings() -> None:
    """P1, F6: `update=` is always for the state, and `config=` for the settings."""

    def ask(state: State, config: dict[str, Any]) -> dict[str, Any]:
        return {"answer": pause("Ship it?"), "seen": (state.get("x"), config.get("y"))}

    graph = one(ask)
    run = graph.invoke({}).wait()
    final = graph.resume(run.id, {"a": "dict"}, update={"x": 1}, config={"y": 2})
    assert final == {"answer": {"a": "dict"}, "x": 1, "seen": (1, 2)}


def test_an_answer_survives_a_crash_of_the_node_that_got_it() -> None:
    """P1: it was durable before the node ran, so it isn't asked again."""
    calls: list[str] = []

    def ask(state: State) -> dict[str, Any]:
        answer = pause("Ship it?")
        calls.append(answer)
        if len(calls) == 1:
            raise Crash
        if len(calls) == 2:
            raise ValueError
        return {"answer": answer}

    graph = one(ask)
    run = graph.invoke({}).wait()
    with pytest.raises(Crash):
        graph.resume(run.id, "yes")
    with pytest.raises(ExecutionError):
        graph.resume(run.id)
    assert graph.resume(run.id) == {"answer": "yes"}
    assert calls == ["yes"] * 3


def test_a_question_isnt_a_failed_attempt() -> None:
    """P1, H8: it isn't tried again, and after the answer the node is still in its first attempt."""
    attempts: list[int] = []

    def ask(state: State, ctx: NodeContext) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        return {"answer": ctx.pause("Ship it?")}

    graph = one(ask, retry=Retry(attempts=2, backoff=0))
    run = graph.invoke({}).wait()
    assert graph.resume(run.id, 1) == {"answer": 1}
    assert attempts == [1, 1]


def test_what_a_node_altered_before_it_asked_is_taken_back() -> None:
    """P1, H4: it runs again from its first line, on the state as it was."""

    def ask(state: State) -> dict[str, Any]:
        state["items"].append("x")
        state["n"] = state.get("n", 0) + 1
        return {"answer": pause("Ship it?")}

    graph = one(ask)
    run = graph.invoke({"items": []})
    (event,) = run
    assert event["state"] == {"items": []}
    assert graph.resume(run.id, 1) == {"items": ["x"], "n": 1, "answer": 1}


def test_once_keeps_a_result_over_a_pause() -> None:
    """P1, H3: what was done before the question isn't done again."""
    calls: list[int] = []

    def ask(state: State) -> dict[str, Any]:
        price = once("price", lambda: calls.append(1) or 42)
        return {"price": price, "answer": pause(f"Pay {price}?")}

    graph = one(ask)
    run = graph.invoke({}).wait()
    assert graph.resume(run.id, "yes") == {"price": 42, "answer": "yes"}
    assert calls == [1]


def test_a_question_of_the_users_own_depth_and_except_gets_through() -> None:
    """P1: `pause` works at any depth of calls, and a node's own `except Exception` doesn't catch it."""

    def deep(level: int) -> Any:
        return pause("Deep?") if level == 0 else deep(level - 1)

    def ask(state: State) -> dict[str, Any]:
        try:
            return {"answer": deep(20)}
        except Exception:
            return {"answer": "caught"}

    graph = one(ask)
    run = graph.invoke({}).wait()
    assert graph.resume(run.id, "yes") == {"answer": "yes"}


def test_an_async_node_may_ask_and_be_answered_from_either_api() -> None:
    """P1, H7: also in a task that the node started."""

    async def ask(state: State) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"answer": pause("Ship it?")}

    graph = one(ask)

    async def main() -> tuple[Any, Any]:
        run = await graph.ainvoke({}).wait()
        assert (run.status, [question.prompt for question in run.questions]) == ("paused", ["Ship it?"])
        with pytest.raises(RunPaused):
            await graph.aresume(run.id)
        return run.id, await graph.aresume(run.id, "async")

    assert asyncio.run(main())[1] == {"answer": "async"}
    run = graph.invoke({}).wait()
    assert graph.resume(run.id, "sync") == {"answer": "sync"}


def test_interrupts_and_questions_are_distinguished() -> None:
    """P1, F4: at an interrupt a dict is an update, at a question it is the answer."""
    graph = one(asking()).compile(store="memory://", interrupt_before=["ask"], interrupt_after=["ask"])
    run = graph.invoke({})
    (event,) = run
    assert (event["type"], run.questions) == ("interrupt", [])
    with pytest.raises(RunPaused) as caught:
        graph.resume(run.id, {"x": 1})
    assert [question.prompt for question in caught.value.questions] == ["Ship it?"]
    with pytest.raises(RunPaused, match="interrupted after 'ask'") as caught:
        graph.resume(run.id, {"ok": True})
    assert caught.value.questions == []
    assert graph.resume(run.id, {"y": 2}) == {"x": 1, "answer": {"ok": True}, "y": 2}


def test_a_pause_needs_somewhere_to_keep_the_run() -> None:
    """P1: without a store the node fails with a clear error rather than lose the run."""
    with pytest.raises(
        ExecutionError, match=r"pause\(\) needs a store to keep the run in: compile\(store=…\)"
    ):
        one(asking(), None).execute({})


def test_a_node_may_ask_after_another_run_was_dropped_inside_of_it() -> None:
    """P1: Python closes a run that its caller has dropped at any time, which ends no call of another run."""
    dropped = [chain(lambda state: {"x": 1}, lambda state: {"x": 2}).compile().stream({})]
    next(dropped[0])

    def ask(state: State) -> dict[str, Any]:
        dropped.clear()
        return {"x": pause("go?")}

    graph = one(ask)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    assert graph.resume("r", 3) == {"x": 3}


def test_an_async_node_may_ask_after_it_has_closed_another_run() -> None:
    """P1: the same on an event loop."""

    async def main() -> State:
        other = chain(lambda state: {"x": 1}, lambda state: {"x": 2}).compile().astream({})
        await anext(other)

        async def ask(state: State) -> dict[str, Any]:
            await other.aclose()
            return {"x": pause("go?")}

        graph = one(ask)
        with pytest.raises(RunPaused):
            await graph.aexecute({}, run_id="r")
        return await graph.aresume("r", 3)

    assert asyncio.run(main()) == {"x": 3}


@pytest.mark.parametrize("call", [lambda: pause("?"), lambda: once("key", int)])
def test_outside_of_a_node_there_is_nothing_to_pause(call: Callable[[], Any]) -> None:
    """P1: a clear error."""
    with pytest.raises(UsageError, match="must be called inside a running node, in the process of the run"):
        call()


def test_choices_that_can_not_be_stored_fail_the_node() -> None:
    """P1, H4: a question is stored, so it is data; the run fails as for any other mistake of the node."""
    graph = chain(lambda state: {"answer": pause("Which?", choices=[print])}).compile(store="memory://")
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert [info.status for info in graph.runs()] == ["failed"]


def test_an_answer_that_the_pydantic_model_refuses_leaves_the_question_open() -> None:
    """P1: what a validator of the model says counts, too; another answer can be given."""
    import pydantic

    class Even(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def check(cls, value: int) -> int:
            if value % 2:
                raise ValueError("odd")
            return value

    graph = chain(lambda state: {"n": pause("Even?", schema=Even).number}).compile(store="memory://")
    run = graph.invoke({}).wait()
    with pytest.raises(Exception, match="odd"):
        graph.resume(run.id, {"number": 3})
    assert graph.resume(run.id, {"number": 4}) == {"n": 4}
