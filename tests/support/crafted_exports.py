"""Exported runs of many shapes, changed at will behind right checksums, and all that is asked of a run of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from struct import pack
from typing import Any, NamedTuple
from zlib import crc32

from limpet import (
    LimpetError,
    MemoryStore,
    NodeContext,
    Retention,
    Retry,
    Runs,
    State,
    StateGraph,
    Workflow,
    once,
    pause,
    sleep,
)
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.envelope import COMPRESSED, Envelope
from limpet.testing import FakeClock
from support.graphs import chain, count, fan

Graph = StateGraph | Workflow
HEADER = 53
"""How many bytes of a file come before its contents."""


class Example(NamedTuple):
    """A graph of some shape, as a function of its store, and a run of it that a file holds."""

    made: Callable[[Any], Graph]
    file: bytes


def examples(folder: Path) -> list[Example]:
    """A run of each shape that a journal can have, exported while it waits, failed or is complete."""
    shapes = (_asking, _branching, _mapping, _nesting, _failing, _sleeping, _growing, _tasks)
    return [_exported(made, folder) for made in shapes]


def _exported(made: Callable[[Any], Graph], folder: Path) -> Example:
    graph = made(MemoryStore())
    with suppress(LimpetError):
        graph.invoke({"n": 0, "items": [1, 2, 3]}, run_id="r").wait()
    target = folder / f"{made.__name__}.run"
    graph.export_run("r", target)
    return Example(made, target.read_bytes())


def _asking(store: Any) -> StateGraph:
    def ask(state: State) -> dict[str, Any]:
        dived = once("dive", lambda: [1])
        return {"dives": dived, "depth": pause("How deep?", schema=int)}

    return chain(count, ask, count).compile(store=store, preserve=True)


def _branching(store: Any) -> StateGraph:
    def ask(state: State) -> dict[str, Any]:
        return {"answer": pause("Which?", choices=["a", "b"], deadline=3600, default="a")}

    return fan({"a": [count, ask], "b": count, "c": [count, ask]}).compile(store=store, preserve=True)


def _mapping(store: Any) -> StateGraph:
    def work(state: State) -> dict[str, Any]:
        return {"out": state["item"] if state["item"] != 2 else pause("And two?")}

    graph = StateGraph(name="map").add_node("src", run=count).add_node("work", run=work)
    graph.add_node("join", run=lambda state, parallel_results: {"sum": len(parallel_results)})
    graph.add_map("src", "work", "items", "join")
    return graph.set_entry_point("src").set_finish_point("join").compile(store=store, preserve=True)


def _nesting(store: Any) -> StateGraph:
    def ask(state: State) -> dict[str, Any]:
        return {"answer": pause("Inside?", secret=True)}

    return chain(count, chain(count, ask, name="inner"), count).compile(store=store, preserve=True)


def _failing(store: Any) -> StateGraph:
    def fail(state: State) -> dict[str, Any]:
        raise ValueError("no luck")

    graph = StateGraph(name="failing").add_node("n1", run=count)
    graph.add_node("n2", run=fail, retry=Retry(attempts=2, backoff=0)).add_edge("n1", "n2")
    return graph.set_entry_point("n1").set_finish_point("n2").compile(store=store, preserve=True)


def _sleeping(store: Any) -> StateGraph:
    def wait(state: State, ctx: NodeContext) -> dict[str, Any]:
        sleep(0)
        return {"slept": pause("Awake?")}

    return chain(count, wait).compile(store=store, preserve=True, interrupt_before=["n2"])


def _growing(store: Any) -> StateGraph:
    def grow(state: State) -> dict[str, Any]:
        return {"items": [*state["items"], 4], "table": {**state.get("table", {}), str(state["n"]): "x"}}

    def shrink(state: State) -> dict[str, Any]:
        del state["table"]
        return {"n": 9}

    return chain(count, grow, count, grow, shrink, count).compile(store=store, preserve=True)


def _tasks(store: Any) -> Workflow:
    flow = Workflow("tasks", store=store)
    flow.add_task("first", lambda n: n + 2)
    flow.add_task("other", lambda n: once("kept", lambda: n))
    flow.add_task("ask", lambda first: first * pause("How many?", schema=int), ["first"])
    flow.add_task("last", lambda ask, other: ask + other, ["ask", "other"])
    return flow


def crafted(file: bytes, chance: Random) -> bytes:
    """The file with one to three values in it replaced, removed or doubled, and with checksums that are right."""

    def change(opened: dict[str, Any]) -> None:
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            _change(*chance.choice(list(places(opened))), chance)

    return resealed(file, change)


def resealed(file: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The file after a change of its contents, in which records and note are decoded, with right checksums."""
    opened = decode(file[HEADER:])
    envelope = Envelope(opened["run_id"])
    opened["records"] = [
        decode(envelope.open(number, data)) for number, data in enumerate(opened["records"], 1)
    ]
    opened["note"] = decode(opened["note"]) if opened["note"] else {}
    change(opened)
    return _sealed(file, opened)


def with_frames(file: bytes, frames: list[bytes]) -> bytes:
    """The file with more records: these zstd frames, in envelopes with right checksums."""
    opened = decode(file[HEADER:])
    seed = crc32(opened["run_id"].encode())
    for number, frame in enumerate(frames, len(opened["records"]) + 1):
        checksum = crc32(frame, crc32(pack(">QBB", number, 1, COMPRESSED), seed))
        opened["records"].append(pack(">BBI", 1, COMPRESSED, checksum) + frame)
    return _with_contents(file, encode(opened))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All containers in a value, with each of their keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def _change(container: Any, key: Any, chance: Random) -> None:
    way = chance.choice(("replace", "replace", "replace", "remove", "double", "rename", "take"))
    if way == "remove":
        del container[key]
    elif way == "double" and isinstance(container, list):
        container.insert(key, container[key])
    elif way == "rename" and isinstance(container, dict):
        container[chance.choice(("section", "state", "node", "timers", "__class__", 5))] = container.pop(key)
    elif way == "take":
        container[key] = chance.choice(list(places(container)))[1]
    else:
        container[key] = chance.choice(_ODD)()


_ODD: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 7,
    lambda: 2**80,
    lambda: 1.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: "",
    lambda: "text",
    lambda: "n2",
    lambda: "\x00",
    lambda: "__end__",
    lambda: b"bytes",
    list,
    lambda: [[]],
    lambda: ["n2", 3],
    dict,
    lambda: {"n2": 3},
    lambda: {1: 2},
    lambda: (1, 2),
    lambda: {1, 2},
    lambda: 0,
    lambda: False,
    lambda: 1e300,
    lambda: "half \ud800",
    lambda: b"",
    tuple,
    set,
    lambda: {(1, 2): {3}},
)


def _sealed(file: bytes, opened: dict[str, Any]) -> bytes:
    contents = dict(opened)
    bodies = contents.get("records")
    run_id = contents.get("run_id")
    if isinstance(bodies, list) and isinstance(run_id, str):
        envelope = Envelope(run_id)
        contents["records"] = [envelope.close(number, encode(body)) for number, body in enumerate(bodies, 1)]
    if contents.get("note") is not None:
        contents["note"] = encode(contents["note"])
    return _with_contents(file, encode(contents))


def _with_contents(file: bytes, body: bytes) -> bytes:
    start = file[:13] + len(body).to_bytes(8, "big")
    return start + sha256(start + body).digest() + body


def ask_everything(example: Example, file: Path) -> list[str]:
    """Import a file and ask all of its run. Returns the calls that raised anything but an error of ours.

    What was imported must also be intact to `verify`, before and after its old checkpoints are deleted.
    """
    store = MemoryStore(clock=FakeClock(auto=True))
    graph = example.made(store)
    asked = _Asked([])
    run_id = asked.ask("import", lambda: graph.import_run(file))
    if run_id is None:
        return asked.problems
    steps = _look(asked, graph, store, run_id)
    _write_files(asked, graph, store, run_id, file)
    _work_on_copies(asked, example, file, steps)
    asked.ask("fork", lambda: graph.fork(run_id, steps[0], new_run_id="f").wait())
    asked.ask("recover", lambda: graph.recover())
    asked.ask("resume", lambda: graph.resume(run_id))
    for answer in (2, "a", "b"):
        asked.ask("answer", lambda answer=answer: graph.resume(run_id, answer))
    asked.ask("flatten again", lambda: Runs(store).flatten(file.with_suffix(".jsonl")))
    asked.ask("rollback", lambda: graph.rollback(run_id, steps[0]))
    asked.ask("again", lambda: graph.resume(run_id, 3))
    asked.ask("cancel", lambda: graph.cancel(run_id))
    asked.ask("cleanup", lambda: graph.cleanup(Retention(completed="1d", failed="1d", paused="1d")))
    asked.ask("cleanup_expired", lambda: graph.cleanup_expired(0.0))
    asked.ask("delete", lambda: graph.runs() and Runs(store).delete(run_id))
    return asked.problems


class _Asked(NamedTuple):
    problems: list[str]

    def ask(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except LimpetError:
            return None
        except Exception as error:
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
            return None

    def verify(self, graph: Graph, run_id: str, when: str) -> None:
        verified = self.ask(f"verify {when}", lambda: graph.verify(run_id))
        if verified is None or not verified.ok:
            self.problems.append(f"it is damaged {when}: {verified}")


def _look(asked: _Asked, graph: Graph, store: MemoryStore, run_id: str) -> list[int]:
    """All that only reads, with the graph's code and without. Returns the steps of the run."""
    ask = asked.ask
    runs = Runs(store)
    ask("list", lambda: [(repr(info), info.shown_status, info.held_by) for info in runs.list()])
    ask("table", lambda: runs.list()._repr_html_())
    ask("get", lambda: runs.get(run_id).info)
    asked.verify(graph, run_id, "once it is imported")
    for format in ("text", "svg", "mermaid"):
        ask(f"draw {format}", lambda format=format: graph.draw(format, run_id=run_id))
    steps = ask("history", lambda: [each.step for each in graph.history(run_id)]) or [0]
    for step in (None, *steps[:2], steps[-1]):
        ask(f"state {step}", lambda step=step: repr(graph.state_at(run_id, step)))
        ask(f"state {step} without the graph", lambda step=step: repr(runs.state(run_id, step)))
    ask("secrets", lambda: (runs.secrets(run_id), Runs(store, graph).secrets(run_id)))
    ask("diff", lambda: repr(graph.diff(run_id, steps[0], steps[-1])))
    ask("diff without the graph", lambda: repr(runs.diff(run_id, steps[0], steps[-1])))
    if isinstance(graph, Workflow):
        ask("checkpoint", lambda: repr(graph.checkpoint(run_id)))
        ask("checkpoints", lambda: [graph.checkpoint(each.id) for each in graph.checkpoints(run_id)])
        ask("plan_resume", lambda: str(graph.plan_resume(run_id)))
    return steps


def _write_files(asked: _Asked, graph: Graph, store: MemoryStore, run_id: str, file: Path) -> None:
    """All that writes the run to a file. Flat files are written twice: the second time they are read first."""
    asked.ask("export", lambda: graph.export_run(run_id, file.with_suffix(".again")))
    for suffix in (".jsonl", ".db"):
        target = file.with_suffix(suffix)
        target.unlink(missing_ok=True)
        for _ in range(2):
            asked.ask(f"flatten {suffix}", lambda target=target: Runs(store).flatten(target))


def _work_on_copies(asked: _Asked, example: Example, file: Path, steps: list[int]) -> None:
    """All that changes the run in another way than `resume` does, each on a fresh copy of the run."""

    def on_copy(name: str, call: Callable[[Graph], Any]) -> None:
        graph = example.made(MemoryStore(clock=FakeClock(auto=True)))
        asked.ask(f"import for {name}", lambda: graph.import_run(file))
        asked.ask(name, lambda: call(graph))
        if name != "cancel":
            asked.verify(graph, "r", f"after {name}")

    on_copy("prune_checkpoints", lambda graph: graph.prune_checkpoints("r", keep=1))
    on_copy("answer", lambda graph: (graph.answer("r", 2), graph.recover()))
    on_copy("cancel", lambda graph: graph.cancel("r"))
    on_copy("rollback", lambda graph: (graph.rollback("r", steps[-1]), graph.resume("r")))
    on_copy("stream", lambda graph: list(graph.stream({"n": 1}, {"m": 1}, checkpoint=f"r@{steps[-1]}")))
    on_copy("aresume", lambda graph: asyncio.run(graph.aresume("r", update={"n": 2})))
    on_copy("queued", lambda graph: repr((run := graph.start({}, run_id="r")).info) + repr(run.state))
