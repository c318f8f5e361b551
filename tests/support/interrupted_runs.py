"""Runs that are interrupted again and again, and what must hold afterwards. A program: see `main`.

After each interrupt the run is resumed: by this process, or by another one that shares nothing but the store. Its
result must be that of an uncut run, no step that was reported as saved may be repeated, and another thread of this
process must be able to save.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from limpet import (
    AlreadyCompleted,
    NodeContext,
    RunNotFound,
    Runs,
    State,
    StateGraph,
    Workflow,
    open_store,
    supervise,
)
from limpet.testing.interrupts import HuntReport, hunt_at_every_point, hunt_at_random

SHAPES = ("loop", "parallel", "workflow", "threads", "async", "supervisor")
PATIENCE = 30.0
"""Seconds within which everything that is waited for has happened."""
LEASE = 2.0
STEPS = 4
BACKGROUND_PAUSE = 0.005
OTHER_PROCESS_EVERY = 10
"""Every how many interrupts the run is left to another process."""
PACKAGES = ("limpet/", "/threading.py", "/queue.py", "/concurrent/futures/", "/psycopg/", "/redis/")
"""Whose code is interrupted at every point."""

saved: set[tuple[str, str]] = set()
repeated: list[tuple[str, str]] = []


def called(run_id: str, step: str) -> None:
    """A step of a run begins. It must not be one that was reported as saved."""
    if (run_id, step) in saved:
        repeated.append((run_id, step))


def note_saved(run_id: str, event: dict[str, Any]) -> None:
    """A run has reported an event."""
    if event["type"] == "state":
        saved.add((run_id, f"{event['node']}{event['state'].get('n', '')}"))
    elif event["type"] == "task_complete":
        saved.add((run_id, event["task"]))


def loop_graph() -> StateGraph:
    """A node that counts to `STEPS`."""

    def again(state: State, ctx: NodeContext) -> dict[str, Any]:
        following = state.get("n", 0) + 1
        called(ctx.run_id, f"again{following}")
        return {"n": following, "path": [*state.get("path", []), following]}

    graph = StateGraph(name="loop").add_node("again", run=again)
    graph.set_entry_point("again").set_finish_point("again")
    return graph.add_edge("again", "again", lambda state: state["n"] < STEPS)


def parallel_graph() -> StateGraph:
    """Branches that keep results with `once`, a map, and their fan-ins."""

    def source(state: State, ctx: NodeContext) -> dict[str, Any]:
        called(ctx.run_id, "src")
        return {"items": [1, 2, 3]}

    def branch(name: str) -> Callable[..., Any]:
        def work(state: State, ctx: NodeContext) -> dict[str, Any]:
            called(ctx.run_id, name)
            return {name: ctx.once(name, lambda: name.upper())}

        return work

    async def awaited(state: State, ctx: NodeContext) -> dict[str, Any]:
        called(ctx.run_id, "c")
        await asyncio.sleep(0)
        return {"c": "C"}

    def join(state: State, parallel_results: Any) -> dict[str, Any]:
        return {"joined": sorted("".join(sorted(set(dict(each)) & set("abc"))) for each in parallel_results)}

    def double(state: State) -> dict[str, Any]:
        return {"doubled": state["item"] * 2}

    def total(state: State, parallel_results: Any) -> dict[str, Any]:
        return {"total": sum(each["doubled"] for each in parallel_results)}

    graph = StateGraph(name="parallel").add_node("src", run=source)
    for name, function in {"a": branch("a"), "b": branch("b"), "c": awaited}.items():
        graph.add_node(name, run=function).add_parallel_edge("src", name, "join")
    graph.add_fanin_node("join", run=join).add_node("double", run=double)
    graph.add_map("join", "double", over="items", fan_in="total").add_fanin_node("total", run=total)
    return graph.set_entry_point("src").set_finish_point("total")


def workflow() -> Workflow:
    """Two layers of tasks."""

    def task(name: str, value: int) -> Callable[..., Any]:
        def work(ctx: NodeContext) -> int:
            called(ctx.run_id, name)
            return value

        return work

    def add(x: int, y: int, ctx: NodeContext) -> int:
        called(ctx.run_id, "add")
        return x + y

    made = Workflow("workflow").add_task("x", task("x", 1)).add_task("y", task("y", 2))
    return made.add_task("add", add, depends_on=("x", "y"))


def result_of(state: Any) -> Any:
    """What is compared of a final state."""
    if hasattr(state, "results"):
        return {name: state.results[name] for name in sorted(state.results)}
    return dict(state)


class Bench:
    """A graph on a store, and how to run it."""

    def __init__(self, shape: str, url: str) -> None:
        self.url = url
        self.store: Any = open_store(url)
        self.shape = shape
        self.graph: Any = self._graph()
        if shape == "workflow":
            self.graph.store = self.store
        self.number = itertools.count()
        self.run_id = ""
        self.expected = result_of(self.graph.execute({}, run_id=self.next_id()))
        self.problems: list[str] = []

    def _graph(self) -> Any:
        if self.shape == "parallel":
            return parallel_graph().compile(store=self.store, preserve=True, lease=LEASE)
        if self.shape == "workflow":
            return workflow().compile(store=self.store, preserve=True, lease=LEASE)
        return loop_graph().compile(store=self.store, preserve=True, lease=LEASE)

    def next_id(self) -> str:
        self.run_id = f"{os.getpid()}-{next(self.number)}"
        return self.run_id

    def work(self) -> None:
        """A run, from its start to its end."""
        run_id = self.next_id()
        for event in self.graph.stream({}, run_id=run_id):
            note_saved(run_id, event)

    async def _awork(self) -> None:
        run_id = self.next_id()
        # Nothing runs on when this task has ended: then asyncio lets SIGINT raise, in its own code too.
        async with asyncio.TaskGroup() as others:
            for number in range(3):
                others.create_task(self.graph.aexecute({}, run_id=f"{run_id}-{number}"))
            async for event in self.graph.astream({}, run_id=run_id):
                note_saved(run_id, event)

    def work_async(self) -> None:
        """The same on an event loop, with other runs on it."""
        # The last round may have been interrupted while asyncio put this handler back.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runner = asyncio.Runner()
        try:
            runner.run(self._awork())
        except asyncio.CancelledError:  # what asyncio makes of SIGINT before the task has begun
            raise KeyboardInterrupt from None
        finally:
            # An interrupt here leaves a coroutine of asyncio that joins threads when it is collected, wherever that
            # is: in `Thread.start` it hangs for ever.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            runner.close()

    def finish(self, run_id: str) -> Any:
        """Resume a run to its end, or start it if it was never created; its result."""
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                return self._resumed_or_started(run_id)
            except AlreadyCompleted:
                return self.stored_result(run_id)
            except Exception:
                if time.monotonic() > ends:
                    raise

    def _resumed_or_started(self, run_id: str) -> Any:
        try:
            return result_of(self.graph.resume(run_id, wait=PATIENCE))
        except RunNotFound:
            # A server may create it even now: it got the request, and doesn't know that the one who asked is gone.
            return result_of(self.graph.execute({}, run_id=run_id))

    def stored_result(self, run_id: str) -> Any:
        if self.shape == "workflow":
            return result_of(self.graph.state_at(run_id))
        return result_of(Runs(self.store).state(run_id))


class Checks:
    """What must hold after an interrupt."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.rounds = 0
        self.others = 0
        self.slowest = 0.0
        self.helper = None if bench.url == "memory://" else OtherProcess(bench)

    def __call__(self) -> None:
        self.rounds += 1
        bench = self.bench
        began = time.monotonic()
        self._another_thread_saves()
        if self.helper is not None and self.rounds % OTHER_PROCESS_EVERY == 0:
            self.others += 1
            found = self.helper.finish(bench.run_id)
        else:
            found = bench.finish(bench.run_id)
        expected = bench.expected
        assert found == expected, f"{bench.run_id}: {found!r} instead of {expected!r}"
        assert not repeated, f"steps repeated after they were reported as saved: {repeated}"
        self.slowest = max(self.slowest, time.monotonic() - began)

    def _another_thread_saves(self) -> None:
        results: list[Any] = []
        run_id = f"{os.getpid()}-check-{self.rounds}"

        def run() -> None:
            results.append(result_of(self.bench.graph.execute({}, run_id=run_id)))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"another thread can't save any more:\n{all_stacks()}"
        assert results == [self.bench.expected]


class OtherProcess:
    """Another process that resumes runs in the same store."""

    def __init__(self, bench: Bench) -> None:
        command = [sys.executable, __file__, bench.shape, "--store", bench.url, "--resume"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def finish(self, run_id: str) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(run_id + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert "problem" not in answer, f"another process can't resume {run_id}: {answer['problem']}"
        return answer["result"]


class BackgroundRuns:
    """Threads that run graphs all the time."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self.ended = [0] * count
        self.problem = ""
        self._stopped = False
        for number in range(count):
            threading.Thread(target=self._work, args=(number,), daemon=True).start()

    def _work(self, number: int) -> None:
        for round_ in itertools.count():
            if self._stopped:
                return
            run_id = f"{os.getpid()}-background-{number}-{round_}"
            try:
                found = result_of(self._bench.graph.execute({}, run_id=run_id))
                assert found == self._bench.expected, found
            except Exception as problem:
                self.problem = f"{type(problem).__name__}: {problem}"
            self.ended[number] += 1
            # Without a pause, the thread that is interrupted would hardly get the interpreter.
            time.sleep(BACKGROUND_PAUSE)

    def stop(self) -> None:
        self._stopped = True

    def check(self) -> None:
        """Each of them still makes progress."""
        before = list(self.ended)
        ends = time.monotonic() + PATIENCE
        while any(now <= then for now, then in zip(self.ended, before, strict=True)):
            assert time.monotonic() < ends, f"background runs don't go on:\n{all_stacks()}"
            time.sleep(0.0005)
        assert not self.problem, self.problem


def all_stacks() -> str:
    """What all threads are doing."""
    import traceback

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        found.append(f"{names.get(ident)}:\n{''.join(traceback.format_stack(frame)[-6:])}")
    return "\n".join(found)


def work_under_supervisor(bench: Bench) -> Callable[[], None]:
    """Queue runs for a supervisor of this process, and wait for them."""
    bench.graph.name = "loop"

    def work() -> None:
        run_id = bench.next_id()
        with supervise(bench.store, [bench.graph], lease=LEASE, poll=0.05, grace=PATIENCE):
            queued = bench.graph.start({}, run_id=run_id)
            queued.wait(PATIENCE)

    return work


def hunt(shape: str, url: str, mode: str, count: int, seed: int) -> tuple[HuntReport, dict[str, Any]]:
    """Interrupt runs of this shape, `count` times at random or at `count` points (0: all of them)."""
    bench = Bench(shape, url)
    checks = Checks(bench)
    work: Callable[[], None] = bench.work
    check: Callable[[], None] = checks
    signum = 0
    background = None
    if shape == "threads":
        background = BackgroundRuns(bench, 3)

        def check() -> None:
            checks()
            background.check()

    elif shape == "async":
        work = bench.work_async
        signum = signal.SIGINT
    elif shape == "supervisor":
        work = work_under_supervisor(bench)
    threads = threading.active_count()
    if mode == "random":
        report = hunt_at_random(work, check, count, seed=seed, deadline=2 * PATIENCE, signum=signum)
    else:
        report = hunt_at_every_point(
            work, check, PACKAGES, deadline=2 * PATIENCE, seed=seed, limit=count or None
        )
    if background is not None:
        background.stop()
    left = [thread.name for thread in threading.enumerate()]
    return report, {
        "others": checks.others,
        "slowest": round(checks.slowest, 3),
        "threads": len(left) - threads,
        "names": sorted(set(left)),
    }


def resume_for_others(shape: str, url: str) -> Iterator[str]:
    """Answers to the run ids that are read from the standard input."""
    bench = Bench(shape, url)
    for line in sys.stdin:
        try:
            yield json.dumps({"result": bench.finish(line.strip())})
        except Exception as problem:
            yield json.dumps({"problem": f"{type(problem).__name__}: {problem}"})


def main() -> None:
    """Hunt, and print a report as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--mode", choices=("random", "points"), default="random")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    if given.resume:
        for answer in resume_for_others(given.shape, given.store):
            print(answer, flush=True)
        return
    # The handlers that a program has by default, whatever the shell has set.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report, more = hunt(given.shape, given.store, given.mode, given.count, given.seed)
    print(json.dumps({**report._asdict(), **more}), flush=True)
    # Threads that hang must not keep the process from its end.
    os._exit(0)


if __name__ == "__main__":
    main()
