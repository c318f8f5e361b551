"""The workflows that tests starve of disk, edit and ask; and the program that carries out orders about them.

An order is a JSON line: a method of a workflow to call and its arguments, as for `crash_graphs/actor.py`. A new
process, forked from this one, carries it out and finds nothing in memory. The answer is a JSON line: the signal that
ended the process, or what the call returned or raised. The program itself opens no store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import resource
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parent / "crash_graphs"))

import actor
from effects import die, effect, used_up, wait_until_there

import limpet.engine.drivers.async_driver  # noqa: F401  # so that no child has to import it
from limpet import (
    Event,
    StateGraph,
    StoreUnavailable,
    TaskResult,
    Workflow,
    append,
    pause,
)
from limpet.journal.store import Commit
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.crash.child_run import value_as_text

TRANSIENT = ("timestamp", "duration", "attempts")
"""What in the record of a task depends on the processes that ran it."""


def asking(folder: Path) -> Workflow:
    """open → price, colour, slow → join. Two ask; `slow` waits for the file "gate" if there is "hold"."""
    flow = Workflow("asking")

    @flow.task
    def opening() -> int:
        effect(folder, "opening", os.getpid())
        return 1

    @flow.task(depends_on=["opening"])
    def price(ctx: Any, opening: int) -> Any:
        effect(folder, "price", os.getpid())
        answer = pause("Which price?", schema=int)
        if used_up(folder / "die-after-answer"):
            die()
        return answer, opening

    @flow.task(depends_on=["opening"])
    def colour(ctx: Any) -> Any:
        effect(folder, "colour", os.getpid())
        return ctx.pause("Which colour?", choices=["red", "blue"])

    @flow.task(depends_on=["opening"])
    def slow() -> str:
        effect(folder, "slow", os.getpid())
        if (folder / "hold").exists():
            wait_until_there(folder / "gate")
        return "slow"

    @flow.task(depends_on=["price", "colour", "slow"])
    def join(results: dict[str, Any]) -> Any:
        effect(folder, "join", os.getpid())
        return list(results.values())

    return flow


def approved(folder: Path) -> Workflow:
    """draft → send, where the handler after the first layer asks whether to send."""
    flow = Workflow("approved")

    @flow.task
    def draft(ctx: Any) -> str:
        effect(folder, "draft", os.getpid())
        return "dear all"

    @flow.task(depends_on=["draft"])
    def send(draft: str) -> str:
        effect(folder, "send", os.getpid())
        return f"sent: {draft}"

    @flow.after_layer
    def approve(layer: int) -> TaskResult | None:
        effect(folder, "handler", layer)
        if layer == 0 and pause("Send it?", choices=["yes", "no"]) == "no":
            return TaskResult(skip=["send"])
        if used_up(folder / "die-after-answer"):
            die()
        return None

    return flow


def edited(folder: Path) -> Workflow:
    """a, b → c, d → e; in the second edition f takes the place of d. `c` waits as `slow` does."""
    second = (folder / "second-edition").exists()
    flow = Workflow("edited")

    def task(ctx: Any, results: dict[str, Any]) -> Any:
        effect(folder, ctx.node, os.getpid())
        if ctx.node == "c" and (folder / "hold").exists():
            wait_until_there(folder / "gate")
        ctx.add_message(ctx.node)
        return [ctx.node, *results.values()]

    flow.add_task("a", task).add_task("b", task).add_task("c", task, ["a"])
    if second:
        return flow.add_task("f", task, ["b"]).add_task("e", task, ["c", "f"])
    return flow.add_task("d", task, ["b"]).add_task("e", task, ["c", "d"])


STAGES, PAGE = 12, 25_000


def starved(folder: Path) -> Workflow:
    """Twelve layers of two tasks, each with 25 kB that don't compress. See `trouble` for what happens at some."""
    flow = Workflow("starved")

    def task(ctx: Any, layer: int) -> bytes:
        effect(log_of(folder), "start", ctx.node, ctx.idempotency_key)
        if ctx.node.endswith("a"):
            trouble(folder, layer)
        return page(ctx.node)

    for layer in range(STAGES):
        for name in "ab":
            needed = [f"{layer - 1}{each}" for each in "ab"] if layer else []
            flow.add_task(
                f"{layer}{name}",
                task,
                {f"_{each}": each for each in needed} and needed,
                arguments={"layer": layer},
            )
    return flow


def starved_graph(folder: Path) -> StateGraph:
    """The same for a state graph: twelve steps, each with 50 kB."""

    def grow(ctx: Any) -> dict[str, Any]:
        effect(log_of(folder), "start", ctx.step, ctx.idempotency_key)
        trouble(folder, ctx.step - 1)
        return {"step": ctx.step, "pages": [page(ctx.step) + page(-ctx.step)]}

    graph = StateGraph(
        {"step": int, "pages": Annotated[list, append]}, name="starved", observer=noticed(folder)
    )
    graph.add_node("grow", run=grow).add_edge("grow", "grow", lambda state: state["step"] < STAGES)
    return graph.set_entry_point("grow").set_finish_point("grow")


def noticed(folder: Path) -> Callable[[Event], None]:
    def notice(event: Event) -> None:
        if event.type == "checkpoint.save":
            effect(log_of(folder), "acknowledged", event.data["step"])
        elif event.type == "checkpoint.fail":
            effect(log_of(folder), "refused", event.data["step"])

    return notice


def log_of(folder: Path) -> Path:
    """Where effects are noted: in another folder, where this one is on a disk that gets full."""
    elsewhere = folder / "log-folder"
    return Path(elsewhere.read_text()) if elsewhere.exists() else folder


def page(name: object) -> bytes:
    return random.Random(str(name)).randbytes(PAGE)


def trouble(folder: Path, layer: int) -> None:
    """The store stops working in the layer that a file "trouble-at" says, and works again in that of "works-at"."""
    for file, change in (("trouble-at", TROUBLES), ("works-at", WORKS_AGAIN)):
        if (folder / file).exists() and (folder / file).read_text() == str(layer):
            change[(folder / "trouble").read_text()](folder)


def fill_disk(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def rename_table(old: str, new: str) -> Callable[[Path], None]:
    def rename(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "runs.db", timeout=30)) as db, db:
            db.execute(f"ALTER TABLE {old} RENAME TO {new}")

    return rename


def limit_files(bytes_at_most: int) -> Callable[[Path], None]:
    return lambda folder: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_at_most, resource.RLIM_INFINITY))


TROUBLES: dict[str, Callable[[Path], object]] = {
    "a full disk": fill_disk,
    "a quota": limit_files(150_000),
    "a table that is gone": rename_table("records", "away"),
    "a store that refuses": lambda folder: (folder / "refuse").touch(),
    "a file that is gone": lambda folder: (folder / "runs.db").rename(folder / "away.db"),
}
WORKS_AGAIN: dict[str, Callable[[Path], object]] = {
    "a full disk": lambda folder: (folder / "filler").unlink(),
    "a quota": limit_files(resource.RLIM_INFINITY),
    "a table that is gone": rename_table("away", "records"),
    "a store that refuses": lambda folder: (folder / "refuse").unlink(),
    "a file that is gone": lambda folder: (folder / "away.db").rename(folder / "runs.db"),
}


class MoodyStore(SQLiteStore):
    """A store that refuses its saves from one number up to another, or while there is a file "refuse"."""

    saves, refused_from, refused_to = 0, 0, 0

    def append(self, commits: list[Commit]) -> list[Exception | None]:
        self.saves += 1
        if self.refused_from <= self.saves < self.refused_to or self.path.with_name("refuse").exists():
            raise StoreUnavailable("the database has gone away")
        return super().append(commits)


ALIVE: dict[str, Callable[[Path], Any]] = {
    "asking": asking, "approved": approved, "edited": edited, "starved": starved, "starved_graph": starved_graph,
}  # fmt: skip


def answer(
    folder: str,
    workflow: str,
    do: str,
    args: list[Any],
    kwargs: dict[str, Any],
    settings: dict[str, Any],
    refused: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """Do as an order says with a workflow whose files are in a folder: its result, or what was raised."""
    place, warned = Path(folder), Warned()
    logging.getLogger("limpet").addHandler(warned)
    flow = ALIVE[workflow](place)
    store = MoodyStore(place / "runs.db")
    store.refused_from, store.refused_to = refused
    flow.compile(**{"store": store, "preserve": True, "lease": 60, **settings})
    told = {"pid": os.getpid()}
    try:
        if do in OTHERS:
            return {
                **told,
                "returned": actor.plain(OTHERS[do](flow, place, *args, **kwargs)),
                "warned": warned.lines,
            }
        return {**told, "returned": actor.obey(flow, do, args, kwargs), "warned": warned.lines}
    except Exception as error:
        about = {**actor.about(error), "state": None, "exception": None}
        return {**told, "raised": type(error).__name__, "text": str(error), **about, "warned": warned.lines}


class Warned(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def watched(flow: Any, folder: Path, checkpoint: str | None = None, driver: str = "sync") -> dict[str, Any]:
    """Stream run "r": each event, with the run's status at the time, and whether its id can be loaded elsewhere."""
    run = {"sync": flow.stream, "async": flow.astream}[driver](
        **({"run_id": "r"} if checkpoint is None else {"checkpoint": checkpoint})
    )
    told: list[list[Any]] = []
    seen: list[str] = []

    def hear(event: dict[str, Any]) -> None:
        about = event.get("task") or event.get("layer") or event.get("error")
        found = id_of(event, folder, seen)
        told.append(
            [event["type"], about, run.status, *([loads_elsewhere(flow, folder, found)] if found else [])]
        )

    async def listen() -> None:
        async for event in run:
            hear(event)

    if driver == "async":
        asyncio.run(listen())
    else:
        for event in run:
            hear(event)
    end = run._slot.verdict
    state = dict(run.state)
    final = getattr(run.state, "checkpoint_id", None)
    return {
        "told": told, "status": run.status, "error": end.error and str(end.error), "digest": digest(state),
        "checkpoint_id": final, "loads": final is None or loads_elsewhere(flow, folder, final),
    }  # fmt: skip


def id_of(event: dict[str, Any], folder: Path, seen: list[str]) -> str | None:
    """The id that an event tells of; for a state graph, that of a step which was acknowledged since the last one."""
    if event["type"] != "state":
        return event.get("checkpoint_id")
    lines = (log_of(folder) / "effects").read_text().splitlines()
    before, seen[:] = len(seen), [line.split()[1] for line in lines if line.startswith("acknowledged ")]
    return f"r@{seen[-1]}" if len(seen) > before else None


def digest(state: dict[str, Any]) -> str:
    """A final state, but for what tells of the process."""
    if "tasks" in state:
        tasks = {n: {k: v for k, v in t.items() if k not in TRANSIENT} for n, t in state["tasks"].items()}
        state = {**state, "tasks": tasks}
    return sha256(value_as_text(state).encode()).hexdigest()


def digested(flow: Any, folder: Path, do: str, *args: Any, **kwargs: Any) -> str:
    """The digest of the state that a method returns."""
    return digest(dict(getattr(flow, do)(*args, **kwargs)))


def loads_elsewhere(flow: Any, folder: Path, checkpoint_id: str) -> bool:
    """Whether a new process that opens the store again can load a checkpoint, now.

    A fork has the store open its file again here too, so where that was moved no process is asked.
    """
    if (folder / "trouble").exists() and "a file that" in (folder / "trouble").read_text():
        return (folder / "runs.db").exists()
    child = os.fork()
    if child == 0:
        ended = 1
        with suppress(Exception):
            there = ALIVE["starved" if isinstance(flow, Workflow) else "starved_graph"](folder)
            there.compile(store=SQLiteStore(folder / "runs.db", timeout=5))
            if isinstance(there, Workflow):
                assert there.checkpoint(checkpoint_id).checkpoint_id == checkpoint_id
            else:
                there.state_at(checkpoint_id.split("@")[0], int(checkpoint_id.split("@")[1]))
            ended = 0
        os._exit(ended)
    return os.waitpid(child, 0)[1] == 0


def long_run(flow: Any, folder: Path, layers: int, keep: int | None) -> list[tuple[int, int]]:
    """How many records, and bytes of them, the journal of a run with this many layers has after each."""
    flow = Workflow("long")

    def turn(layer: int, place: str) -> TaskResult:
        content = random.Random(f"{layer} {place}").randbytes(10_000)
        return TaskResult(layer, messages=[layer], context={f"page-{place}": content})

    for layer in range(layers):
        for place in "ab":
            needed = [f"{layer - 1}{each}" for each in "ab"] if layer else []
            flow.add_task(f"{layer}{place}", turn, needed, arguments={"layer": layer, "place": place})
    store = SQLiteStore(folder / "runs.db")
    flow.compile(store=store, keep=keep, preserve=True)
    sizes = []
    with closing(sqlite3.connect(folder / "runs.db")) as db:
        for event in flow.stream(run_id="long"):
            if event["type"] == "checkpoint_saved":
                flow.compiled().need_client("test").upkeep.finish()  # what was to be dropped is
                sizes += db.execute("SELECT count(*), sum(length(data)) FROM records").fetchall()
                kept = flow.checkpoints("long") if keep is not None and event["layer"] % 20 == 10 else []
                assert len(kept) in (0, keep)
                assert all(flow.checkpoint(each.id).checkpoint_id == each.id for each in kept)
    return sizes


OTHERS: dict[str, Callable[..., Any]] = {"watched": watched, "digested": digested, "long_run": long_run}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), flush=True)


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    """Have a new process carry out an order."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        be_the_child(order, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        outcome = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"signal": 0, **json.loads(outcome)}


def be_the_child(order: dict[str, Any], writing: int) -> None:
    try:
        outcome = {"returned": answer(**order)}
    except BaseException:
        outcome = {"raised": traceback.format_exc()}
    with open(writing, "wb") as pipe:
        pipe.write(json.dumps(outcome).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
