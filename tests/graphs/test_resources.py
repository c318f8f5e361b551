"""Resources: live objects that nodes take by name, opened once a process and closed at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    END,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    Resource,
    ResourceFailed,
    Retry,
    RunCancelled,
    Runs,
    StateGraph,
    Workflow,
)
from limpet.graphs.resources.graph_resources import RESERVED


class Client:
    """A client that notes what happens to it. It is callable, as many are, and still an object."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log
        self.log.append("open")

    def __call__(self, prompt: str) -> str:
        return f"echo {prompt}"

    def close(self) -> None:
        self.log.append("close")


def one(run: Callable[..., Any], **settings: Any) -> StateGraph:
    graph = StateGraph(name="one").add_node("node", run)
    return graph.set_entry_point("node").set_finish_point("node").compile(**settings)


def ask(state: Any, llm: Any) -> dict[str, Any]:
    return {"answer": llm("hello")}


async def ask_async(state: Any, llm: Any) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"answer": llm("hello")}


def test_a_node_gets_the_object_that_it_names() -> None:
    """H15: an object that is callable is the object, not a factory, and isn't closed."""
    log: list[str] = []
    with one(ask, resources={"llm": Client(log)}) as graph:
        assert graph.execute({}) == {"answer": "echo hello"}
    assert log == ["open"]


def test_a_first_parameter_with_the_name_of_a_resource_gets_it() -> None:
    """H15: it isn't taken to be the state; one with another name still is."""
    graph = one(lambda llm: {"answer": llm("a")}, resources={"llm": Client()})
    assert graph.execute({})["answer"] == "echo a"
    graph = one(lambda s, *, llm: {"answer": llm(s["x"])}, resources={"llm": Client()})
    assert graph.execute({"x": "b"})["answer"] == "echo b"


def test_a_parameter_with_a_default_gets_the_resource_if_there_is_one() -> None:
    """H15"""

    def node(state: Any, llm: Any = None) -> dict[str, Any]:
        return {"has": llm is not None}

    assert one(node).execute({}) == {"has": False}
    assert one(node, resources={"llm": Client()}).execute({}) == {"has": True}


def generator(log: list[str]) -> Iterator[Client]:
    client = Client([])
    log.append("open")
    yield client
    log.append("close")


async def async_generator(log: list[str]) -> AsyncIterator[Client]:
    await asyncio.sleep(0)
    log.append("open")
    yield Client([])
    await asyncio.sleep(0)
    log.append("close")


async def coroutine(log: list[str]) -> Client:
    await asyncio.sleep(0)
    return Client(log)


class AsyncClient(Client):
    async def close(self) -> None:  # type: ignore[override]  # as some libraries do
        await asyncio.sleep(0)
        self.log.append("close")


def close_async(log: list[str], client: Any) -> Any:
    async def close() -> None:
        log.append("close")

    return close()


FACTORIES: dict[str, Callable[[list[str]], Any]] = {
    "function": lambda log: lambda: Client(log),
    "class": lambda log: type("Made", (Client,), {"__init__": lambda self: Client.__init__(self, log)}),
    "partial": lambda log: partial(Client, log),
    "generator function": lambda log: partial(generator, log),
    "context manager": lambda log: partial(contextmanager(generator), log),
    "closing": lambda log: lambda: closing(Client(log)),
    "coroutine function": lambda log: partial(coroutine, log),
    "function that returns a coroutine": lambda log: lambda: coroutine(log),
    "async generator function": lambda log: partial(async_generator, log),
    "async context manager": lambda log: partial(asynccontextmanager(async_generator), log),
    "async close": lambda log: lambda: AsyncClient(log),
    "Resource": lambda log: Resource(lambda: Client(log), close=lambda client: log.append("close")),
    "Resource with an async close": lambda log: Resource(lambda: Client(log), partial(close_async, log)),
}


@pytest.mark.parametrize("node", [ask, ask_async])
@pytest.mark.parametrize("kind", FACTORIES)
def test_a_factory_is_called_once_for_all_runs_and_what_it_made_is_closed(kind: str, node: Any) -> None:
    """H15: for sync and async nodes of synchronous runs; after close, the next run opens it again."""
    log: list[str] = []
    graph = one(node, resources={"llm": FACTORIES[kind](log)})
    assert log == []
    for _ in range(2):
        assert graph.execute({}) == {"answer": "echo hello"}
    assert log == ["open"]
    graph.close()
    assert log == ["open", "close"]
    graph.close()
    graph.execute({})
    graph.close()
    assert log == ["open", "close"] * 2


@pytest.mark.parametrize("node", [ask, ask_async])
@pytest.mark.parametrize("kind", FACTORIES)
def test_async_runs_share_resources_and_close_them_on_their_event_loop(kind: str, node: Any) -> None:
    """H15"""
    log: list[str] = []
    graph = one(node, resources={"llm": FACTORIES[kind](log)})

    async def run() -> None:
        async with graph:
            found = await asyncio.gather(*(graph.aexecute({}) for _ in range(3)))
            assert [each["answer"] for each in found] == ["echo hello"] * 3
            assert log == ["open"]
        assert log == ["open", "close"]

    asyncio.run(run())


def test_an_async_resource_is_closed_when_its_event_loop_ends() -> None:
    """H15: on the loop and in the task that opened it; another loop opens its own."""
    log: list[Any] = []

    async def llm() -> AsyncIterator[Client]:
        opened_in = asyncio.current_task()
        log.append("open")
        try:
            yield Client()
        finally:
            await asyncio.sleep(0)
            log.append(asyncio.current_task() is opened_in)

    graph = one(ask_async, resources={"llm": llm})
    asyncio.run(_twice(graph))
    assert log == ["open", True]
    asyncio.run(_twice(graph))
    assert log == ["open", True] * 2


async def _twice(graph: StateGraph) -> None:
    await graph.aexecute({})
    await graph.aexecute({})


def test_threads_that_need_a_resource_at_once_get_the_same_one() -> None:
    """H15: the factory is slow, and 8 branches and 4 runs need it."""
    opened: list[int] = []
    all_wait = threading.Event()

    def pool() -> object:
        opened.append(1)
        assert all_wait.wait(10)
        return object()

    def work(state: Any, pool: Any) -> dict[str, Any]:
        return {"pool": id(pool)}

    def gather(parallel_results: Any) -> dict[str, Any]:
        return {"pools": [each["pool"] for each in parallel_results]}

    graph = StateGraph(name="many").add_node("split").add_node("work", work)
    graph.add_fanin_node("gather", lambda state, parallel_results: gather(parallel_results))
    graph.add_map("split", "work", lambda state: range(8), "gather")
    graph.set_entry_point("split").set_finish_point("gather").compile(resources={"pool": pool})
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(graph.execute({})["pools"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    all_wait.set()
    for thread in threads:
        thread.join(20)
    assert len(found) == 32
    assert len(set(found)) == len(opened) == 1


def test_predicates_choices_and_fan_ins_take_resources() -> None:
    """H15"""
    limits = {"most": 2}
    graph = StateGraph(name="g").add_node("a", lambda state: {"n": state["n"] + 1})
    graph.add_node("b").add_node("c").set_entry_point("a").set_finish_point("c")
    graph.add_edge("a", "b", lambda state, limits: state["n"] >= limits["most"])
    graph.add_edge("a", "a")
    graph.add_conditional_edges("b", lambda limits: "yes" if limits else "no", {"yes": "c", "no": END})
    graph.compile(resources={"limits": lambda: limits})
    run = graph.invoke({"n": 0})
    assert list(run)[-1]["state"]["n"] == 2


def test_subgraphs_get_the_resources_of_the_graph_around_unless_they_have_their_own() -> None:
    """H15: also in maps and in workflows; fan-ins and tasks of inner workflows take them, too."""

    def leaf(name: str) -> StateGraph:
        inner = StateGraph(name=name).add_node("ask", lambda state, llm: {name: llm("x")})
        return inner.set_entry_point("ask").set_finish_point("ask")

    own = leaf("own").compile(resources={"llm": lambda: lambda prompt: "own"})
    flow = Workflow("flow").add_task("task", lambda llm: llm("y"), condition=lambda llm: llm("z") == "echo z")
    graph = StateGraph(name="outer").add_node("inherits", leaf("inherits")).add_node("own", own)
    graph.add_node("flow", flow).add_fanin_node("join", lambda state, parallel_results, llm: {"n": llm("n")})
    graph.add_edge("inherits", "own").add_edge("own", "flow")
    graph.add_map("flow", leaf("each"), lambda state: range(2), "join")
    graph.set_entry_point("inherits").set_finish_point("join").compile(resources={"llm": Client()})
    final = graph.execute({})
    assert final == {"inherits": "echo x", "own": "own", "task": "echo y", "n": "echo n"}


def test_tasks_conditions_handlers_and_templates_of_workflows_take_resources() -> None:
    """H15: sync and async tasks, and tasks that a run adds."""
    flow = Workflow("flow")

    @flow.task
    def first(llm: Any, ctx: Any) -> str:
        ctx.add_task("added", run="template", depends_on=["first"])
        return str(llm("1"))

    @flow.task(depends_on=["first"], condition=lambda llm: bool(llm("")))
    async def second(first: str, llm: Any) -> str:
        return str(llm(first))

    @flow.template
    def template(llm: Any, first: str) -> str:
        return str(llm("added"))

    seen = []

    @flow.after_layer
    def handler(layer: int, llm: Any) -> None:
        seen.append(llm(str(layer)))

    flow.compile(resources={"llm": Client})
    assert flow.execute({}).results == {"first": "echo 1", "second": "echo echo 1", "added": "echo added"}
    assert seen[0] == "echo 0"
    flow.close()


def test_a_resource_and_a_task_can_not_have_the_same_name() -> None:
    """H15: a parameter could mean either; neither can a resource and an argument."""
    flow = Workflow("flow").add_task("fetch", lambda: 1)
    flow.add_task("use", lambda fetch, llm: 1, ["fetch"], arguments={"llm": 1})
    with pytest.raises(DefinitionError) as caught:
        flow.compile(resources={"fetch": Client, "llm": Client})
    assert "a task and a resource have the same name, 'fetch'" in str(caught.value)
    assert "task 'use' is given 'llm'" in str(caught.value)


def test_a_missing_resource_is_a_definition_error_with_node_and_parameter() -> None:
    """H15: all of them are listed, with those that exist."""
    graph = StateGraph(name="g").add_node("a", ask).add_node("b", lambda state, cofnig: None)
    graph.add_edge("a", "b", lambda state, limit: True).set_entry_point("a").set_finish_point("b")
    with pytest.raises(DefinitionError) as caught:
        graph.compile(resources={"db": Client})
    assert len(caught.value.mistakes) == 3
    text = str(caught.value)
    assert "node 'a' has an unknown parameter 'llm'" in text
    assert "compile(resources={'llm': …})" in text
    assert "node 'b' has an unknown parameter 'cofnig'; did you mean 'config'?" in text
    assert "the predicate of 'a' → 'b' has an unknown parameter 'limit'" in text
    with pytest.raises(DefinitionError, match="unknown parameter 'llm'"):
        graph.execute({})


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        *(({name: Client}, "the name of what nodes get anyway") for name in sorted(RESERVED)),
        ({"no name": Client}, "its name must be that of a parameter"),
        ([1], "resources must be a dict"),
        ({"llm": lambda prompt: 1}, "is called without arguments"),
        ({"llm": Resource(3)}, "its factory is not callable: 3"),  # type: ignore[arg-type]
        ({"llm": Resource(Client, close=lambda: None)}, "close must be a function of the object"),
    ],
)
def test_resources_that_can_not_be_are_a_definition_error(resources: Any, reason: str) -> None:
    """H15"""
    with pytest.raises(DefinitionError, match=reason):
        one(lambda state: None, resources=resources)
    with pytest.raises(DefinitionError, match=reason):
        Workflow("flow", resources=resources)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_factory_that_fails_fails_the_node_which_may_retry(is_async: bool) -> None:
    """H15: the error names the resource; `on` may name what the factory raised; the next attempt opens it."""
    attempts: list[int] = []

    def connect() -> Client:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("no route")
        return Client()

    async def connect_async() -> Client:
        return connect()

    factory = connect_async if is_async else connect
    graph = StateGraph(name="g").set_entry_point("a").set_finish_point("a")
    graph.add_node("a", ask_async if is_async else ask, retry=Retry(2, backoff=0, on=ConnectionError))
    graph.compile(resources={"llm": factory}, store=MemoryStore())
    with pytest.raises(
        ExecutionError, match="resource 'llm' couldn't be opened: ConnectionError: no route"
    ) as e:
        graph.execute({}, run_id="r")
    assert isinstance(e.value.cause, ResourceFailed)
    assert e.value.cause.resource == "llm"
    assert isinstance(e.value.cause.__cause__, ConnectionError)
    assert len(attempts) == 2
    assert graph.resume("r")["answer"] == "echo hello"


def test_a_failure_to_close_is_raised_once_all_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    """H15: the newest is closed first; what fails at the end of an event loop is logged."""
    log: list[str] = []

    def broken() -> Iterator[str]:
        yield "b"
        raise OSError("disk")

    graph = one(
        lambda state, first, broken: {}, resources={"first": partial(generator, log), "broken": broken}
    )
    graph.execute({})
    with pytest.raises(ResourceFailed, match="resource 'broken' couldn't be closed: OSError: disk"):
        graph.close()
    assert log == ["open", "close"]

    async def broken_async() -> AsyncIterator[str]:
        yield "b"
        raise OSError("socket")

    async def node(state: Any, llm: Any) -> None:
        return None

    graph = one(node, resources={"llm": broken_async})

    async def run() -> None:
        await graph.aexecute({})

    with caplog.at_level(logging.WARNING, "limpet.graph"):
        asyncio.run(run())
    assert "resource 'llm' couldn't be closed: socket" in caplog.text


def test_resources_are_in_no_record_no_event_and_no_fingerprint() -> None:
    """H15"""
    seen: list[Any] = []
    store = MemoryStore()
    secret = "sk-" + "5" * 20
    graph = StateGraph(name="g", observer=lambda event: seen.append(repr(event)))
    graph.add_node("a", lambda state, llm: {"n": 1}).set_entry_point("a").set_finish_point("a")
    graph.compile(resources={"llm": secret}, store=store, preserve=True)
    one_print = graph.compiled().plan.fingerprint
    graph.execute({}, run_id="r")
    kept = [*seen, repr(store.read("r").records), repr(Runs(store).get("r"))]
    assert not any(secret in each or "llm" in each for each in kept)
    graph.compile(resources={"llm": secret, "db": Client}, store=store)
    assert graph.compiled().plan.fingerprint == one_print
    flow = Workflow("f").add_task("t", lambda llm=None: 1)
    plain = flow.compiled().plan.fingerprint
    assert flow.compile(resources={"llm": Client}).compiled().plan.fingerprint == plain


def pid_resource() -> Iterator[int]:
    yield os.getpid()


def use_pid(state: Any, pid: int) -> dict[str, Any]:
    return {"pids": (pid, os.getpid())}


def split(executor: Any, **resources: Any) -> StateGraph:
    graph = StateGraph(name="split").add_node("split").add_node("work", use_pid)
    graph.add_fanin_node(
        "join", lambda state, parallel_results: {"all": [r["pids"] for r in parallel_results]}
    )
    graph.add_map("split", "work", lambda state: range(3), "join").set_entry_point("split")
    return graph.set_finish_point("join").compile(executor=executor, resources=resources)


def test_in_a_process_pool_resources_are_made_there() -> None:
    """H15: from the factory; an object that can't be sent there is a definition error."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        found = split(pool, pid=pid_resource).execute({})["all"]
        assert len(found) == 3
        assert all(pid == process != os.getpid() for pid, process in found)
        assert split(pool, pid=7).execute({})["all"][0][0] == 7
        for unsendable in (threading.Lock(), lambda: 1):
            with pytest.raises(DefinitionError, match="resource 'pid', which 'use_pid' takes, can't be sent"):
                split(pool, pid=unsendable)
        # A node that never runs in a branch is called here, so its resources needn't be sent.
        one(lambda state, lock: {}, executor=pool, resources={"lock": threading.Lock()}).execute({})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    """H15: and leaves those of its parent alone."""
    script = """
        import os
        from limpet import StateGraph

        def db():
            print("open", os.getpid() == parent, flush=True)
            yield 1
            print("close", os.getpid() == parent, flush=True)

        parent = os.getpid()
        graph = StateGraph(name="g").add_node("a", lambda state, db: {"db": db})
        graph.set_entry_point("a").set_finish_point("a").compile(resources={"db": db})
        graph.execute({})
        child = os.fork()
        graph.execute({})
        if child:
            os.waitpid(child, 0)
        else:
            graph.close()
            os._exit(0)
    """
    out = run_script(script).stdout
    assert out.split("\n") == ["open True", "open False", "close False", "close True", ""]


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


ENDS = {"end": "", "exit": "sys.exit(3)", "error": "raise ValueError", "interrupt": "os.kill(os.getpid(), 2)"}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_the_process_closes_what_is_open(end: str) -> None:
    """H15: also after Ctrl-C in the middle of a node; the newest is closed first."""
    script = f"""
        import os, sys
        from limpet import StateGraph

        def db():
            yield "db"
            print("db closed", flush=True)

        async def llm():
            try:
                yield "llm"
            finally:
                print("llm closed", flush=True)

        def work(state, db, llm):
            {ENDS[end] or "pass"}

        graph = StateGraph(name="g").add_node("a", work).set_entry_point("a").set_finish_point("a")
        graph.compile(resources={{"db": db, "llm": llm}}).execute({{}})
    """
    assert run_script(script).stdout == "llm closed\ndb closed\n"


def test_a_worker_that_resumes_a_run_uses_the_resources_of_its_graph() -> None:
    """H15: recover and workers take them from the compiled graph."""
    graph = one(ask_async, resources={"llm": Client}, store=MemoryStore())
    handle = graph.start({})
    graph.recover()
    assert handle.result(timeout=10)["answer"] == "echo hello"
    graph.close()


def test_a_run_that_is_cancelled_leaves_the_shared_event_loop_to_others() -> None:
    """H15: async nodes with resources share an event loop; the end of one run cancels its own tasks only."""
    left: list[str] = []
    begun = threading.Event()

    async def slow(state: Any, llm: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            left.append("cancelled")

    slow_graph = one(slow, resources={"llm": Client}, store=MemoryStore())

    def run() -> None:
        with pytest.raises(RunCancelled):
            slow_graph.execute({}, run_id="s")

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    other = one(ask_async, resources={"llm": Client})
    assert other.execute({})["answer"] == "echo hello"
    slow_graph.cancel("s")
    thread.join(10)
    assert left == ["cancelled"]
    assert other.execute({})["answer"] == "echo hello"
    other.close()
    slow_graph.close()
