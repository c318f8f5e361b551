"""The tools of every server: looking at graphs and runs, and changing them; and those of workflows-mcp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from limpet import MemoryStore, RunNotFound, Runs, StateGraph, UsageError, supervise
from limpet.integrations.mcp import server
from support.mcp_clients import Person, call, data, problem, says, serving, talk
from support.mcp_graphs import article, asking, one, report
from support.waiting import until

YAML = """
name: greeting
tasks:
  - name: greet
    set: {text: "Hello, {{ inputs.name }}!"}
"""


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """The store of the server, which has a run of a graph that isn't served."""
    store = MemoryStore()
    other = one("other", lambda state: {"out": "hidden"})
    with supervise(store, [other]):
        other.compile(store=store).start({}, run_id="hidden").result(60)
    return store


@pytest.fixture(scope="module")
def shop(store: MemoryStore) -> Iterator[Server[Any]]:
    """A server with all tools."""
    with serving(
        [article(), asking("sure", schema=bool), report()], store, allow_inline=True, workflow_tools=True
    ) as made:
        yield made


def names(target: Server[Any]) -> set[str]:
    """The names of its tools."""
    return {tool.name for tool in talk(target, Client.list_tools).tools}


def started(shop: Server[Any], run_id: str, **given: Any) -> dict[str, Any]:
    """A run of the article, up to its question."""
    topic = {"input": {"topic": "kelp"}}
    found: dict[str, Any] = data(
        call(shop, "run_graph", {"graph": "article", "run_id": run_id, **topic, **given})
    )
    return found


def test_graphs_are_listed_and_described(shop: Server[Any]) -> None:
    """P13."""
    listed = data(call(shop, "list_graphs"))["graphs"]
    assert [(each["name"], each["kind"]) for each in listed[:3]] == [
        ("article", "graph"),
        ("sure", "graph"),
        ("report", "workflow"),
    ]
    described = data(call(shop, "describe_graph", {"graph": "article"}))
    assert described["nodes"] == ["draft", "review"]
    assert described["input_schema"]["properties"]["topic"]["type"] == "string"


def test_a_run_is_looked_at_from_all_sides(shop: Server[Any]) -> None:
    """P13: its steps, its state at any of them, and what it is."""
    started(shop, "seen", input={"topic": "kelp"}, tags=["blue"])
    history = data(call(shop, "get_history", {"run_id": "seen", "limit": 1}))
    assert [(each["step"], each["node"]) for each in history["steps"]] == [(0, None)]
    history = data(call(shop, "get_history", {"run_id": "seen", "after": history["next"]}))
    assert [(each["step"], each["node"]) for each in history["steps"]] == [(1, "draft")]
    assert data(call(shop, "get_state", {"run_id": "seen", "step": 0}))["values"] == {"topic": "kelp"}
    assert data(call(shop, "get_state", {"run_id": "seen"}))["values"]["text"] == "About kelp."
    run = data(call(shop, "get_run", {"run_id": "seen"}))
    assert (run["status"], run["node"], run["tags"]) == ("paused", "review", ["blue"])
    listed = data(call(shop, "list_runs", {"tag": ["blue"], "status": ["paused"]}))["runs"]
    assert [each["run_id"] for each in listed] == ["seen"]


def test_lists_come_in_pages(shop: Server[Any]) -> None:
    """P13: over all graphs, newest first."""
    for number in range(3):
        started(shop, f"page-{number}", tags=["paged"])
    data(call(shop, "run_graph", {"graph": "sure", "run_id": "page-3", "tags": ["paged"]}))
    found: list[str] = []
    page = data(call(shop, "list_runs", {"tag": ["paged"], "limit": 3}))
    found += [each["run_id"] for each in page["runs"]]
    page = data(call(shop, "list_runs", {"tag": ["paged"], "limit": 3, "after": page["next"]}))
    found += [each["run_id"] for each in page["runs"]]
    assert page["next"] is None
    assert found == ["page-3", "page-2", "page-1", "page-0"]


def test_runs_are_cancelled_retried_and_forked(shop: Server[Any]) -> None:
    """P13: the fork asks for itself."""
    started(shop, "c", input={"topic": "kelp"})
    assert data(call(shop, "cancel_run", {"run_id": "c"}))["status"] == "cancelled"
    assert data(call(shop, "retry_run", {"run_id": "c"}))["questions"]
    forked = {"run_id": "c", "step": 0, "update": {"topic": "moss"}, "new_run_id": "d"}
    result = data(call(shop, "fork_run", forked, person=Person(says("yes"))))["result"]
    assert result == {"topic": "moss", "text": "About moss.", "verdict": "yes"}
    later = data(call(shop, "fork_run", {"run_id": "c", "begin": False}))
    assert later["next"].startswith("answer_run") or later["next"].startswith("retry_run")


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        ("run_graph", {"graph": "artcle"}, "there is no graph 'artcle' here; did you mean 'article'?"),
        ("run_graph", {"input": {}}, "run_graph needs the argument 'graph'"),
        (
            "run_graph",
            {"graph": "article", "inputs": {}},
            "takes no argument 'inputs'; did you mean 'input'?",
        ),
        ("run_graph", {"graph": "article", "input": []}, "the argument 'input' is [], not of type object"),
        (
            "run_graph",
            {"graph": "article", "input": {"topic": 5}},
            "the input 'topic' is 5, not of type string",
        ),
        ("execute_workflow", {"workflow": "article", "inputs": {"topic": 5}}, "the input 'topic' is 5"),
        ("run_graph", {"graph": "article", "run_id": "a\0b"}, "a character that isn't valid"),
        ("article", {"run_id": 5}, "the argument 'run_id' is 5, not of type string"),
        ("get_run", {"run_id": "nowhere"}, "no run 'nowhere' in this store"),
        ("get_state", {"run_id": "wrong", "key": "txt"}, "the state has no key 'txt'"),
        ("get_history", {"run_id": "wrong", "limit": 0}, "limit must be from 1 to 200"),
        ("list_runs", {"since": "yesterdayish"}, "since"),
        ("answer_run", {"run_id": "wrong", "answers": {"no:1:1": 1}}, "no longer waits for an answer"),
        ("send_message", {"run_id": "wrong", "name": "n"}, "needs the argument 'value'"),
    ],
)
def test_wrong_inputs_are_errors_that_change_nothing(
    shop: Server[Any], tool: str, given: dict[str, Any], said: str
) -> None:
    """P13: each says what is wrong."""
    started(shop, "wrong")
    runs = data(call(shop, "list_runs"))["runs"]
    assert said in problem(call(shop, tool, given))["error"]["message"]
    assert data(call(shop, "get_run", {"run_id": "wrong"}))["status"] == "paused"
    assert data(call(shop, "list_runs"))["runs"] == runs


def test_what_is_nested_too_deeply_is_refused(shop: Server[Any]) -> None:
    """P13: before anything is done with it."""
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    refused = problem(call(shop, "run_graph", {"graph": "article", "input": deep}))
    assert "nested more than 150 levels deep" in refused["error"]["message"]


def test_an_unknown_tool_is_an_error_of_the_protocol(shop: Server[Any]) -> None:
    """P13."""
    with pytest.raises(MCPError, match="there is no tool 'artcle'; did you mean 'article'"):
        call(shop, "artcle")


def test_runs_of_other_graphs_are_not_there(shop: Server[Any], store: MemoryStore) -> None:
    """P12, P13: one rule for every call."""
    assert Runs(store).get("hidden").status == "completed"
    tools = {tool.name: tool for tool in talk(shop, Client.list_tools).tools}
    more = {"name": "n", "value": 1, "response": 1}
    for name, tool in tools.items():
        properties = tool.input_schema["properties"]
        wanted = [
            each for each in ("run_id", "checkpoint_id") if each in tool.input_schema.get("required", ())
        ]
        if wanted:
            given = {wanted[0]: "hidden", **{key: each for key, each in more.items() if key in properties}}
            found = problem(call(shop, name, given))["error"]
            assert found["code"] == "run-not-found", name
            # Nothing distinguishes it from one that isn't in the store at all.
            absent = problem(call(shop, name, given | {wanted[0]: "absent"}))["error"]
            assert found["message"].replace("hidden", "absent") == absent["message"], name
    for name, given in (("article", {"topic": "x"}), ("run_graph", {"graph": "article"})):
        taken = problem(call(shop, name, given | {"run_id": "hidden"}))["error"]
        assert taken["code"] == "run-exists"
        assert "other" not in taken["message"].replace("another", "")
    assert "hidden" not in {each["run_id"] for each in data(call(shop, "list_runs"))["runs"]}
    assert problem(call(shop, "list_runs", {"graph": "other"}))["error"]["code"] == "graph-not-found"
    assert data(call(shop, "cleanup_checkpoints", {"max_age_hours": 0}))["deleted"] >= 0
    assert Runs(store).get("hidden").status == "completed"


def test_a_read_only_server_has_only_tools_that_look(store: MemoryStore) -> None:
    """P13: the others aren't there."""
    looking = server(store, [article()], read_only=True, workflow_tools=True)
    found = names(looking)
    assert {"list_runs", "get_run", "get_state", "list_checkpoints"} <= found
    assert not found & {
        "article",
        "run_graph",
        "answer_run",
        "cancel_run",
        "delete_checkpoint",
        "resume_workflow",
    }
    with pytest.raises(MCPError, match="there is no tool"):
        call(looking, "article", {"topic": "kelp"})


def test_what_does_not_go_together_is_refused() -> None:
    """P13: when the server is made."""
    store = MemoryStore()
    same = [one("a b", lambda state: {}), one("a_b", lambda state: {}), one("a-b", lambda state: {})]
    with pytest.raises(UsageError, match="rename the graph"):
        server(store, [*same, one("a+b", lambda state: {}), one("run_a_b", lambda state: {})])
    with pytest.raises(UsageError, match="read_only"):
        server(store, [], read_only=True, allow_inline=True)
    with pytest.raises(UsageError, match="supervisor"):
        server(store, [], allow_inline=True)
    taken = server(store, [one("get_run", lambda state: {})])
    assert "run_get_run" in names(taken)


def test_a_state_may_have_a_key_called_run_id() -> None:
    """P13: then the id of the run has another name."""
    graph = one("odd", lambda state: {"out": state["run_id"]}, {"run_id": str, "out": str})
    with serving([graph]) as shop:
        done = data(call(shop, "odd", {"run_id": "mine\0", "limpet_run_id": "r"}))
    assert (done["run_id"], done["result"]["out"]) == ("r", "mine\0")


def test_what_can_not_be_sent_as_it_is_is_sent_all_the_same() -> None:
    """P13: half a pair of surrogates, numbers that aren't finite, and large ones."""
    values = {"half": "\ud800", "nan": float("nan"), "large": 10**30, "bytes": b"\0"}
    with serving([one("odd", lambda state: {"out": values})]) as shop:
        for mode in ("auto", "legacy"):
            out = data(call(shop, "odd", mode=mode))["result"]["out"]
            assert out == {"half": "?", "nan": "nan", "large": 10**30, "bytes": "AA=="}


def test_an_unexpected_error_says_nothing_of_itself(
    shop: Server[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P13: the log has it."""

    def explode(*_: Any) -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr("limpet.integrations.mcp.tools.general_tools._short_facts", explode)
    failed = problem(call(shop, "list_graphs"))
    assert failed["error"]["code"] == "internal"
    assert "the inside" not in str(failed)
    assert "the inside" in caplog.text


def test_a_workflow_is_given_as_yaml_where_that_is_allowed(shop: Server[Any], tmp_path: Path) -> None:
    """P13: the same text again is the same graph; mistakes come with their place."""
    given = {"yaml": YAML, "input": {"name": "Ann"}, "run_id": "inline"}
    done = data(call(shop, "run_inline", given))
    assert done["result"] == {"greet": {"text": "Hello, Ann!"}}
    assert done["graph"].startswith("greeting@")
    assert data(call(shop, "run_inline", given)) == done
    assert data(call(shop, "get_run", {"run_id": "inline"}))["status"] == "completed"
    other = {"workflow_yaml": YAML.replace("Hello", "Bye"), "inputs": {"name": "Ann"}}
    bye = data(call(shop, "execute_inline_workflow", other))["result"]
    assert bye == {"greet": {"text": "Bye, Ann!"}}
    for tool, key in (("run_inline", "yaml"), ("execute_inline_workflow", "workflow_yaml")):
        assert problem(call(shop, tool, {key: ""}))["error"]["code"] == "declaration"
    for tool in ("execute_workflow", "get_workflow_info"):
        message = problem(call(shop, tool))["error"]["message"]
        assert message == f"{tool} needs the argument 'workflow': list_workflows lists them"
    wrong = problem(call(shop, "run_inline", {"yaml": "name: x\ntasks: 5\n"}))["error"]
    assert wrong["code"] == "declaration"
    assert "yaml:2:" in wrong["message"]
    with serving([article()]) as careful:
        assert "run_inline" not in names(careful)


def test_the_names_of_workflows_mcp_are_known(shop: Server[Any]) -> None:
    """P13: run, inspect, pause, resume, list and delete checkpoints."""
    assert "report" in {each["name"] for each in data(call(shop, "list_workflows"))["workflows"]}
    info = data(call(shop, "get_workflow_info", {"workflow": "report"}))
    assert info["waves"] == [["fetch"], ["count"], ["sign"]]
    given = {"workflow": "report", "inputs": {"topic": "kelp"}, "run_id": "w"}
    paused = data(call(shop, "execute_workflow", given))
    assert paused["status"] == "paused"
    (listed,) = data(call(shop, "list_checkpoints", {"workflow_name": "report"}))["checkpoints"]
    checkpoint = listed["checkpoint_id"]
    assert checkpoint.startswith("w@")
    info = data(call(shop, "get_checkpoint_info", {"checkpoint_id": checkpoint}))
    assert info["questions"][0]["prompt"] == "2 words. Sign?"
    refused = problem(call(shop, "resume_workflow", {"checkpoint_id": checkpoint}))
    assert "give a response" in refused["error"]["message"]
    resumed = {"checkpoint_id": checkpoint, "llm_response": "true"}
    assert data(call(shop, "resume_workflow", resumed))["result"]["sign"] is True
    assert data(call(shop, "delete_checkpoint", {"checkpoint_id": "w"})) == {"deleted": "w"}
    assert problem(call(shop, "get_run", {"run_id": "w"}))["error"]["code"] == RunNotFound.code


def test_old_checkpoints_are_cleaned_up(store: MemoryStore) -> None:
    """P13, P7: paused runs only if they are named."""
    own = MemoryStore()
    with serving([article()], own, workflow_tools=True) as shop:
        data(call(shop, "article", {"topic": "kelp", "run_id": "ended"}, person=Person(says("yes"))))
        data(call(shop, "article", {"topic": "kelp", "run_id": "asks"}))
        assert data(call(shop, "cleanup_checkpoints"))["deleted"] == 0
        assert data(call(shop, "cleanup_checkpoints", {"max_age_hours": 0}))["deleted"] == 1
        every = {"max_age_hours": 0, "include_paused": True}
        until(lambda: data(call(shop, "cleanup_checkpoints", every))["deleted"] == 1, "the cleanup")


def test_only_stores_that_keep_what_is_needed_are_taken() -> None:
    """P13: a graph without its own store runs on that of the server."""
    graph = StateGraph({"out": int}, name="plain")
    graph.add_node("only", lambda state: {"out": 1})
    graph.set_entry_point("only")
    graph.set_finish_point("only")
    with serving([graph]) as shop:
        assert data(call(shop, "plain"))["result"] == {"out": 1}
