"""The server with many runs and long ones: `python benchmarks/serving.py [--runs 100000] [--steps 20000] [--json]`.

`limpet serve` is a process of its own, over a SQLite database on a RAM disk, which isn't flushed. This process is its
client, over HTTP with one connection that is kept. What is idle is measured for `--idle` seconds each (20). CPU times
are read from `/proc`, so they are missing on other systems than Linux.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from threading import Thread
from time import perf_counter, sleep, time
from typing import Any
from urllib.parse import quote

from lists import fill
from measure import folder
from serving_graphs import ASKING, LIVE, LONG, MAP, TASKS, build, counting

from limpet import RunPaused, open_store

PREFIX = "/api/v1"
PARTS = ("lists", "pages", "long", "increments", "live", "idle")
REPEATS = 30
SLOW_STEPS = 500
SLOW_STEP = 0.01
VISITS = 10
NOTES_WHEN = """
new MutationObserver((changes, observer) => {
  if (!document.querySelector("SHOWN")) return;
  window.shownAt = performance.now();
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });
"""
"""Has the page note when something is there: in milliseconds since the browser began to load it."""
BROWSER_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
SETTLING = 8.0
"""Seconds after which followers are quiet."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. Times in milliseconds, of `times` requests; `goal` is for the 95th percentile."""

    what: str
    p50: float
    p95: float
    unit: str = "ms"
    goal: float | None = None
    times: int = 1
    size: int = 0

    @property
    def met(self) -> bool:
        return self.goal is None or self.p95 <= self.goal


class Client:
    """One connection to the server."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def get(self, path: str) -> bytes:
        """The body of an answer. Raises for an error."""
        self._connection.request("GET", PREFIX + path, headers=self.headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return body

    def stream(self, path: str) -> Iterator[tuple[str, Any]]:
        """The messages of a stream: their kinds and contents."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", PREFIX + path, headers=self.headers)
        answer = connection.getresponse()
        kind = ""
        for line in answer:
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:])
        connection.close()


class Server:
    """`limpet serve` in a process of its own."""

    def __init__(self, url: str) -> None:
        command = [
            sys.executable,
            "-m",
            "limpet",
            "serve",
            "--store",
            url,
            "--port",
            "0",
            "--json",
            "--no-browser",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        text = ""
        while "}" not in text:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("limpet serve didn't start")
            text += line
        where = json.loads(text)
        self.client = Client(where["port"], where["token"])

    def cpu(self) -> float:
        """Seconds of CPU that it has used; not a number where that isn't known."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Megabytes that it uses."""
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return float("nan")
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def serving(url: str) -> Iterator[Server]:
    server = Server(url)
    try:
        yield server
    finally:
        server.stop()


def timed(what: str, call: Callable[[], bytes], goal: float | None = None, repeats: int = REPEATS) -> Line:
    """How long a request takes."""
    taken = []
    size = 0
    for _ in range(repeats):
        began = perf_counter()
        size = len(call())
        taken.append((perf_counter() - began) * 1000)
    return Line(what, median(taken), _p95(taken), "ms", goal, repeats, size)


def _p95(taken: list[float]) -> float:
    if len(taken) < 2:
        return taken[0]
    return quantiles(taken, n=20, method="inclusive")[-1]


def lists(client: Client) -> Iterator[Line]:
    """Requests about many runs."""
    for what, path in (
        ("50 newest runs", "/runs?limit=50"),
        ("failed runs", "/runs?limit=50&status=failed"),
        ("running runs", "/runs?limit=50&status=running"),
        ("runs with a tag", "/runs?limit=50&tag=common"),
        ("runs of a graph", "/runs?limit=50&graph=rare"),
        ("failed runs of a graph in the last hour", "/runs?limit=50&graph=common&status=failed&since=1h"),
        ("runs with an error", "/runs?limit=50&error=KeyError"),
        ("runs with a text in their error", "/runs?limit=50&text=message+7"),
        ("runs with a text that is nowhere", "/runs?limit=50&text=nowhere"),
        ("counts by status, known already", "/counts"),
        ("questions", "/questions"),
        ("workers", "/workers"),
        ("one run", f"/runs/{LONG}"),
    ):
        goal = None if "text" in path else 50
        yield timed(what, partial(client.get, path), goal)
    for what, filters in (
        ("counts by status", ""),
        ("counts of a graph", "&graph=rare"),
        ("counts of runs with a tag", "&tag=common"),
    ):
        yield timed(what, first_asked(client, filters), 150)


def first_asked(client: Client, filters: str) -> Callable[[], bytes]:
    """Requests for counts of which the server doesn't know the answer yet, as each is about another time."""
    hours = count(1000)
    return lambda: client.get(f"/counts?since={next(hours)}h{filters}")


def long_run(url: str, steps: int) -> Iterator[Line]:
    """Requests about a run of many steps, and about those of many branches and tasks."""
    for run, what in ((LONG, "steps"), (MAP, "branches"), (TASKS, "tasks")):
        with serving(url) as server:
            server.client.get(f"/runs/{run}")
            yield from timeline(server, run, what)
            if run == LONG:
                yield from state_and_history(server.client, steps)


def timeline(server: Server, run: str, what: str) -> Iterator[Line]:
    """Requests for the timeline of a run, which the server hasn't read yet."""
    get = partial(server.client.get, f"/runs/{run}/timeline?limit=2000")
    before = server.memory()
    yield timed(f"timeline of many {what}: first page, cold", get, None, 1)
    began = perf_counter()
    version, rows = read_timeline(server.client, run)
    yield Line(f"  all {rows:,} rows", *[(perf_counter() - began) * 1000] * 2)
    yield Line("  memory for them", *[server.memory() - before] * 2, "MB")
    yield timed("  first page, warm", get, 300)
    after = f"/runs/{run}/timeline?after={version}&limit=2000"
    yield timed("  nothing new", partial(server.client.get, after), 20)
    yield timed("  one row", partial(server.client.get, f"/runs/{run}/timeline/{rows // 2}"), 300)


def read_timeline(client: Client, run: str) -> tuple[str, int]:
    """The version of a whole timeline, and how many rows it has."""
    version = ""
    while True:
        answer = json.loads(client.get(f"/runs/{quote(run)}/timeline?limit=2000&after={version}"))
        version = answer["version"]
        if not answer["more"]:
            return version, answer["total"]


def state_and_history(client: Client, steps: int) -> Iterator[Line]:
    middle = steps // 2
    for what, path in (
        ("state in the middle", f"state?step={middle}"),
        ("state, newest", "state"),
        ("difference in the middle", f"diff?a={middle - 1}&b={middle}"),
        ("difference, newest", f"diff?a={steps - 1}&b={steps}"),
        ("history, first page", "history?limit=100"),
        ("history, a page in the middle", f"history?limit=100&after={middle}"),
        ("events, first page", "events?limit=100"),
    ):
        yield timed(f"  {what}", partial(client.get, f"/runs/{LONG}/{path}"), 100, 10)


def pages(server: Server) -> Iterator[Line]:
    """The page in a real browser: in a new one that has nothing of it yet, and there again."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or find_spec("playwright") is None:
        print("no browser, or no Playwright: the page isn't measured", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    root = f"http://127.0.0.1:{server.client.port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(BROWSER_OPTIONS))
        for what, path, shown in (
            ("the list", "/", ".run-row"),
            ("a run of many steps", f"/runs/{LONG}", ".timeline-row"),
        ):
            taken: dict[str, list[float]] = {"first visit": [], "again": []}
            for _ in range(VISITS):
                with browser.new_context() as visitor:
                    page = visitor.new_page()
                    page.add_init_script(NOTES_WHEN.replace("SHOWN", shown))
                    for visit, query in (
                        ("first visit", f"?token={quote(server.client.token)}"),
                        ("again", ""),
                    ):
                        page.goto(f"{root}{path}{query}")
                        page.locator(shown).first.wait_for()
                        taken[visit].append(page.evaluate("window.shownAt"))
            for visit, times in taken.items():
                yield Line(f"page: {what}, {visit}", median(times), _p95(times), "ms", None, VISITS)
        browser.close()


def increments(url: str) -> Iterator[Line]:
    """One more step of a long run, which a client then reads."""
    with serving(url) as server:
        graph = counting(url, stops=True)
        version, _ = read_timeline(server.client, LIVE)
        taken = []
        for _ in range(REPEATS):
            with suppress(RunPaused):
                graph.resume(LIVE)
            began = perf_counter()
            answer = json.loads(server.client.get(f"/runs/{LIVE}/timeline?after={version}&limit=2000"))
            taken.append((perf_counter() - began) * 1000)
            assert 0 < len(answer["rows"]) < 10, answer
            version = answer["version"]
        yield Line("timeline after one more step", median(taken), _p95(taken), "ms", 20, REPEATS)


def live(url: str, steps: int) -> Iterator[Line]:
    """Clients follow a run that another process executes: many quick steps, then some that take 10 ms each."""
    for number, pause in ((steps, 0.0), (SLOW_STEPS, SLOW_STEP)):
        pace = f"steps of {pause * 1000:g} ms" if pause else "quick steps"
        for path in ("live", "timeline/live"):
            with serving(url) as server:
                run = f"{pace} on {path}"
                before = server.cpu()
                lags = followed(url, server.client, run, path, number, pause)
                used = server.cpu() - before
                goal = None if not pause else 1000.0
                yield Line(f"live {path}, {pace}: lag", median(lags), _p95(lags), "ms", goal, len(lags))
                yield Line("  CPU of the server for each step", *[used / number * 1e6] * 2, "µs")


def followed(url: str, client: Client, run: str, path: str, steps: int, pause: float) -> list[float]:
    """How much later than it happened a client got each message, in milliseconds."""
    script = str(Path(__file__).with_name("serving_graphs.py"))
    command = [sys.executable, script, url, run, str(steps), str(pause)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()  # the run is stored
    lags = []
    for name, data in client.stream(f"/runs/{quote(run, safe='')}/{path}"):
        if process.stdin.closed is False:
            process.stdin.close()  # it begins
        if name == "end":
            break
        ends = [row["end"] for row in data.get("rows", ()) if "end" in row]
        if name == "event" and data["type"] == "step":
            ends = [data["at"]]
        if ends:
            lags.append((time() - max(ends)) * 1000)
    process.wait()
    return lags


def idle(url: str, seconds: float) -> Iterator[Line]:
    """The server's own CPU while nothing happens."""
    for clients, path in (
        (0, ""),
        (1, "/live"),
        (1, f"/runs/{ASKING}/live"),
        (1, f"/runs/{ASKING}/timeline/live"),
        (20, "/live"),
        (20, f"/runs/{ASKING}/live"),
        (20, f"/runs/{ASKING}/timeline/live"),
    ):
        with serving(url) as server:
            for _ in range(clients):
                Thread(target=follow, args=(server.client, path), daemon=True).start()
            server.client.get("/runs?limit=50")
            sleep(SETTLING)
            before = server.cpu()
            began = perf_counter()
            sleep(seconds)
            used = (server.cpu() - before) / (perf_counter() - began) * 100
            yield Line(f"idle, {clients} clients {path}", used, used, "% of a core", 1.0)


def follow(client: Client, path: str) -> None:
    """Read a stream until the server ends."""
    try:
        for _ in client.stream(path):
            pass
    except (OSError, http.client.HTTPException):
        return


def main(args: Namespace) -> int:
    """Build the store, measure, and print a line for each; the exit status says whether every goal was met."""
    lines: list[Line] = []
    with folder() as path:
        url = f"sqlite:///{path}/runs.db?level=process"
        store = open_store(url)
        began = perf_counter()
        fill(store, args.runs)
        build(url, args.steps, args.tasks)
        store.close()
        if not args.json:
            print(
                f"{args.runs:,} runs, one of {args.steps:,} steps: built in {perf_counter() - began:.0f} s\n"
            )
            print(f"{'what':50} {'p50':>10} {'p95':>10}")
        for part in parts(url, args):
            for line in part:
                lines.append(line)
                if not args.json:
                    print(_text(line), flush=True)
    if args.json:
        print(json.dumps([{**asdict(line), "met": line.met} for line in lines], indent=1))
    return 0 if all(line.met for line in lines) else 1


def parts(url: str, args: Namespace) -> Iterator[Iterator[Line]]:
    chosen = args.only or list(PARTS)
    if "lists" in chosen:
        with serving(url) as server:
            yield lists(server.client)
    if "pages" in chosen:
        with serving(url) as server:
            yield pages(server)
    if "long" in chosen:
        yield long_run(url, args.steps)
    if "increments" in chosen:
        yield increments(url)
    if "live" in chosen:
        yield live(url, args.steps)
    if "idle" in chosen:
        yield idle(url, args.idle)


def _text(line: Line) -> str:
    digits = 2 if line.p95 < 10 else 0
    aim = "" if line.goal is None else f"   ≤ {line.goal:g}"
    missed = "" if line.met else "   MISSED"
    size = f"   {line.size / 1000:,.0f} kB" if line.size else ""
    return (
        f"{line.what:50} {line.p50:>10,.{digits}f} {line.p95:>10,.{digits}f} {line.unit}{aim}{missed}{size}"
    )


def arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--idle", type=float, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="*", choices=PARTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(arguments()))
