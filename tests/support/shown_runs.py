"""The runs in the screenshots of the documentation: a day of three graphs, which takes a few seconds to happen.

Nodes work, and people answer, by a clock of their own. So the pictures show the same times whenever they are made.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from math import inf
from typing import Annotated, Any

from limpet import (
    END,
    LimpetError,
    MemoryStore,
    Retry,
    RunPaused,
    Runs,
    StateGraph,
    Workflow,
    append,
    emit,
    pause,
    progress,
)
from limpet.testing import FakeClock
from support.waiting import until

NOW = datetime(2026, 5, 12, 9, 41, tzinfo=UTC)
"""When the pictures are taken."""

LEASE = 30 * 86400.0
"""Seconds. The clock is faster than the processes that renew leases."""

QUIET = 0.05
"""Real seconds after which everything that is to begin now has begun."""

GLANCE = 0.03
"""Real seconds between two looks at whether that is so. Meanwhile, runs that are due notice it."""

TICK = 0.2
"""Seconds by which time passes at once."""


class WorkClock(FakeClock):
    """A clock that runs while nodes work or wait. Nodes that work at the same time share its time."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self._lock = threading.Lock()
        self._ends: list[float] = []
        self._changed = 0.0
        self.closing_time = threading.Event()
        """Ends the work that takes until then."""

    def work(self, seconds: float) -> None:
        """Be busy for this long."""
        end = self() + seconds
        with self._change_of_work():
            self._ends.append(end)
        while self() < end:
            time.sleep(GLANCE)
            with self._lock:
                if end == min(self._ends) and self._is_quiet():
                    self.skip_to(min(end, self() + TICK))
        with self._change_of_work():
            self._ends.remove(end)

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait for a retry: while nothing works, time passes all the same."""
        time.sleep(GLANCE)
        with self._lock:
            if seconds < inf and not self._ends and self._is_quiet():
                self.skip(min(seconds, TICK))

    @contextmanager
    def _change_of_work(self) -> Iterator[None]:
        with self._lock:
            yield
            self._changed = time.monotonic()

    def _is_quiet(self) -> bool:
        return time.monotonic() - self._changed > QUIET

    def before(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass until this long before the pictures are taken."""
        self.skip_to(NOW.timestamp() - ((days * 24 + hours) * 60 + minutes) * 60 - seconds)


clock = WorkClock(datetime(2026, 5, 10, tzinfo=UTC))


@contextmanager
def dated_by(now: Callable[[], float]) -> Iterator[None]:
    """While the block runs, the library dates what happens by this clock, not only what it stores."""
    own = time.time
    dating = [vars(module) for name, module in sys.modules.items() if name.startswith("limpet.")]
    places = [names for names in (vars(time), *dating) if names.get("time") is own]
    for names in places:
        names["time"] = now
    try:
        yield
    finally:
        for names in places:
            names["time"] = own


MODELS = {"small": 1.0, "large": 1.6}
"""The models that the research may ask, and how much slower than the first each is."""

SOURCES = {
    "papers": ["What limpets eat"],
    "news": ["A storm uncovers an old reef"],
    "archive": ["Tide tables of 1911"],
}


REPORT = "Limpets wander off to feed, and return to exactly the spot they left."


class EmptyPage(Exception):
    """A page has nothing to rate."""

    __module__ = "research"


def plan(state: Any) -> dict[str, Any]:
    clock.work(1.8)
    return {"budget": 1.5}


def approve(state: Any) -> dict[str, Any]:
    answer = pause(f"Spend up to {state['budget']:.2f} € on “{state['topic']}”?", choices=["yes", "no"])
    clock.work(0.2)
    return {"budget": state["budget"] if answer == "yes" else 0}


def papers(state: Any) -> dict[str, Any]:
    clock.work(2.6)
    return {"found": SOURCES["papers"]}


def read(state: Any) -> dict[str, Any]:
    clock.work(3.4)
    return {"found": state["found"]}


def news(state: Any) -> dict[str, Any]:
    clock.work(2.2)
    return {"found": SOURCES["news"]}


_tries: dict[str, int] = {}


def archive(state: Any) -> dict[str, Any]:
    """The first time it is asked for a topic, it is too slow."""
    topic = state["topic"]
    _tries[topic] = _tries.get(topic, 0) + 1
    if _tries[topic] == 1:
        clock.work(1.6)
        raise TimeoutError("the archive didn't answer")
    clock.work(1.2)
    return {"found": SOURCES["archive"]}


def combine(parallel_results: Any) -> dict[str, Any]:
    clock.work(0.6)
    return {"pages": [page for each in parallel_results for page in each["found"]]}


def load(state: Any) -> dict[str, Any]:
    clock.work(0.6 + len(state["page"]) / 40)
    return {"words": 140 + 17 * len(state["page"])}


def rate(state: Any) -> dict[str, Any]:
    clock.work(1.4 * MODELS[state["model"]])
    if state["page"].endswith("1911") and state["model"] == "small":
        raise EmptyPage(f"“{state['page']}” is a scan, and the model sees no text")
    return {"rating": 1 + len(state["page"]) % 5}


def rank(parallel_results: Any) -> dict[str, Any]:
    clock.work(0.4)
    return {"ratings": {each["page"]: each["rating"] for each in parallel_results}}


def write(state: Any) -> dict[str, Any]:
    for word in REPORT.split():
        emit(word + " ")
        clock.work(0.2)
    return {"report": REPORT}


def review(state: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "verdict": {"enum": ["publish", "revise", "drop"]},
            "readers": {"type": "array", "items": {"enum": ["divers", "schools", "press"]}},
            "note": {"type": "string", "description": "for the author"},
        },
        "required": ["verdict"],
    }
    return {"verdict": pause(f"What now with the report on “{state['topic']}”?", schema=schema)["verdict"]}


def publish(state: Any) -> dict[str, Any]:
    clock.work(0.8)
    return {"published": True}


def research() -> StateGraph:
    """Branches, one of which is slow, and a map, of which one page may fail."""
    page = StateGraph({"page": str, "model": str, "words": int, "rating": int}, name="page")
    page.add_node("load", run=load)
    page.add_node("rate", run=rate, retry=Retry(attempts=3, backoff=2.0, jitter=0))
    page.set_entry_point("load").add_edge("load", "rate").set_finish_point("rate")
    keys = {"topic": str, "model": str, "budget": float, "pages": list, "ratings": dict, "report": str}
    graph = StateGraph(keys, name="research")
    for node in (plan, approve, papers, read, news, write, review, publish):
        graph.add_node(node.__name__, run=node)
    graph.add_node("archive", run=archive, retry=Retry(attempts=2, backoff=1.4, jitter=0))
    graph.add_fanin_node("combine", run=combine)
    graph.add_fanin_node("rank", run=rank)
    graph.set_entry_point("plan").add_edge("plan", "approve")
    for branch in ("papers", "news", "archive"):
        graph.add_parallel_edge("approve", branch, "combine")
    graph.add_edge("papers", "read")
    graph.add_map("combine", page, "pages", "rank", item="page", max_concurrency=2)
    graph.add_edge("rank", "write").add_edge("write", "review")
    verdicts = {"publish": "publish", "revise": "write", "drop": END}
    graph.add_conditional_edges("review", lambda state: state["verdict"], verdicts)
    return graph.set_finish_point("publish")


def outline(state: Any) -> dict[str, Any]:
    clock.work(1.2)
    return {"words": 400, "notes": [f"what is new about {state['topic']}?"]}


def draft(state: Any) -> dict[str, Any]:
    clock.work(2.4)
    return {"title": f"All about {state['topic']}", "notes": ["first draft"]}


def edit(state: Any) -> dict[str, Any]:
    return {"verdict": pause(f"Publish “{state['title']}”?", choices=["yes", "no"])}


def article() -> StateGraph:
    """A cycle with a question."""
    keys = {"topic": str, "words": int, "title": str, "notes": Annotated[list, append], "verdict": str}
    graph = StateGraph(keys, name="article")
    for name, node in (("outline", outline), ("draft", draft), ("edit", edit), ("publish", publish)):
        graph.add_node(name, run=node)
    graph.set_entry_point("outline").set_finish_point("publish")
    graph.add_edge("outline", "draft").add_edge("draft", "edit")
    return graph.add_conditional_edges(
        "edit", lambda state: state["verdict"], {"yes": "publish", "no": "draft"}
    )


def prices(day: str) -> dict[str, Any]:
    clock.work(2.0)
    if day == "2026-05-10":
        raise ConnectionError("the supplier closed the connection")
    return {"rows": 1200}


def stock() -> dict[str, Any]:
    clock.work(3.2)
    return {"rows": 900}


def photos() -> int:
    clock.work(2.6)
    return 410


def resize(photos: int) -> int:
    clock.work(1.2)
    return photos


def convert(merge: int, day: str) -> int:
    if day != NOW.date().isoformat():
        clock.work(6.0)
        return merge - 13
    for done in range(0, 340, 20):
        progress(done, merge)
        clock.work(1.0)
    clock.closing_time.wait()
    return 0


def check(merge: int) -> bool:
    clock.work(1.0)
    return merge > 0


def merge(prices: dict[str, Any], stock: dict[str, Any]) -> int:
    clock.work(0.8)
    return max(prices["rows"], stock["rows"])


def rebuild(convert: int) -> Any:
    schema = {
        "type": "object",
        "properties": {
            "strategy": {"enum": ["all", "changed"], "title": "What to rebuild"},
            "keep": {"type": "array", "items": {"enum": ["logs", "caches", "reports"]}},
            "attempts": {"type": "integer", "default": 3},
            "reason": {"type": "string", "description": "for the log"},
        },
        "required": ["strategy", "reason"],
    }
    return pause(f"{convert:,} rows are in. How shall the index be rebuilt?", schema=schema)


def catalogue() -> Workflow:
    """Tasks that depend on each other, of which one asks for several things."""
    flow = Workflow("catalogue", preserve=True)
    flow.add_task("prices", prices, retry=Retry(attempts=2, backoff=5.0, jitter=0))
    flow.add_task("stock", stock)
    flow.add_task("photos", photos)
    flow.add_task("merge", merge, ["prices", "stock"])
    flow.add_task("check", check, ["merge"])
    flow.add_task("convert", convert, ["merge"])
    flow.add_task("resize", resize, ["photos"])
    flow.add_task("rebuild", rebuild, ["convert", "check", "resize"])
    return flow.add_task("announce", lambda rebuild: clock.work(0.4), ["rebuild"])


class ShownRuns:
    """A store with the runs of a day, and the graphs by name."""

    def __init__(self) -> None:
        self.store = MemoryStore(clock)
        self.graphs: dict[str, Any] = {
            each.name: each.compile(store=self.store, preserve=True, lease=LEASE)
            for each in (article(), research(), catalogue())
        }
        self.runs = Runs(self.store, graphs=list(self.graphs.values()))

    def fill(self) -> None:
        """Let the day happen, up to what runs now."""
        self._yesterday()
        self._this_morning()

    def _yesterday(self) -> None:
        clock.before(days=1, hours=1)
        self._run("catalogue", "catalogue-10", {"day": "2026-05-10"}, tags=["nightly"])
        clock.before(hours=19)
        self._run("article", "limpets", {"topic": "limpets"}, answers=["no", "yes"])
        clock.before(hours=17)
        self._run("article", "barnacles", {"topic": "barnacles"})
        clock.before(hours=16)
        self.runs.cancel("barnacles")
        clock.before(hours=9)
        self._run("catalogue", "catalogue-11", {"day": "2026-05-11"}, tags=["nightly"])
        clock.before(hours=6)
        self._run("research", "sponges", {"topic": "Sponges", "model": "large"}, answers=["yes"])

    def _this_morning(self) -> None:
        clock.before(hours=3)
        self._run("article", "sea-grass", {"topic": "sea grass"}, answers=["yes"])
        clock.before(minutes=23)
        self._run("research", "rocky-shores", {"topic": "Rocky shores", "model": "small"}, tags=["weekly"])
        clock.skip(minutes=9)
        self._answer("research", "rocky-shores", "yes")
        clock.before(minutes=8)
        self._run("article", "kelp-forests", {"topic": "kelp forests"})
        self.graphs["article"].start({"topic": "the full moon"}, run_id="full-moon", delay=3 * 3600)
        clock.before(minutes=2)
        self.graphs["research"].start({"topic": "Currents", "model": "small"}, run_id="currents")
        clock.before(seconds=20)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the block runs, so does one of the runs."""
        arguments = ("catalogue", "catalogue-12", {"day": NOW.date().isoformat()})
        worker = threading.Thread(target=self._run, args=arguments)
        worker.start()
        until(lambda: clock() >= NOW.timestamp() - 1, "the work up to now")
        clock.skip_to(NOW.timestamp())
        try:
            yield
        finally:
            clock.closing_time.set()
            worker.join()

    def fork(self) -> None:
        """Do again what has failed, with a better model."""
        self.runs.fork("rocky-shores", 6, {"model": "large"}, new_run_id="rocky-shores-large")
        self._resume("research", "rocky-shores-large")

    def _run(self, graph: str, run_id: str, given: Any, tags: Any = (), answers: Any = ()) -> None:
        self.graphs[graph].start(given, run_id=run_id, tags=tags)
        self._resume(graph, run_id)
        for answer in answers:
            clock.skip(minutes=4)
            self._answer(graph, run_id, answer)

    def _answer(self, graph: str, run_id: str, answer: Any) -> None:
        self.runs.answer(run_id, answer, by="ann")
        self._resume(graph, run_id)

    def _resume(self, graph: str, run_id: str) -> None:
        with suppress(LimpetError, RunPaused):
            self.graphs[graph].resume(run_id)
