"""The workflows that tests kill, starve of disk, edit and ask; and the program whose children live them.

It is a nursery (see `crash_graphs/nursery.py`): each order it reads is carried out by a new process. An order with a
`log` is one life of run "r" of a workflow that is to be killed, and the log is that of `crash_graphs/lives.py`:
`kept` says which tasks were stored as done when a life began, `start` that one's body starts, `ack` that it was
acknowledged, `saved` the id of a layer's checkpoint, `handle` and `layer` that a layer's handler is called and that
the layer was acknowledged. Any other order calls a method of a workflow, as `crash_graphs/actor.py` does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parent / "crash_graphs"))

import actor
import fifty
import lives
import nursery
from effects import die, effect, used_up, wait_until_there

from limpet import (
    AlreadyCompleted,
    Event,
    Retry,
    RunNotFound,
    StateGraph,
    StoreUnavailable,
    TaskResult,
    Workflow,
    append,
    pause,
)
from limpet.journal.store import Commit
from limpet.stores.sqlite.store import SQLiteStore

LAYERS, WIDTH = 10, 20
TRANSIENT = ("timestamp", "duration", "attempts")
"""What of a task's record tells of the lives it took, and not of the run."""


class Life(lives.Life):
    """One process's part of the run. `planning` says that the next commit is that of a layer."""

    planning = False

    def begin(self, ctx: Any) -> None:
        self.note("start", ctx.node, ctx.idempotency_key, ctx.attempt)
        self.reach("body")

    def plan(self) -> bool:
        """The planner is at work: it is the one who asks conditions, and whoever is to be asked after a layer."""
        self.planning = True
        return True

    def watch(self, event: Event) -> None:
        if event.type != "checkpoint.save":
            return
        if event.data["node"] == "after_layer":
            self.layer_is_saved(f"{event.data['run_id']}@{event.data['step']}")
        elif event.data["node"]:
            self.acknowledge(event.data["node"])

    def see(self, event: dict[str, Any]) -> None:
        if event["type"] == "task_complete":
            self.acknowledge(event["task"])
        elif event["type"] == "checkpoint_saved":
            self.layer_is_saved(event["checkpoint_id"], event["layer"])

    def acknowledge(self, task: str) -> None:
        self.note("ack", task)
        self.reach("acknowledged")

    def layer_is_saved(self, checkpoint_id: str, layer: int | None = None) -> None:
        self.note("saved", checkpoint_id)
        if layer is not None:
            self.note("layer", layer)
        self.reach("layer-acknowledged")


class MortalStore(fifty.MortalStore):
    """A store whose process may die around any commit, or around those of layers."""

    life: Life

    def append(self, commits: list[Commit]) -> list[Exception | None]:
        layer, self.life.planning = self.life.planning, False
        if layer:
            self.life.reach("layer-unsaved")
        outcome = super().append(commits)
        if layer:
            self.life.reach("layer-saved")
        return outcome


def live(
    db: str,
    log: str,
    *,
    workflow: str,
    driver: str = "sync",
    level: str = "process",
    by: str = "run",
    point: str = "",
    at: int = -1,
    **settings: Any,
) -> None:
    """One life of run "r". When that comes to its end, the final state is in a file "final" beside the log."""
    logging.getLogger("limpet").addHandler(logging.NullHandler())
    life = Life(log, point, at)
    life.note("life", os.getpid())
    store = MortalStore(Path(db), level=level)  # type: ignore[arg-type]
    store.life = life
    flow = MORTAL[workflow](life, life.watch if driver in ("sync", "async") else None)
    flow.compile(store=store, preserve=True, lease=60, **settings)
    known = look(life, flow, log, by)
    returned: Any = None
    with suppress(AlreadyCompleted):
        returned = asyncio.run(go_on_async(flow, life, known, driver)) if driver.startswith("a") else (
            go_on(flow, life, known, driver)
        )  # fmt: skip
    state = flow.state_at("r")
    state.check()
    assert returned is None or fifty.exact(dict(returned)) == fifty.exact(dict(state))
    told = {
        name: {k: v for k, v in each.items() if k not in TRANSIENT} for name, each in state["tasks"].items()
    }
    life.note("end")
    Path(log).with_name("final").write_text(repr(fifty.exact({**state, "tasks": told})))


def look(life: Life, flow: Workflow, log: str, by: str) -> str | None:
    """Note what is stored as done, and give the id to resume by; None if there is no run."""
    try:
        life.note("kept", *flow.plan_resume("r").kept)
    except RunNotFound:
        return None
    if by == "run":
        return "r"
    saved = [line.split()[1] for line in Path(log).read_text().splitlines() if line.startswith("saved ")]
    return "r" if not saved else saved[-1] if by == "checkpoint" else saved[0]


def go_on(flow: Workflow, life: Life, known: str | None, driver: str) -> Any:
    if driver != "stream":
        return flow.execute(run_id="r") if known is None else flow.resume(known)
    told = flow.stream(run_id="r") if known is None else flow.stream(checkpoint=stepped(flow, known))
    for event in told:
        life.see(event)
    return told.state


async def go_on_async(flow: Workflow, life: Life, known: str | None, driver: str) -> Any:
    if driver != "astream":
        return await (flow.aexecute(run_id="r") if known is None else flow.aresume(known))
    told = flow.astream(run_id="r") if known is None else flow.astream(checkpoint=stepped(flow, known))
    async for event in told:
        life.see(event)
    return told.state


def stepped(flow: Workflow, known: str) -> str:
    return known if "@" in known else flow.checkpoint(known).checkpoint_id


def grid(life: Life, observer: Callable[..., None] | None) -> Workflow:
    """Ten layers of twenty tasks of six kinds, each of which depends on three of the layer before."""

    def plain(ctx: Any, results: dict[str, Any], layer: int, place: int) -> Any:
        begin(ctx, place)
        return place, len(repr(results)), Decimal(layer) / 8, [None, {"deep": (b"\x00", {3, 1})}]

    async def later(ctx: Any, results: dict[str, Any], layer: int, place: int) -> Any:
        life.begin(ctx)
        await asyncio.sleep(place % 3 / 2000)
        ctx.add_message((ctx.node, len(results)))
        return {"when": datetime(2024, 2, 29, tzinfo=UTC) + timedelta(days=layer), "large": 10**30 + place}

    def saying(ctx: Any, context: dict[str, Any], layer: int, place: int) -> TaskResult:
        begin(ctx, place)
        # A page that replaces the one before: what is superseded brings on snapshots along the way.
        page = random.Random(f"{layer} {place}").randbytes(9000)
        ctx.add_decision("so be it", layer=layer, seen=len(context))
        shared = {f"page-{place}": page, f"last-of-{layer}": place}
        return TaskResult(frozenset([place]), messages=[f"{layer}:{place}", {"m": layer}], context=shared)

    def trying(ctx: Any, layer: int, place: int) -> Any:
        begin(ctx, place)
        if ctx.attempt == 1:
            raise ConnectionError("not now")
        ctx.add_context({"last-tried": (layer, place)})
        return layer

    def failing(ctx: Any, layer: int, place: int) -> None:
        begin(ctx, place)
        raise ValueError(f"{layer} is no good")

    def paying(ctx: Any, results: dict[str, Any], layer: int, place: int) -> Any:
        begin(ctx, place)
        return life.pay(ctx, "fee", (layer, place))

    def begin(ctx: Any, place: int) -> None:
        life.begin(ctx)
        pretend_to_work(place)

    def chosen(layer: int) -> Callable[[], bool]:
        return lambda: life.plan() and layer % 3 != 2

    kinds: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (plain, {}), (later, {}), (saying, {}), (paying, {}), (plain, {}),
        (trying, {"retry": Retry(attempts=2, backoff=0.001)}), (failing, {"safe_to_fail": True}),
    ]  # fmt: skip
    flow = Workflow("grid", observer=observer)
    for layer in range(LAYERS):
        for place in range(WIDTH):
            run, policy = kinds[(place + layer) % len(kinds)]
            above = [f"{layer - 1}-{(place + step) % WIDTH:02}" for step in (0, 3, 11)] if layer else []
            if place == 7:
                policy = {**policy, "condition": chosen(layer)}
            given = {"layer": layer, "place": place}
            flow.add_task(f"{layer}-{place:02}", run, optional=above, arguments=given, **policy)
    return flow


def pretend_to_work(place: int) -> None:
    """Take a moment, so that tasks overtake each other."""
    if place % 4:
        lives.threading.Event().wait(place * 7 % 5 / 2500)


def changing(life: Life, observer: Callable[..., None] | None) -> Workflow:
    """A plan that grows as it is carried out: tasks add tasks and skip some, and so does the handler of layers."""

    def plan(ctx: Any) -> str:
        life.begin(ctx)
        for number in range(8):
            given = {"number": number}
            ctx.add_task(f"work-{number}", run="work", depends_on=["plan"], arguments=given, before=["sum"])
        ctx.skip("unwanted", reason="nobody wants it")
        return "planned"

    def work(ctx: Any, number: int, **rest: Any) -> TaskResult:
        life.begin(ctx)
        pretend_to_work(number)
        ctx.add_message((ctx.node, sorted(rest)))
        if number >= 40:
            return TaskResult(number, context={"deepest": ctx.node})
        task = {
            "name": f"{ctx.node}.{number % 3}",
            "run": "work",
            "depends_on": [ctx.node],
            "before": ["sum"],
        }
        more = [{**task, "arguments": {"number": number * 2 + 3}}] if number % 2 == 0 or number > 4 else []
        return TaskResult({number}, add_tasks=more, skip=["spare"] if number == 3 else [])

    def total(ctx: Any, **rest: Any) -> Any:
        life.begin(ctx)
        ctx.skip_layers(reason="enough")
        return {name: type(value).__name__ for name, value in rest.items()}

    def plain(ctx: Any) -> str:
        life.begin(ctx)
        return ctx.node

    flow = Workflow("changing", observer=observer)
    flow.add_task(plan).add_template("work", work)
    flow.add_task("unwanted", plain, ["plan"]).add_task("spare", plain, ["late-2"])
    for number in range(3):
        flow.add_task(f"late-{number}", plain, [f"late-{number - 1}" if number else "plan"])
    flow.add_task("sum", total, ["plan"]).add_task("left-out", plain, ["sum"]).add_task(
        "end", plain, optional=["left-out"]
    )

    @flow.after_layer
    def handler(layer: int, results: dict[str, Any], state: Any, ctx: Any) -> TaskResult:
        life.note("handle", layer)
        life.reach("handler")
        life.plan()
        ctx.add_decision("seen", layer=layer, done=len(state.tasks), tasks=list(results))
        if layer in (1, 3):
            ctx.add_task(f"extra-{layer}", run="work", arguments={"number": 41 + layer}, before=["sum"])
        return TaskResult(messages=[("layer", layer)], context={"layer": layer, "page": b"%d" % layer * 400})

    return flow


def superseding(life: Life, observer: Callable[..., None] | None) -> Workflow:
    """Twenty layers whose large context replaces that of the layer before, so that old records go."""

    def turn(ctx: Any, layer: int, place: int) -> TaskResult:
        life.begin(ctx)
        return TaskResult(place, context={f"page-{place}": random.Random(layer).randbytes(20_000)})

    flow = Workflow("superseding", observer=observer)
    for layer in range(20):
        for place in range(4):
            given = {"layer": layer, "place": place}
            flow.add_task(
                f"{layer}-{place}", turn, [f"{layer - 1}-{place}"] if layer else [], arguments=given
            )
    return flow


MORTAL = {"grid": grid, "changing": changing, "superseding": superseding}


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
    """The store stops working in the layer that a file "trouble-at" says, and works again in that of "mended-at"."""
    for file, change in (("trouble-at", TROUBLES), ("mended-at", MENDED)):
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
MENDED: dict[str, Callable[[Path], object]] = {
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
    """Do as an order says with a workflow whose files are in a folder: what came of it, or what was raised."""
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
    return lives.sha256(repr(fifty.exact(state)).encode()).hexdigest()


def digested(flow: Any, folder: Path, do: str, *args: Any, **kwargs: Any) -> str:
    """The digest of the state that a method returns."""
    return digest(dict(getattr(flow, do)(*args, **kwargs)))


def loads_elsewhere(flow: Any, folder: Path, checkpoint_id: str) -> bool:
    """Whether a new process that opens the store anew can load a checkpoint, now.

    A fork has the store open its file anew here too, so where that was moved nobody is asked whether it can be found.
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
    """How many records, and bytes of them, the journal of a run of so many layers has after each."""
    flow = Workflow("long")

    def turn(layer: int, place: str) -> TaskResult:
        content = random.Random(f"{layer} {place}").randbytes(10_000)
        return TaskResult(layer, messages=[layer], context={f"page-{place}": content})

    for layer in range(layers):
        for place in "ab":
            needed = [f"{layer - 1}{place}"] if layer else []
            flow.add_task(f"{layer}{place}", turn, needed, arguments={"layer": layer, "place": place})
    store = SQLiteStore(folder / "runs.db")
    flow.compile(store=store, keep=keep, preserve=True)
    sizes = []
    with closing(sqlite3.connect(folder / "runs.db")) as db:
        for event in flow.stream(run_id="long"):
            if event["type"] == "checkpoint_saved":
                flow.compiled().need_client("test").cleanup_thread.submit(
                    int
                ).result()  # what was to be dropped is
                sizes += db.execute("SELECT count(*), sum(length(data)) FROM records").fetchall()
                kept = flow.checkpoints("long") if keep is not None and event["layer"] % 20 == 10 else []
                assert len(kept) in (0, keep)
                assert all(flow.checkpoint(each.id).checkpoint_id == each.id for each in kept)
    return sizes


OTHERS: dict[str, Callable[..., Any]] = {"watched": watched, "digested": digested, "long_run": long_run}


def carry_out(**order: Any) -> Any:
    return live(**order) if "log" in order else answer(**order)


if __name__ == "__main__":
    nursery.live = carry_out  # type: ignore[assignment]  # what its children do
    nursery.main()
