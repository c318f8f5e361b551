"""Nodes and tasks of files that start runs of other graphs, and join them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import limpet
from limpet import (
    END,
    START,
    ActionFailed,
    ChildFailed,
    DeclarationError,
    ExecutionError,
    MemoryStore,
    Runs,
    RunWaiting,
    StateGraph,
    UsageError,
    load,
    loads,
    supervise,
)
from limpet.cli.project import load_graphs
from limpet.yaml_files.loading import check, check_text

PAGE = """
name: page
state: {text: str, words: int}
nodes: [{name: count, set: {words: "{{ state.text | wordcount }}"}}]
config: {store: "sqlite:///never-opened.db"}
"""
FLOW = """
name: shout
tasks: [{name: loud, set: {text: "{{ inputs.text | upper }}"}}]
"""
BOOK = """
name: book
state: {texts: list, pages: {type: list, reducer: append}}
nodes:
  - {name: first, start: {graph: page.yaml, input: {text: "{{ state.texts[0] }}"}, tags: [first]}, output: pages}
  - {name: second, start: {graph: page.yaml, input: {text: "{{ state.texts[1] }}"}}, output: pages}
  - name: shout
    start: {graph: shout.yaml, input: {text: "{{ state.texts[1] }}"}, join: true}
    outputs: {loud: "{{ state.loud.text }}"}
  - {name: wait, join: "{{ state.pages }}", outputs: {counts: words, doubled: "{{ state.words * 2 }}"}}
"""
TEXTS = {"texts": ["kelp is long", "limpets stay"]}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes files, by name; returns the path of the first."""
    monkeypatch.chdir(tmp_path)

    def write(**texts: str) -> Path:
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return tmp_path / f"{next(iter(texts))}.yaml"

    return write


def test_a_file_starts_runs_of_others_and_joins_them(files: Callable[..., Path], tmp_path: Path) -> None:
    """Child runs: one at once, several later; they are runs of their own, in the store of their parent."""
    store = MemoryStore()
    book = load(files(book=BOOK, page=PAGE, shout=FLOW), store=store)
    ended = book.execute(TEXTS, run_id="b")
    assert (ended["counts"], ended["doubled"], ended["loud"]) == ([3, 2], [6, 4], "LIMPETS STAY")
    children = {info.run_id: info for info in Runs(store).list(parent="b")}
    assert sorted(info.graph for info in children.values()) == ["page", "page", "shout"]
    assert [children[page].tags for page in ended["pages"]] == [("first",), ()]
    assert not (tmp_path / "never-opened.db").exists()


def test_children_are_joined_in_an_async_run(files: Callable[..., Path]) -> None:
    """Child runs"""
    book = load(files(book=BOOK, page=PAGE, shout=FLOW), store=MemoryStore())
    assert asyncio.run(book.aexecute(TEXTS))["counts"] == [3, 2]


def test_tasks_start_and_join_children(files: Callable[..., Path]) -> None:
    """Child runs, H13: a task that joins depends on the one that started."""
    flow = load(
        files(
            flow="""
tasks:
  - {name: begin, start: {graph: page.yaml, input: {text: "{{ inputs.text }}"}}}
  - {name: page, join: "{{ results.begin }}"}
  - {name: total, set: {words: "{{ results.page.words + results.shout.loud.text | length }}"}}
  - {name: shout, uses: start, with: {graph: shout.yaml, input: "{{ inputs }}", join: true}}
""",
            page=PAGE,
            shout=FLOW,
        ),
        store=MemoryStore(),
    )
    results = flow.execute({"text": "kelp is long"}).results
    assert results["page"] == {"text": "kelp is long", "words": 3}
    assert results["total"] == {"words": 15}


def test_the_branches_of_a_map_and_graphs_inside_start_children(files: Callable[..., Path]) -> None:
    """Child runs: one for each item, also from a graph in another folder, which names it by its own place."""
    path = files(
        book="""
nodes:
  - name: plan
  - name: read
    graph: inner/reader.yaml
    inputs: {item: item}
    outputs: {words: words}
  - {name: bind, set: {words: "{{ parallel_results | map(attribute='words') | sum }}"}, goto: END}
edges: [{from: plan, each: read, over: texts, fan_in: bind}]
""",
        page=PAGE,
    )
    (path.parent / "inner").mkdir()
    (path.parent / "inner" / "reader.yaml").write_text(
        """
nodes:
  - {name: read, start: {graph: ../page.yaml, input: {text: "{{ state.item }}"}, join: true}, outputs: {words: words}}
""",
        encoding="utf-8",
    )
    store = MemoryStore()
    assert load(path, store=store).execute(TEXTS, run_id="b")["words"] == 5
    assert len(list(Runs(store).list(parent="b"))) == 2


def test_a_graph_may_start_runs_of_itself(files: Callable[..., Path]) -> None:
    """Child runs: each is a run of its own, so a file may start its own graph, or one that starts it."""
    down = load(
        files(
            down="""
state: {n: int, depth: int}
nodes:
  - {name: begin, goto: [{to: end, condition: state.n == 0}, deeper]}
  - name: deeper
    start: {graph: between.yaml, input: {n: "{{ state.n - 1 }}"}, join: true}
    outputs: {depth: "{{ state.depth + 1 }}"}
    goto: END
  - {name: end, set: {depth: 0}, goto: END}
""",
            between="""
nodes: [{name: again, start: {graph: down.yaml, input: {n: "{{ state.n }}"}, join: true}, outputs: {depth: depth}}]
""",
        ),
        store=MemoryStore(),
    )
    assert down.execute({"n": 3})["depth"] == 3


def test_a_graph_in_a_module_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child runs: `module:graph`; a node without join doesn't wait, and needs nothing but the graph."""
    module = ModuleType("pages")
    page = StateGraph({"text": str}, name="page").add_node("read", run=lambda state: {"text": "read"})
    module.page = page.add_edge(START, "read").add_edge("read", END)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pages", module)
    store = MemoryStore()
    book = loads("nodes: [{name: a, start: 'pages:page', output: child}]", store=store)
    child = book.execute({})["child"]
    assert Runs(store).get(child).shown_status == "queued"
    with supervise(store, [book]):  # it knows the graphs of children, too
        assert Runs(store).get(child).result(timeout=60) == {"text": "read"}


def test_one_worker_for_a_file_executes_its_children_and_explicit_graphs_come_first(
    files: Callable[..., Path],
) -> None:
    """Child runs: whether a graph is known through another or was given."""
    path = files(book=BOOK, page=PAGE, shout=FLOW)
    store = MemoryStore()
    book = load(path, store=store)
    run = book.start(TEXTS)
    with supervise(store, [book, load("page.yaml", store=store), load("shout.yaml", store=store)]):
        assert run.result(timeout=60)["counts"] == [3, 2]
    names = [graph.name for graph in load_graphs([str(path), "page.yaml"])]
    assert names == ["book", "page", "shout"]


def test_two_graphs_of_one_name_behind_several_files_are_refused(files: Callable[..., Path]) -> None:
    """Child runs: one file may be behind several; which of two graphs a run belongs to must be clear."""
    files(
        a="nodes: [{name: a, start: page.yaml}]",
        b="nodes: [{name: a, start: page.yaml}]",
        c="nodes: [{name: a, start: other.yaml}]",
        page=PAGE,
        other="name: page\nnodes: [{name: a}]",
    )
    assert [graph.name for graph in load_graphs(["a.yaml", "b.yaml"])] == ["a", "b", "page"]
    for targets in (["a.yaml", "c.yaml"], ["a.yaml", "other.yaml"]):
        with pytest.raises(UsageError, match="two graphs called 'page'"):
            load_graphs(targets)


def test_templates_for_tasks_start_children(
    files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Child runs: a task that a run adds starts one with its arguments."""
    module = ModuleType("adding")
    module.add = lambda ctx: ctx.add_task("one", run="read", arguments={"text": "a b"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "adding", module)
    flow = load(
        files(
            flow="""
tasks: [{name: add, run: "adding:add"}]
templates:
  - {name: read, start: {graph: page.yaml, input: {text: "{{ arguments.text }}"}, join: true}}
""",
            page=PAGE,
        ),
        store=MemoryStore(),
    )
    assert flow.execute({}).results["one"]["words"] == 2


def test_a_child_that_failed_leads_along_an_error_edge(files: Callable[..., Path]) -> None:
    """Child runs, error edges"""
    book = load(
        files(
            book="""
nodes:
  - {name: read, start: {graph: bad.yaml, join: true}, output: x, goto: [END, {to: tell, on: "limpet:ChildFailed"}]}
  - {name: tell, set: {why: "{{ error.message }}"}, goto: END}
""",
            bad="nodes: [{name: a, uses: shell, with: {script: exit 3}}]",
        ),
        store=MemoryStore(),
    )
    assert "failed: ActionFailed: shell" in book.execute({})["why"]


def test_a_child_has_the_deadline_of_its_file_or_an_earlier_one(files: Callable[..., Path]) -> None:
    """Child runs, run-wide deadlines"""
    store = MemoryStore()
    path = files(
        book="""
nodes:
  - {name: a, start: late.yaml, output: a}
  - {name: b, start: {graph: late.yaml, deadline: "{{ state.until }}"}, output: b}
""",
        late="nodes: [{name: a}]\nconfig: {deadline: 2h}",
    )
    ended = load(path, store=store).execute({"until": "30m"})
    deadlines = [Runs(store).get(ended[key]).info for key in ("a", "b")]
    assert [round(info.deadline - info.created) for info in deadlines if info.deadline] == [7200, 1800]
    ended = load(path, store=store).execute({"until": "30m"}, deadline="10m")
    info = Runs(store).get(ended["a"]).info
    assert info.deadline is not None
    assert round(info.deadline - info.created) <= 600


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        ("unknown", "was deleted, or never existed"),
        ("", "child must be the id of a run"),
        (None, "child must be the id of a run"),
        ({"graph": "x"}, "child must be the id of a run"),
        ([["x"]], "must be the id of a run"),
        (["unknown"], "was deleted, or never existed"),
    ],
)
def test_ids_that_lead_to_no_child_fail_the_node(child: Any, reason: str) -> None:
    """Child runs: ids are data, and so may be anything."""
    graph = loads("nodes: [{name: a, join: '{{ state.child }}'}]", store=MemoryStore())
    with pytest.raises(ExecutionError) as failed:
        graph.execute({"child": child})
    assert isinstance(failed.value.cause, (ActionFailed, ChildFailed))
    assert reason in str(failed.value.cause)


def test_joining_no_child_gives_an_empty_list() -> None:
    """Child runs"""
    graph = loads("nodes: [{name: a, join: '{{ state.c }}', outputs: {words: words}}]", store=MemoryStore())
    assert graph.execute({"c": []})["words"] == []


def test_a_run_that_waits_for_itself_or_without_a_store_fails(files: Callable[..., Path]) -> None:
    """Child runs"""
    with pytest.raises(ExecutionError, match="can't wait for itself"):
        loads("nodes: [{name: a, join: '{{ run_id }}'}]", store=MemoryStore()).execute({})
    with pytest.raises(ExecutionError, match="needs a store"):
        load(files(a="nodes: [{name: a, start: page.yaml}]", page=PAGE)).execute({})


def test_what_a_child_starts_with_is_a_mapping(files: Callable[..., Path]) -> None:
    """Child runs, F13: what a template gives is checked when the node runs."""
    graph = load(
        files(a="nodes: [{name: a, start: {graph: page.yaml, input: '{{ state.x }}'}}]", page=PAGE),
        store=MemoryStore(),
    )
    for wrong in ([1], "text", 5):
        with pytest.raises(ExecutionError) as failed:
            graph.execute({"x": wrong})
        assert "input must be a mapping" in str(failed.value.cause)


def test_a_child_that_asks_leaves_its_parent_waiting(files: Callable[..., Path]) -> None:
    """Child runs: the caller learns which; when it is answered, the parent is resumed."""
    store = MemoryStore()
    book = load(
        files(
            book="nodes: [{name: a, start: {graph: ask.yaml, join: true}, outputs: {said: answer}}]",
            ask="nodes: [{name: a, prompt: Who?, output: answer}]",
        ),
        store=store,
    )
    with pytest.raises(RunWaiting):
        book.execute({}, run_id="b")
    (child,) = Runs(store).list(parent="b")
    Runs(store).answer(child.run_id, "Ann")
    assert book.resume("b")["said"] == "Ann"


@pytest.mark.parametrize(
    ("node", "mistake"),
    [
        ("start: none.yaml", "1:26: there is no file"),
        (r'start: "a\0.yaml"', "can't be read: embedded null byte"),
        ("start: {input: {}}", "start needs the key 'graph'"),
        ("start: page", "1:26: start must be the path of a .yaml file, or a graph as module:graph"),
        ("start: '{{ state.graph }}'", "1:26: start can't be a template: the file names the code"),
        ("start: {graph: '{{ state.graph }}.yaml'}", "1:34: graph can't be a template"),
        ("start: {graph: page.yaml, inputs: {}}", "did you mean 'input'?"),
        ("start: {graph: page.yaml, input: 5}", "1:52: input must be a mapping of names to values"),
        ("start: {graph: page.yaml, deadline: never}", "deadline must be a number of seconds"),
        ("start: page.yaml, outputs: {a: b}", "1:37: node 'a': outputs are those of a child that has ended"),
        ("start: {graph: page.yaml, join: false}, outputs: {a: b}", "add join: true"),
        ("start: {graph: page.yaml, join: true}, outputs: {a: b}, output: c", "only one of them is allowed"),
        ("start: page.yaml, inputs: {a: b}", "'inputs' needs 'graph'"),
        ("join: 5", "1:25: join must be the id of a child run"),
        ("join: {}", "join needs the key 'child'"),
        ("join: x, prompt: y", "only one of them is allowed"),
        ("join: x, outputs: {a: '{{ stat.b }}'}", "uses the unknown variable 'stat'"),
        ("start: bad.yaml", "bad.yaml:1:19: node 'b' has no key 'uss'; did you mean 'uses'?"),
        ("start: twin.yaml", "there are two graphs called 'a'"),
        ("graph: a.yaml", "a.yaml contains itself"),
    ],
)
def test_mistakes_have_their_places(files: Callable[..., Path], node: str, mistake: str) -> None:
    """F13: in a file that is only looked at, too."""
    path = files(
        a=f"nodes: [{{name: a, {node}}}]",
        page=PAGE,
        bad="nodes: [{name: b, uss: x}]",
        twin="name: a\nnodes: [{name: b}]",
    )
    for read in (load, check):
        with pytest.raises(DeclarationError) as refused:
            read(path)
        assert any(mistake in each for each in refused.value.mistakes), refused.value.mistakes


def test_a_reference_that_leads_to_no_graph_is_a_mistake_and_checking_imports_nothing() -> None:
    """F13: a file that is only looked at imports no module."""
    text = "nodes: [{name: a, start: '%s'}]"
    for reference, reason in (
        ("json:dumps", "'json:dumps' is function, not a StateGraph or a Workflow"),
        ("limpet:StateGraph", "not a StateGraph or a Workflow"),
        ("no_such_module:graph", "there is no module 'no_such_module'"),
        ("json:graph", "there is no 'graph' in json"),
    ):
        with pytest.raises(DeclarationError, match="1:26") as refused:
            loads(text % reference)
        assert reason in str(refused.value)
        assert check_text(text % reference).name == "graph"


KILLED = """
name: book
state: {texts: list, pages: {type: list, reducer: append}}
nodes:
  - {name: first, start: {graph: page.yaml, input: {text: "{{ state.texts[0] }}"}}, output: pages}
  - {name: second, start: {graph: page.yaml, input: {text: "{{ state.texts[1] }}"}}, output: pages}
  - {name: crash, uses: shell, with: {script: "test -e crashed || { touch crashed; kill -9 $PPID; }"}}
  - {name: wait, join: "{{ state.pages }}", outputs: {counts: words}}
config: {store: "sqlite:///books.db"}
"""


def test_the_process_after_a_killed_one_joins_the_children_by_their_ids(files: Callable[..., Path]) -> None:
    """Child runs: it has never started them, and finds their graph by its name."""
    place = files(book=KILLED, page=PAGE).parent
    environment = {**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "limpet", *words],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
        )

    begun = command("run", "book.yaml", "--id", "b", "--input", '{"texts": ["a b", "c"]}')
    assert begun.returncode == -signal.SIGKILL
    ended = command("resume", "b", "--graph", "book.yaml")
    assert ended.returncode == 0, ended.stderr
    runs = Runs(f"sqlite:///{place}/books.db")
    assert runs.get("b").state["counts"] == [2, 1]
    children = list(runs.list(parent="b"))
    assert [info.status for info in children] == ["completed", "completed"]
    shown = command("runs", "history", children[0].run_id, "--graph", "book.yaml")
    assert "count" in shown.stdout, shown.stderr


def test_a_run_that_is_resumed_from_a_checkpoint_file_joins_what_it_started(
    files: Callable[..., Path],
) -> None:
    """Child runs, G3: the ids are in the saved state."""
    path = files(
        book="""
nodes:
  - {name: begin, start: {graph: page.yaml, input: {text: kelp is long}}, output: page}
  - {name: wait, interrupt: before, join: "{{ state.page }}", outputs: {words: words}}
config: {store: "sqlite:///books.db", checkpoint_dir: stops}
""",
        page=PAGE,
    )
    (stop,) = load(path).invoke({})
    assert load(path, checkpoint=stop["checkpoint_path"]).execute({})["words"] == 3


def test_a_worker_that_is_given_one_file_executes_the_runs_that_it_starts(
    files: Callable[..., Path],
) -> None:
    """Child runs: also a child that another process has started, and whose parent is done with it."""
    place = files(book=BOOK + 'config: {store: "sqlite:///books.db"}', page=PAGE, shout=FLOW).parent
    left = loads("nodes: [{name: a, start: page.yaml, output: c}]", store=f"sqlite:///{place}/books.db")
    child = left.execute({})["c"]
    load(place / "book.yaml").start(TEXTS, run_id="b")
    ended = subprocess.run(
        [sys.executable, "-m", "limpet", "worker", "book.yaml", "--once"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    runs = Runs(f"sqlite:///{place}/books.db")
    assert runs.get("b").state["counts"] == [3, 2]
    assert runs.get(child).status == "failed"  # it has had no text


def test_a_child_is_in_the_queue_that_its_start_or_its_file_names(files: Callable[..., Path]) -> None:
    """H18: else in that of its parent."""
    path = files(
        graph="""
nodes:
  - {name: a, start: {graph: heavy.yaml}, output: a}
  - {name: b, start: {graph: heavy.yaml, queue: "{{ state.queue }}"}, output: b}
  - {name: c, start: plain.yaml, output: c}
config: {queue: parents}
""",
        heavy="nodes: [{name: a}]\nconfig: {queue: gpu}",
        plain="nodes: [{name: a}]",
    )
    store = MemoryStore()
    ended = load(path, store=store).execute({"queue": "night"}, run_id="r")
    runs = Runs(store)
    assert [runs.get(each).info.queue for each in ("r", ended["a"], ended["b"], ended["c"])] == [
        "parents",
        "gpu",
        "night",
        "parents",
    ]


def test_a_file_with_the_name_of_a_queue_that_cannot_be_one_is_refused(files: Callable[..., Path]) -> None:
    """H18: when it is loaded."""
    with pytest.raises(DeclarationError, match="the name of a queue must be"):
        load(files(graph="nodes: [{name: a}]\nconfig: {queue: 'gpu,cpu'}"))
