"""The documentation is correct: its examples run, its links work, its references are complete.

The python blocks of a page run in order, in one namespace and one empty directory. A comment right
before a block says otherwise: `<!-- not run -->` only compiles it, `<!-- file: name.py -->` saves it, and
`<!-- output -->` before a text block compares that with what the block above printed. A yaml block is saved as well,
or else is at least YAML; a toml block is saved. A console block after
`<!-- run -->` is executed, line by line after each `$`; with `<!-- run: 3 -->`, the last command ends with 3. For
`limpet`, its standard error counts too. An … in an output matches anything.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import limpet
from limpet import (
    AsyncRun,
    LimpetError,
    MemoryStore,
    NodeContext,
    Retry,
    State,
    StateGraph,
    StoreUnavailable,
    Workflow,
    errors,
    pause,
    receive,
    sleep,
)
from limpet.observe.events import EVENT_TYPES, Event
from limpet.yaml_files.actions.builtin import BUILT_IN
from limpet.yaml_files.document import read_document
from limpet.yaml_files.grammar.keys import (
    EDGE,
    GRAPH,
    GRAPH_CONFIG,
    NODE,
    RETRY,
    STATE_KEY,
    TASK,
    TEMPLATE,
    WORKFLOW,
    WORKFLOW_CONFIG,
)
from limpet.yaml_files.grammar.mappings import KeyedMapping
from limpet.yaml_files.loading import check_text

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
SOURCE = Path(limpet.__file__).parents[1]

OTHER_PAGES = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]

on_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


class Block(NamedTuple):
    """A fenced block: its language, the comment in the line before it, its first line's number, its text."""

    kind: str
    mark: str
    line: int
    text: str


FENCED = re.compile(r"^(?:<!-- *(?P<mark>[^\n]*?) *-->\n+)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["kind"], found["mark"] or "", text.count("\n", 0, found.start("text")) + 1, found["text"])
        for found in FENCED.finditer(text)
    ]


@pytest.fixture
def own_loggers() -> Iterator[None]:
    """Examples set up loggers of the library. Tests that come later find them as they were."""
    loggers = [logging.getLogger(name) for name in [*logging.root.manager.loggerDict, None]]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for name in logging.root.manager.loggerDict:
        logging.getLogger(name).setLevel(logging.NOTSET)
        logging.getLogger(name).handlers.clear()
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@on_every_page
@pytest.mark.usefixtures("own_loggers")
def test_the_examples_of_a_page_run_and_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = re.sub(r"\W", "_", page.stem)
    module = ModuleType(name if find_spec(name) is None else f"{name}_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    printed = ""
    for block in blocks_of(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        match block.kind, block.mark.partition(":")[::2]:
            case "python", ("file", name):
                save(name, block)
                compile(block.text, where, "exec")
            case "yaml", ("file", name):
                save(name, block)
                check_text(block.text, where)
            case "toml", ("file", name):
                save(name, block)
                tomllib.loads(block.text)
            case "yaml", _:
                read_document(block.text, where)
            case "python", ("not run", _):
                compile(block.text, where, "exec")
            case "python", _:
                printed = run(block, page, module)
            case "text", ("output", _):
                check(printed, block.text, where)
            case "console", ("run", code):
                run_commands(block, where, int(code or 0))


def save(name: str, block: Block) -> None:
    """Save a block as a file, in folders that are made for it."""
    path = Path(name.strip())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")


def run(block: Block, page: Path, module: ModuleType) -> str:
    """Run a block, whose lines keep their numbers in tracebacks; return what it printed."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, module.__dict__)
    return printed.getvalue()


def run_commands(block: Block, where: str, code: int) -> None:
    """Execute each `$` line of a console block and compare its output; a kill is shown as `Killed`.

    The last one ends with the exit code that is given, the others with 0.
    """
    parts = re.split(r"^\$ ", block.text, flags=re.M)[1:]
    for number, part in enumerate(parts, 1):
        command, _, expected = part.partition("\n")
        errors = subprocess.STDOUT if command.startswith("limpet ") else subprocess.PIPE
        done = subprocess.run(
            command, shell=True, env=surroundings(), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        killed = done.returncode in (-9, 137)
        wanted = code if number == len(parts) else 0
        assert killed or done.returncode == wanted, f"{where}: {command}\n{done.stdout}{done.stderr}"
        if expected.strip():
            check(done.stdout + ("Killed\n" if killed else ""), expected, f"{where}: {command}")


def surroundings() -> dict[str, str]:
    """The environment of a command: `python` and `limpet` are those that are tested, and nothing else is set up."""
    installed = Path(".bin")
    if not installed.exists():
        installed.mkdir()
        lines = f"#!{sys.executable}\nfrom limpet.cli.main import main\n\nraise SystemExit(main())\n"
        (installed / "limpet").write_text(lines)
        (installed / "limpet").chmod(0o755)
    path = [str(installed.resolve()), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    kept = {name: value for name, value in os.environ.items() if "LIMPET" not in name}
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(SOURCE),
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "limpet.testing.pytest_plugin",
    }


def check(printed: str, expected: str, where: str) -> None:
    pattern = ".*?".join(map(re.escape, tidy(expected).split("…")))
    if not re.fullmatch(pattern, tidy(printed), re.S):
        assert tidy(printed) == tidy(expected), f"{where} printed something else"


def tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@on_every_page
def test_every_fence_is_closed_and_every_mark_is_known(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^```", text, re.M)) == 2 * len(blocks_of(page))
    marks = {mark.partition(":")[0] for mark in re.findall(r"<!-- *(.*?) *-->", text)}
    drawn = {"layers", "layers of the engine", "run statuses", "end of run statuses", "names", "end of names"}
    assert marks <= {"not run", "output", "file", "run"} | drawn


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if anchor and not anchor.startswith("limpet."):  # those are made from the code: the site has them
            assert anchor in anchors_of(found), f"{page.relative_to(ROOT)} links to {target}"


def links_of(page: Path) -> list[str]:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^()\s]+)\)", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors_of(page: Path) -> set[str]:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_on_the_map() -> None:
    mapped = {(DOCS / target.partition("#")[0]).resolve() for target in links_of(DOCS / "index.md")}
    assert {*DOCS.rglob("*.md")} - mapped == {DOCS / "index.md"}


def every_error(cls: type[LimpetError] = LimpetError) -> Iterable[type[LimpetError]]:
    yield cls
    for each in cls.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from every_error(each)


def test_every_error_is_in_the_reference_with_its_code() -> None:
    rows = rows_of(REFERENCE / "errors.md")
    assert [each for each in every_error() if f"`{each.code}`" not in rows.get(each.__name__, "")] == []


MAPPINGS: dict[str, KeyedMapping] = {
    "A graph": GRAPH, "A node": NODE, "An edge": EDGE, "Retry": RETRY, "A key of the state": STATE_KEY,
    "The config of a graph": GRAPH_CONFIG, "A workflow": WORKFLOW, "A task": TASK, "A template": TEMPLATE,
    "The config of a workflow": WORKFLOW_CONFIG,
    **{name: action.parameters for name, action in BUILT_IN.items() if action.parameters is not None},
}  # fmt: skip


@pytest.mark.parametrize("title", MAPPINGS)
def test_every_key_of_a_yaml_file_is_in_the_reference_as_the_loader_knows_it(title: str) -> None:
    """F13: these rows, and no others."""
    text = (REFERENCE / "yaml.md").read_text(encoding="utf-8")
    section = re.split(r"^#", text.partition(f"# {title}\n")[2], flags=re.M)[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    expected = [
        f"| `{name}`{' (needed)' if key.required else ''} | {key.value_type.expected} | {key.doc} |"
        for name, key in MAPPINGS[title].keys.items()
    ]
    assert rows == expected


def test_every_observer_event_is_in_the_reference() -> None:
    """G11."""
    assert set(EVENT_TYPES) - rows_of(REFERENCE / "events.md", "What observers see").keys() == set()


def test_the_data_of_every_observer_event_is_in_the_reference() -> None:
    """G11: all that a run emits, key by key; what comes from a branch has `branch` as well."""
    seen: list[Event] = []
    provoke_everything(seen.append)
    provoke_workflows(seen.append)
    rows = rows_of(REFERENCE / "events.md", "What observers see")
    for event in seen:
        assert event.data.keys() - {"branch"} == named_in(rows[event.type]) - {"branch"}, event.type
    assert {event.type for event in seen} == set(EVENT_TYPES)
    inside = {event.type for event in seen if "branch" in event.data}
    assert {"branch.start", "branch.complete", "node.start", "node.complete", "checkpoint.save"} <= inside


def test_every_event_of_a_run_is_in_the_reference_key_by_key() -> None:
    """F4, F12: and no listed key is missing from all events."""
    rows = rows_of(REFERENCE / "events.md", "What a run yields")
    seen = provoke_everything(None)
    found: dict[str, set[str]] = {}
    for event in seen:
        named = named_in(rows[event["type"]]) | {"type"}
        assert named - SOMETIMES.get(event["type"], set()) <= event.keys() <= named, event["type"]
        found.setdefault(event["type"], set()).update(event)
    assert found == {kind: named_in(rows[kind]) | {"type"} for kind in RUN_EVENTS}


def test_every_event_of_a_workflow_is_in_the_reference_key_by_key() -> None:
    """H3: and no listed key is missing from all events."""
    rows = rows_of(REFERENCE / "events.md", "What a workflow yields")
    found: dict[str, set[str]] = {}
    for event in provoke_workflows(None):
        assert event.keys() <= named_in(rows[event["type"]]) | {"type"}, event["type"]
        found.setdefault(event["type"], set()).update(event)
    assert found == {kind: named_in(row) | {"type"} for kind, row in rows.items()}


STOPS = ("interrupt", "pause", "wait", "error", "cancelled", "final")
DURING_CALLS = ("node_start", "output", "progress", "retry", "sleep")
RUN_EVENTS = ("state", "branch", "checkpoint_saved", "checkpoint_failed", *DURING_CALLS, *STOPS)
OF_BRANCHES = ("state", "interrupt", "pause", "checkpoint_saved", *DURING_CALLS)
SOMETIMES = {
    **{kind: {"branch"} for kind in OF_BRANCHES},
    "state": {"branch", "error", "removed"},
    "branch": {"error"},
}
"""What only events of branches have, and those of branches that failed."""


def rows_of(page: Path, section: str = "") -> dict[str, str]:
    """The rows of a page's tables, or of one section's, by the names in their first cells."""
    rows: dict[str, str] = {}
    text = page.read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if line.startswith("| `"):
            first, _, rest = line.strip("| ").partition(" | ")
            rows |= dict.fromkeys(re.findall(r"`([^`]+)`", first), rest)
    return rows


def named_in(row: str) -> set[str]:
    """The keys that a row names: the code in its last cell."""
    return set(re.findall(r"`([^`]+)`", row.rpartition(" | ")[2]))


def provoke_everything(observer: Any) -> list[dict[str, Any]]:
    """Provoke every event of a graph; returns the events of the iteration."""

    def work(state: State, ctx: NodeContext) -> State:
        ctx.emit("begun")
        ctx.progress(1, 2)
        if ctx.attempt == 1:
            raise ValueError("the first time")
        if ctx.visit == 1:
            state.merge({"answer": pause("Go on?")}).clone()
        return state.set("rounds", ctx.visit)

    graph = StateGraph(name="all", observer=observer)
    graph.add_node("work", run=work, retry=Retry(2, backoff=0.0))
    graph.add_node("fail", run=lambda state: 1 // 0)
    graph.set_entry_point("work")
    graph.add_edge("work", "work", lambda state: state["rounds"] < 2)
    graph.add_edge("work", "fail")
    graph.set_finish_point("fail")
    graph.compile(store=MemoryStore(), interrupt_before=["work"])
    events: list[dict[str, Any]] = list(graph.stream({}, run_id="a", detailed=True))
    for given in (None, "yes", None):
        events += graph.stream(given, checkpoint=events[-1]["checkpoint_path"])
    cancelled = graph.fork("a", 1)
    cancelled.cancel()
    events += cancelled

    short = StateGraph(name="short", observer=observer)
    short.add_node("only").set_entry_point("only").set_finish_point("only")
    events += asyncio.run(_all_of(short.ainvoke(State({}, observer=observer))))
    unsaved = StateGraph(name="unsaved", observer=observer)
    unsaved.add_node("only", run=lambda state: state.__delitem__("old"))
    unsaved.set_entry_point("only").set_finish_point("only")
    events += unsaved.compile(store=Full(), on_save_error="continue").stream({"old": 1})
    waiter = StateGraph(name="waiter", observer=observer).add_node("wait", run=lambda state: receive("note"))
    waiter.set_entry_point("wait").set_finish_point("wait").compile(store=MemoryStore())
    events += waiter.stream({})
    caught = StateGraph(name="caught", observer=observer).add_node("fail", run=lambda state: 1 // 0)
    caught.set_entry_point("fail").add_node("handle").add_error_edge("fail", "handle")
    caught.add_edge("fail", "handle").set_finish_point("handle")
    events += caught.stream({})
    sleeper = StateGraph(name="sleeper", observer=observer)
    sleeper.add_node("nap", run=lambda state: sleep(3600)).set_entry_point("nap").set_finish_point("nap")
    sleeper.compile(store=MemoryStore()).start({})
    sleeper.recover()
    return events + provoke_branches(observer)


class Full(MemoryStore):
    """Creates runs, and refuses to save anything else."""

    def append(self, commits: Any) -> Any:
        raise StoreUnavailable("it is full")


def provoke_branches(observer: Any) -> list[dict[str, Any]]:
    """The same for branches: one that is interrupted, one that asks a question, and one that fails."""
    graph = StateGraph(name="split", observer=observer)
    graph.add_node("begin").set_entry_point("begin")

    def fail(state: State, ctx: NodeContext) -> None:
        ctx.emit(1)
        ctx.progress(1)
        raise ValueError

    graph.add_node("stop").add_node(
        "ask", run=lambda state: {"slept": sleep(0.01), "answer": pause("Go on?")}
    )
    graph.add_node("fail", run=fail, retry=Retry(2, backoff=0.0))
    graph.add_fanin_node("end").set_finish_point("end")
    for branch in ("stop", "ask", "fail"):
        graph.add_parallel_edge("begin", branch, "end", on_error="collect")
    graph.compile(store=MemoryStore(), interrupt_before=["stop"])
    events: list[dict[str, Any]] = list(graph.stream({}, run_id="b", detailed=True))
    return [*events, *graph.stream("yes", checkpoint=events[-1]["checkpoint_path"], detailed=True)]


def provoke_workflows(observer: Any) -> list[dict[str, Any]]:
    """The same for tasks: one that asks a question, one that fails and is retried, and some that don't run."""

    def work(ctx: NodeContext) -> int:
        ctx.emit("begun")
        ctx.progress(1, 2)
        if ctx.attempt == 1:
            raise ValueError("the first time")
        sleep(0.01)
        return pause("How many?", schema=int) if ctx.config.get("ask") else 1

    flow = Workflow("tasks", store=MemoryStore(), observer=observer)
    flow.add_task("work", work, retry=Retry(2, backoff=0.0))
    flow.add_task("extra", lambda: 1 // 0, safe_to_fail=True)
    flow.add_task("left out", lambda: None, condition=lambda: False)
    flow.add_task("after", lambda work: 1 // (work - 2), ["work"])
    events: list[dict[str, Any]] = list(flow.stream({}, {"ask": True}, run_id="w"))
    events += flow.stream(2, checkpoint=events[-1]["checkpoint_id"])
    events += flow.stream({})
    waiting = Workflow("waiting", store=MemoryStore(), observer=observer)
    waiting.add_task("wait", lambda: receive("note"))
    events += waiting.stream({})
    cancelled = flow.stream({})
    events.append(next(cancelled))
    cancelled.cancel()
    events += cancelled
    return [*events, *flow.compile(store=Full(), on_save_error="continue").stream({})]


async def _all_of(run: AsyncRun) -> list[dict[str, Any]]:
    return [event async for event in run]
