"""What notebooks show: pieces of HTML by themselves, and a real notebook, executed by nbclient in a real kernel."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, ClassVar
from xml.etree import ElementTree

import numpy
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from limpet import (
    END,
    START,
    MemoryStore,
    RunPaused,
    Runs,
    State,
    StateGraph,
    Workflow,
    pause,
    register_type,
    secret,
)
from limpet.drawing.notebook import VALUES_VARIABLE, run_as_html
from limpet.drawing.shown_values import MAX_TEXT, secrets_in, shown_value
from limpet.engine.views import run_view
from limpet.errors import StoreUnavailable, UsageError
from limpet.integrations.notebook import live
from limpet.journal.encoding.user_types import TYPES
from limpet.testing.faults import FaultyStore
from support.pictures import article, broken, research, weather
from support.waiting import SOON

HOSTILE = '<script>alert("1")</script>&<img src=x onerror=alert(1)>\u202e\x1b[31m\ud800'
TOKEN = "sk-7f3a9c-tropical"


def one_node(run: Any, schema: Any = None, **settings: Any) -> StateGraph:
    graph = StateGraph(schema, name="single")
    graph.add_node("work", run=run).add_edge(START, "work").add_edge("work", END)
    return graph.compile(**settings)


def shown(thing: Any) -> str:
    """What a notebook shows of something: well-formed, and with nothing active in it."""
    html = thing._repr_html_()
    assert html is not None
    ElementTree.fromstring(html)
    assert not re.search(r"<script|<img|<iframe|<a |\bhref|url\(|@import|\bid=", html)
    assert html.replace('xmlns="http://www.w3.org/2000/svg"', "").count("http") == 0
    html.encode()  # no half of a surrogate pair
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", html)
    return html.partition("</style>")[2]


def cells(html: str, key: str) -> list[str]:
    """The texts of the row of a key."""
    for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL):
        found = [
            "".join(ElementTree.fromstring(cell).itertext())
            for cell in re.findall(r"<td>.*?</td>", row, re.DOTALL)
        ]
        if found and found[0] == key:
            return found
    raise AssertionError(f"there is no row {key!r}")


def test_hostile_values_are_escaped_and_long_ones_are_shortened_with_their_size() -> None:
    """H20: neither a key, a value, a prompt nor an id gets through as HTML."""

    def work(state: State) -> dict[str, Any]:
        return {
            HOSTILE: HOSTILE,
            "text": "line one\nline two\n" + "x" * 100_000,
            "list": list(range(100_000)),
            "dict": {HOSTILE: [HOSTILE] * 3, "deep": [[[[[[[[["deep"]]]]]]]]]},
            "bytes": b"\x00\xff" * 5_000,
            "number": 10**5_000,
            "array": numpy.zeros((300, 40)),
            "none": None,
            "asked": pause(HOSTILE, choices=[HOSTILE, "no"]),
        }

    graph = one_node(work, store=MemoryStore())
    run = graph.invoke({}, run_id="<b>1</b>")
    run.wait()
    html = shown(run)
    assert "&lt;b&gt;1&lt;/b&gt;" in html
    assert "graph.resume(&#x27;&lt;b&gt;1&lt;/b&gt;&#x27;, &#x27;&lt;script&gt;" in html
    with suppress(RunPaused):
        graph.resume("<b>1</b>", "no")
    html = shown(graph.get("<b>1</b>").state)
    assert "&lt;script&gt;" in html
    assert cells(html, "text")[1:] == ["str", f"line one\nline two\n{'x' * 282}… (100,018 characters)"]
    kind, text = cells(html, "list")[1:]
    assert kind == "list"
    assert text.startswith("[0, 1, 2, 3")
    assert text.endswith("… (100,000 items)")
    assert cells(html, "number")[1:] == ["int", "<a large number>… (16,610 bits)"]
    assert cells(html, "array")[2].endswith("… (300 × 40)")
    assert cells(html, "bytes")[2].endswith("… (10,000 bytes)")
    assert cells(html, "none")[1:] == ["None", "None"]
    assert len(html) < 12_000


def test_a_run_is_shown_without_walking_through_large_values() -> None:
    """H20: what is looked at is bounded by what is shown, not by what the state holds."""

    class Counting(list[Any]):
        looked_at = 0

        def __iter__(self) -> Any:
            for each in range(10**9):
                Counting.looked_at += 1
                yield each

    assert shown_value(Counting([0] * 1000)).size == "1,000 items"
    assert Counting.looked_at < 200
    assert len(shown_value({"a": ["b" * 10**6] * 1000}).text) < 2 * MAX_TEXT


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError(TOKEN)


class Odd:
    def __repr__(self) -> str:
        return f"<Odd {TOKEN}>"


class Shaped(list[int]):
    shape = (TOKEN, 1)


class Box:
    def __init__(self, content: dict[str, int]) -> None:
        self.content = content


@register_type(name="test_notebook.Login")
@dataclass
class Login:
    user: str
    token: str


def test_secrets_are_in_no_output() -> None:
    """D11: a saved notebook keeps outputs, so a secret is masked under its key and wherever it occurs."""

    def work(state: State) -> dict[str, Any]:
        return {
            "greeting": f"Hello {state['token']}",
            "nested": {"token": "other", "list": [state["token"]], state["token"]: 1},
            "login": Login("ann", "hidden"),
            "long": "y" * 290 + state["token"] + "z" * 1000,
            "many": [state["token"]] * 1000,
            "bytes": state["token"].encode() * 100,
        }

    schema = {"token": Annotated[str, secret], "greeting": str}
    graph = one_node(work, schema, store=MemoryStore())
    run = graph.invoke({"token": TOKEN}, run_id="r")
    run.wait()
    difference = graph.diff("r", 0, 1)
    handle = graph.get("r")
    for thing in (
        run,
        run.state,
        handle,
        Runs(graph.compiled().client.store).get("r"),
        difference,
        handle.info,
    ):  # type: ignore[union-attr]  # it has a store
        html = shown(thing)
        for part in (TOKEN, TOKEN[:8], "hidden", "other"):
            assert part not in html, thing
    html = shown(run)
    assert cells(html, "token")[1:] == ["str", "‹secret›"]
    assert cells(html, "greeting")[2] == "Hello ‹secret›"
    assert cells(html, "login")[1:] == ["Login", "Login(user='ann', token=‹secret›)"]
    secrets = secrets_in({"token"}, [{"token": TOKEN}])
    register_type(Box, name="test_notebook.Box", to=lambda box: box.content, restore=Box)
    for odd in (Shaped([0] * 1000), numpy.zeros(2, dtype=[(TOKEN, "f8")]), Box({TOKEN: 1})):
        assert TOKEN not in str(shown_value(odd, secrets)), odd
    assert shown_value(Odd(), secrets).text == "<Odd ‹secret›>"
    assert shown_value(Broken(), secrets).text == "<can't be shown: RuntimeError>"
    assert TOKEN[:8] not in shown_value(TOKEN * 100_000, secrets).text


def test_a_secret_in_the_choices_of_a_question_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """D11: also one that isn't shown whole, in the text and in the code."""

    def ask(state: State) -> None:
        pause(
            "Which?", choices=[f"use {state['token']}", "y" * 90 + state["token"], {state["token"]: "other"}]
        )

    graph = one_node(ask, {"token": Annotated[str, secret]}, store=MemoryStore())
    run = graph.invoke({"token": TOKEN}, run_id="r")
    run.wait()
    for thing in (run, graph.get("r"), Runs(graph.compiled().client.store).get("r")):  # type: ignore[union-attr]  # it has a store
        html = shown(thing)
        assert TOKEN[:6] not in html
        assert "‹secret›" in code_of(html)
    client = graph.compiled().client
    assert client is not None
    html = run_as_html(run_view.view_of_stored(client, "r", None, with_state=False))
    assert TOKEN[:6] not in html
    assert "‹secret›" in code_of(html)

    def fail(*_: Any) -> Any:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(run_view, "viewed_progress", fail)
    html = shown(graph.get("r"))
    assert TOKEN[:6] not in html
    assert code_of(html) == "graph.resume('r', ...)"


def test_a_secret_result_and_a_secret_error_are_masked() -> None:
    """D11: of a workflow, and of what a node raises."""
    flow = Workflow("report", store=MemoryStore(), secrets=["password"])
    flow.add_task("login", lambda password: f"session of {password}", secret=True)
    flow.add_task("length", lambda login: len(login), depends_on=["login"])
    run = flow.invoke({"password": TOKEN}, run_id="w")
    run.wait()
    html = shown(run)
    assert TOKEN not in html
    assert cells(html, "✓ login")[1:] == ["str", "‹secret›"]
    assert cells(html, "✓ length")[1:] == ["int", "29"]

    def fail(state: State) -> None:
        raise ValueError(f"can't log in with {state['token']}")

    graph = one_node(fail, {"token": Annotated[str, secret]}, store=MemoryStore())
    failed = graph.invoke({"token": TOKEN}, run_id="f")
    failed.wait()
    for thing in (failed, graph.get("f")):
        html = shown(thing)
        assert "<b>ValueError</b>: can&#x27;t log in with ‹secret›" in html
        assert "What to do: retry it with resume(&#x27;f&#x27;)" in html
        assert TOKEN not in html


def test_a_paused_run_shows_its_questions_and_the_code_that_answers_them() -> None:
    """P1: the code is the call that continues this very run."""
    graph = article().compile(store=MemoryStore())
    run = graph.invoke({}, run_id="kelp-1")
    run.wait()
    handle = graph.get("kelp-1")
    for thing in (run, handle):
        html = shown(thing)
        assert "review asks: Publish it? (choices: &#x27;yes&#x27;, &#x27;no&#x27;)" in html
        assert code_of(html) == "graph.resume('kelp-1', 'yes')"
    assert code_of(shown(Runs(graph.compiled().client.store).get("kelp-1"))) == (  # type: ignore[union-attr]  # it has a store
        "Runs(store).get('kelp-1').answer('yes')"
    )
    assert code_of(shown(handle.info)) == "Runs(store).get('kelp-1').answer('yes')"
    state = eval(code_of(shown(run)), {"graph": graph})
    assert state["verdict"] == "yes"
    # The run has moved on since it stopped here.
    html = shown(run)
    assert "completed" in html
    assert "asks" not in html


def test_several_questions_are_answered_by_id_and_a_secret_one_is_typed() -> None:
    """P3."""
    flow = Workflow("trip", store=MemoryStore())
    flow.add_task("book", lambda: pause("Book?", schema=bool, deadline="2h"))
    flow.add_task("code", lambda: pause("Code?", secret=True))
    flow.add_task("form", lambda: pause("Who?", schema={"type": "object", "properties": {"name": {}}}))
    run = flow.invoke({}, run_id="t")
    run.wait()
    html = shown(run)
    assert re.search(r"book asks: Book\? \(an answer of the type boolean\) \(until 20.* UTC\)", html)
    ids = [question.id for question in run.questions]
    assert len(ids) == 3
    examples = ("True", "getpass()", "{'name': ...}")
    pairs = ", ".join(f"{id!r}: {example}" for id, example in zip(ids, examples, strict=True))
    assert code_of(html) == f"from getpass import getpass\n\ngraph.resume('t', answers={{{pairs}}})"


def test_an_interrupted_run_shows_how_it_is_approved() -> None:
    """P1: and an async one the async call."""
    graph = article().compile(store=MemoryStore(), interrupt_before=["review"])

    async def wait() -> Any:
        return await graph.ainvoke({}, run_id="a").wait()

    html = shown(asyncio.run(wait()))
    assert "interrupted before" in html
    assert code_of(html) == "await graph.aresume('a')"
    html = shown(graph.get("a"))
    assert "interrupted before" in html
    assert code_of(html) == "graph.resume('a')"


def code_of(html: str) -> str:
    found = re.findall(r'<pre class="lp-code">.*?</pre>', html, re.DOTALL)
    assert len(found) == 1
    return "".join(ElementTree.fromstring(found[0]).itertext())


def test_a_store_that_fails_or_hangs_gives_a_line_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """H10: a cell that shows a run neither raises nor hangs."""
    store = FaultyStore(MemoryStore())
    graph = article().compile(store=store)
    run = graph.invoke({}, run_id="r")
    run.wait()
    handle = graph.get("r")
    store.fail(("head", "read"), times=None)
    for thing in (run, handle):
        assert "the store can&#x27;t be reached (a planned fault)" in shown(thing)
    assert "paused" in shown(run), "what is known here is shown all the same"
    store.heal()
    monkeypatch.setattr(run_view, "LONGEST_LOOK", 0.05)
    store.hang(("head", "read"), times=None)
    for thing in (run, handle):
        assert "the store hasn&#x27;t answered within 0.05 seconds" in shown(thing)
    store.heal()
    monkeypatch.undo()
    assert "hasn&#x27;t answered" not in shown(run)
    handle.delete()
    for thing in (run, handle):
        assert "no run &#x27;r&#x27; in this store" in shown(thing)


def test_damage_and_classes_that_are_not_known_are_named(tmp_path: Path) -> None:
    """H5."""
    store = MemoryStore()
    graph = one_node(lambda state: {"login": Login("ann", "x")}, store=store)
    graph.execute({}, run_id="r")
    known = TYPES._by_name.pop("test_notebook.Login")
    try:
        html = shown(Runs(store).get("r"))
    finally:
        TYPES._by_name["test_notebook.Login"] = known
    kind, text = cells(html, "login")[1:]
    assert kind == "test_notebook.Login"
    assert "a class that isn't known here" in text
    url = f"sqlite:///{tmp_path}/runs.db"
    article().compile(store=url).invoke({}, run_id="d").wait()
    handle = Runs(url).get("d")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        database.execute("update records set data = x'00'")
        database.commit()
    html = shown(handle)
    assert "damaged" in html


def test_values_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: of states, differences and errors; what is asked, and how to answer, stays."""
    graph = research(broken).compile(store=MemoryStore())
    run = graph.invoke({"sea": "swordfish"}, run_id="r")
    run.wait()
    assert "swordfish" in shown(run)
    monkeypatch.setenv(VALUES_VARIABLE, "0")
    html = shown(run)
    assert "ValueError" in html
    assert cells(html, "sea")[1:] == ["str", "not shown"]
    for thing in (run, run.state, graph.get("r"), graph.diff("r", 0, 0)):
        assert "swordfish" not in shown(thing)


def test_lists_of_steps_and_differences_are_tables() -> None:
    """H6."""
    graph = article().compile(store=MemoryStore())
    graph.invoke({"topic": "kelp"}, run_id="r").wait()
    html = shown(graph.history("r"))
    assert cells(html, "1")[1] == "draft"
    done = one_node(lambda state: None, store=graph.compiled().client.store)  # type: ignore[union-attr]  # it has a store
    done.execute({}, run_id="done")
    assert cells(shown(graph.runs()), "r")[2:5] == ["paused", "review", "1"]
    assert cells(shown(done.runs()), "done")[2:5] == ["completed", "", "1"]
    queued = done.start({}, run_id="queued")
    assert "is one running for its graph?</p>" in shown(queued)
    found = graph.diff("r", 0, 1)
    assert "<table>" in shown(found)
    assert graph.history("r") == list(graph.history("r"))


def test_a_graph_is_shown_in_the_theme_of_the_notebook_without_ids_that_could_collide() -> None:
    """H7: the same for both kinds of graphs; the picture by itself follows the system."""
    for graph in (article(), weather()):
        html = graph._repr_html_() or ""
        assert "[data-jp-theme-light=false] .limpet" in html
        assert ".vscode-dark .limpet" in html
        assert "lp-box" in shown(graph)
        assert "prefers-color-scheme" in (graph._repr_svg_() or "")


def test_a_state_in_a_node_is_shown_without_a_trace_of_reading_it() -> None:
    """H2: showing it doesn't make its values look as if the node may have changed them."""
    touched = []

    def work(state: State) -> None:
        assert "kelp" in shown(state)
        touched.append(set(state.access_log.touched))  # type: ignore[attr-defined]  # it is a node's state

    one_node(work, store=MemoryStore()).execute({"seas": ["kelp"]})
    assert touched == [set()]


def test_live_says_what_to_use_outside_of_a_notebook() -> None:
    """H7."""
    run = article().invoke({})
    with pytest.raises(UsageError, match="this isn't one; iterate"):
        live(run)
    with pytest.raises(UsageError, match="not StateGraph; give it live"):
        live(article())  # type: ignore[call-overload]  # a mistake
    assert not run._slot.began


SETUP = """
import asyncio
import time
from pathlib import Path

from limpet import END, START, MemoryStore, NodeContext, StateGraph, pause, supervise
from limpet.integrations.notebook import live


def wait_for(name):
    deadline = time.monotonic() + 60
    while not Path(name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.005)


async def wait_for_async(name):
    deadline = time.monotonic() + 60
    while not Path(name).exists():
        assert time.monotonic() < deadline, name
        await asyncio.sleep(0.005)


def load(state, ctx: NodeContext):
    ctx.emit("reading the ")
    ctx.emit("pages")
    ctx.progress(1, 4, "page one")
    Path(f"{state['name']}.begun").touch()
    wait_for(f"{state['name']}.seen")
    return {"pages": [1, 2, 3, 4]}


async def aload(state, ctx: NodeContext):
    ctx.emit("reading the pages")
    ctx.progress(1, 4, "page one")
    Path(f"{state['name']}.begun").touch()
    await wait_for_async(f"{state['name']}.seen")
    return {"pages": [1, 2, 3, 4]}


def review(state):
    return {"verdict": pause("Publish it?", choices=["yes", "no"])}


def article(name, first):
    graph = StateGraph(name=name)
    graph.add_node("load", run=first).add_node("review", run=review)
    graph.add_edge(START, "load").add_edge("load", "review").add_edge("review", END)
    return graph.compile(store="sqlite:///runs.db")


graph = article("article", load)
agraph = article("async article", aload)
"""

CELLS = {
    "setup": SETUP,
    "graph": "graph",
    "sync": "run = live(graph.invoke({'name': 'sync'}, run_id='sync'))\nrun",
    "later": "run",
    "answer": "state = graph.resume('sync', 'yes')\nstate",
    "await": "await live(agraph.ainvoke({'name': 'await'}, run_id='await'))",
    "interrupt": "live(graph.invoke({'name': 'interrupt'}, run_id='interrupt'))",
    "interrupt_await": "await live(agraph.ainvoke({'name': 'interrupt_await'}, run_id='interrupt_await'))",
    "resume": """
Path("interrupt.seen").touch()
Path("interrupt_await.seen").touch()
live(graph.invoke(checkpoint="interrupt"))
await live(agraph.ainvoke(checkpoint="interrupt_await"))
print(graph.get("interrupt").status, agraph.get("interrupt_await").status)
""",
    "handle": """
handle = graph.start({"name": "handle"}, run_id="handle")
with supervise("sqlite:///runs.db", [graph]):
    await live(handle)
""",
    "interrupt_handle": "await live(graph.start({'name': 'other'}, run_id='interrupt_handle'))",
    "refused": "live(graph.invoke({'name': 'other'}, run_id='sync', if_exists='error'))",
}


class RecordingClient(NotebookClient):
    """Executes a notebook, and keeps every update of an output."""

    updates: ClassVar[list[str]] = []

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.updates.append(msg["content"]["data"]["text/html"])
        return super().process_message(msg, cell, cell_index)


async def executed(folder: Path) -> dict[str, Any]:
    """The cells after their execution, by name. Some of them wait for what is seen of them."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in CELLS.values()])
    where = {"metadata": {"path": str(folder)}}
    client = RecordingClient(notebook, timeout=100, allow_errors=True, resources=where)
    async with client.async_setup_kernel():
        for index, name in enumerate(CELLS):
            updates = RecordingClient.updates = []
            execution = asyncio.ensure_future(client.async_execute_cell(notebook.cells[index], index))
            if name in ("sync", "await", "handle"):
                # The node waits until this is seen: the output is updated while the run executes.
                await happens(lambda seen=updates: any("1/4" in each for each in seen), execution)
                assert "reading the pages" in updates[-1]
                assert "running" in updates[-1]
                assert "<table" not in updates[-1], "the state comes at the end"
                (folder / f"{name}.seen").touch()
            elif name == "interrupt_handle":
                await happens(lambda seen=updates: seen, execution)
                await client.km.interrupt_kernel()
            elif name.startswith("interrupt"):
                await happens((folder / f"{name}.begun").exists, execution)
                await client.km.interrupt_kernel()
            await execution
    return dict(zip(CELLS, notebook.cells, strict=True))


async def happens(condition: Callable[[], object], execution: asyncio.Future[Any]) -> None:
    deadline = monotonic() + SOON
    while not condition():
        assert monotonic() < deadline
        assert not execution.done(), execution.result()
        await asyncio.sleep(0.01)


def html_of(cell: Any) -> list[str]:
    """What the outputs of a cell have as HTML, in order; those without it as plain text."""
    bundles = [output.data for output in cell.outputs if "data" in output]
    return [bundle.get("text/html", bundle["text/plain"]) for bundle in bundles]


@pytest.mark.timeout(240)
def test_a_notebook_shows_runs_live_in_its_own_event_loop(tmp_path: Path) -> None:
    """H7: sync and async cells, a pause and its answer, interrupts, and a run that a worker executes."""
    cells_by_name = asyncio.run(executed(tmp_path))
    errors = {
        name: [output.ename for output in cell.outputs if output.output_type == "error"]
        for name, cell in cells_by_name.items()
    }
    assert {name: found for name, found in errors.items() if found} == {
        "interrupt": ["KeyboardInterrupt"],
        "interrupt_await": ["CancelledError"],
        "interrupt_handle": ["CancelledError"],
        "refused": ["RunExists"],
    }
    (graph,) = html_of(cells_by_name["graph"])
    assert "<svg" in graph
    # One output, which ends with the question; the value of the cell doesn't repeat it.
    live_view, value = html_of(cells_by_name["sync"])
    assert value == "<Run sync paused>"
    assert "graph.resume(&#x27;sync&#x27;, &#x27;yes&#x27;)" in live_view
    assert "load: reading the pages" in live_view
    assert cells(live_view, "pages")[1:] == ["list", "[1, 2, 3, 4]"]
    (later,) = html_of(cells_by_name["later"])
    assert "Publish it?" in later
    (state,) = html_of(cells_by_name["answer"])
    assert cells(state, "verdict")[2] == "yes"
    live_view, value = html_of(cells_by_name["await"])
    assert value == "<AsyncRun await paused>"
    assert "await graph.aresume(&#x27;await&#x27;, &#x27;yes&#x27;)" in live_view
    for name, call in (
        ("interrupt", "graph.resume(&#x27;interrupt&#x27;)"),
        ("interrupt_await", "await graph.aresume(&#x27;interrupt_await&#x27;)"),
    ):
        (live_view,) = html_of(cells_by_name[name])
        assert "It was interrupted. Everything that it finished is saved" in live_view
        assert call in live_view
    assert cells_by_name["resume"].outputs[-1].text == "paused paused\n"
    (live_view,) = html_of(cells_by_name["interrupt_handle"])
    assert "It isn&#x27;t followed any longer" in live_view
    (live_view,) = html_of(cells_by_name["refused"])
    assert "run sync" in live_view
    assert "not begun" in live_view
    (live_view,) = html_of(cells_by_name["handle"])
    assert "Publish it?" in live_view
    assert cells(live_view, "pages")[2] == "[1, 2, 3, 4]"
