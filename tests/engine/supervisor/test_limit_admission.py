"""Limits of whole runs: of graphs, and of queues. Runs wait in their queue until there is room. H18."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from time import monotonic, sleep
from typing import Any

import pytest

from limpet import (
    ExecutionError,
    Limit,
    Limits,
    MemoryStore,
    NodeContext,
    RunCancelled,
    RunPaused,
    Runs,
    Schedules,
    State,
    StateGraph,
    Workflow,
    pause,
    supervise,
)
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.engine.leases.limits.document import limit_name
from limpet.engine.supervisor.catalog import GraphCatalog, GraphsOnStore
from limpet.engine.supervisor.limit_admission import LimitAdmission
from limpet.engine.supervisor.schedule_firing import ScheduleFiring
from limpet.engine.supervisor.watch_loop import WatchLoop
from limpet.journal.store import NewRun, RunHead, Store
from limpet.testing import FakeClock, FaultyStore
from support.graphs import Via, single
from support.waiting import until

ONE = Limit("one", concurrency=1)
NEVER = 10_000.0


class Inside:
    """A node function that notes which runs are inside, and holds each up until it is let through."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.begun: list[str] = []
        self.times: list[float] = []
        self.most = 0
        self._open = False
        self._changed = threading.Condition()

    def __call__(self, state: State, ctx: NodeContext) -> dict[str, Any]:
        with self._changed:
            self.runs.append(ctx.run_id)
            self.begun.append(ctx.run_id)
            self.times.append(monotonic())
            self.most = max(self.most, len(self.runs))
            self._changed.wait_for(lambda: self._open, 60)
            self.runs.remove(ctx.run_id)
        return {"done": True}

    def let_all(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()


def held(store: Any, name: str = "one") -> list[str]:
    return [slot.run_id for slot in Limits(store).get(name).held]


def test_a_worker_claims_no_more_runs_of_a_graph_than_its_limit_allows(any_store: Store) -> None:
    """H18: the others stay queued, in order, and are executed as slots come back."""
    inside = Inside()
    graph = single(inside).compile(store=any_store, limits=[Limit("few", concurrency=2)])
    runs = Runs(any_store)
    with supervise(any_store, [graph], concurrency=8, poll=0.5) as supervisor:
        handles = [graph.start({}, run_id=name) for name in "abcde"]
        until(lambda: len(inside.runs) == 2)
        until(lambda: sorted(supervisor.running) == sorted(inside.runs))
        waiting = [name for name in "abcde" if name not in inside.runs]
        assert [runs.get(name).info.shown_status for name in waiting] == ["queued"] * 3
        assert sorted(held(any_store, "few")) == sorted(inside.runs)
        inside.let_all()
        for handle in handles:
            handle.result(timeout=60)
    assert inside.most == 2
    assert inside.begun.index("e") > 1
    until(lambda: held(any_store, "few") == [])


def test_a_full_limit_holds_up_no_other_graph() -> None:
    """H18: their runs are picked in place of those that have to wait, at once."""
    store = MemoryStore()
    inside = Inside()
    limited = single(inside, name="limited").compile(store=store, limits=[ONE])
    free = single(lambda state: {"n": 1}, name="free").compile(store=store)
    for number in range(10):
        limited.start({}, run_id=f"limited-{number}", priority=5)
    others = [free.start({}) for _ in range(20)]
    with supervise(store, [limited, free], concurrency=3, poll=NEVER):
        for handle in others:
            handle.result(timeout=60)
        assert len(inside.begun) == 1
        inside.let_all()
        until(lambda: len(inside.begun) == 10)
    assert inside.most == 1


def test_a_full_limit_is_not_asked_for_again_and_again() -> None:
    """H18: once at each look, however many runs wait and however many others end meanwhile."""
    store = MemoryStore()
    inside = Inside()
    limited = single(inside, name="limited").compile(store=store, limits=[ONE])
    free = single(lambda state: {"n": 1}, name="free").compile(store=store)
    client = client_for(store)
    asked: list[int] = []
    acquire = limits_of(client).acquire
    limits_of(client).acquire = lambda requests, stands_in_line: (  # type: ignore[method-assign]  # to count
        asked.append(len(requests)) or acquire(requests, stands_in_line)
    )
    for number in range(50):
        limited.start({}, run_id=f"limited-{number}")
    with supervise(store, [limited, free], concurrency=3, poll=NEVER) as supervisor:
        until(lambda: inside.runs)
        until(lambda: len(supervisor.running) == 1)
        looks = len(asked)
        for _ in range(5):
            free.start({}).result(timeout=60)
        assert len(asked) - looks <= 12  # each start and each end is a reason to look
        inside.let_all()
        until(lambda: len(inside.begun) == 50)


def lanes_in_line(store: Any) -> list[str]:
    """The graphs whose queued runs stand in line, in order."""
    return [each.graph for each in Limits(store).waiting("one") if each.graph]


def test_graphs_of_different_workers_take_turns(any_store: Store) -> None:
    """H18: no worker keeps the slots of a limit to itself."""
    begun: list[str] = []

    def take_turns(state: State, ctx: NodeContext) -> dict[str, Any]:
        graph = ctx.run_id.split("-")[0]
        begun.append(graph)
        other = "g2" if graph == "g1" else "g1"
        # Until a run of the other graph waits for it to end, unless that has no more.
        until(lambda: begun.count(other) == 4 or other in lanes_in_line(any_store))
        return {}

    graphs = [single(take_turns, name=name).compile(store=any_store, limits=[ONE]) for name in ("g1", "g2")]
    handles = [graph.start({}, run_id=f"{graph.name}-{n}") for graph in graphs for n in range(4)]
    with supervise(any_store, graphs[:1], poll=0.1), supervise(any_store, graphs[1:], poll=0.1):
        for handle in handles:
            handle.result(timeout=60)
    # The next run of the same graph may have stood in line before.
    assert max(len(list(row)) for _, row in groupby(begun)) <= 2


def test_a_run_that_a_caller_executes_has_its_turn_among_queued_ones(any_store: Store) -> None:
    """H18: it stands in line with them."""
    inside = Inside()
    graph = single(inside).compile(store=any_store, limits=[ONE])
    for number in range(10):
        graph.start({}, run_id=f"queued-{number}")
    with ThreadPoolExecutor(1) as threads, supervise(any_store, [graph], poll=0.1):
        until(lambda: inside.runs)
        mine = threads.submit(graph.execute, {}, run_id="mine-0")
        until(lambda: Limits(any_store).get("one").waiting == 2)
        inside.let_all()
        mine.result(60)
        until(lambda: len(inside.begun) == 11)
    assert inside.most == 1
    assert inside.begun.index("mine-0") <= 3


def test_whole_runs_have_their_turn_among_calls_of_the_same_limit() -> None:
    """H18: also if calls of nodes stand in its line all the time."""
    store = MemoryStore()
    begun: list[str] = []

    def visit(state: State, ctx: NodeContext) -> dict[str, Any]:
        graph = ctx.run_id.split("-")[0]
        begun.append(graph)
        # Until the next whole run waits for it to end, unless there is none.
        until(lambda: begun.count("whole") == 3 or "whole" in lanes_in_line(store))
        return {"n": state.get("n", 0) + 1}

    calls = StateGraph(name="calls").add_node("again", visit, limits=[ONE])
    calls.set_entry_point("again").set_finish_point("again")
    calls.add_edge("again", "again", lambda state: state["n"] < 5).compile(store=store)
    whole = single(visit, name="whole").compile(store=store, limits=["one"])
    handles = [graph.start({}, run_id=f"{graph.name}-{n}") for graph in (calls, whole) for n in range(3)]
    with supervise(store, [whole, calls], concurrency=6, poll=0.1):
        for handle in handles:
            handle.result(timeout=60)
    assert begun.count("calls") == 15
    places = [place for place, graph in enumerate(begun) if graph == "whole"]
    # Behind a call of each of the three other runs, at most, which stood in line before.
    assert places[0] <= 4
    assert all(later - earlier <= 4 for earlier, later in pairwise(places))


def test_runs_of_a_lane_keep_their_order_as_slots_are_released() -> None:
    """H18: a slot that is released while others were just refused doesn't go to one behind them."""
    store = MemoryStore()
    graph = single(lambda state: None).compile(store=store, limits=[ONE])
    other = single(lambda state: None, name="other").compile(store=store)
    for number in range(6):
        graph.start({}, run_id=f"r{number}")
    other.start({}, run_id="o")
    supervisor = supervise(store, [graph, other], concurrency=4, poll=NEVER)
    loop = supervisor.watch_loop
    admission = supervisor.resumer.admission
    admit = admission.admit

    def admit_and_release(picked: Any) -> Any:
        found = admit(picked)
        admission._full.clear()  # as if a run had released its slot at this moment
        return found

    admission.admit = admit_and_release  # type: ignore[method-assign]
    picked = [head.run_id for head in loop.pick(loop.ready())]
    assert sorted(picked) == ["o", "r0"]
    assert loop._backlog == []


def test_a_limit_holds_for_all_runs_of_a_queue(any_store: Store) -> None:
    """H18: whatever graph they are of; it is set in the store, and every worker knows."""
    inside = Inside()
    graphs = [single(inside, name=name).compile(store=any_store) for name in ("g1", "g2")]
    Limits(any_store).set("gpus", concurrency=1, queues=["gpu"])
    with supervise(any_store, graphs, concurrency=4, poll=0.5):
        on_gpu = [graph.start({}, queue="gpu") for graph in graphs]
        until(lambda: len(inside.runs) == 1)
        plain = graphs[0].start({})
        until(lambda: plain.id in inside.runs)
        assert len(inside.runs) == 2
        inside.let_all()
        for handle in (*on_gpu, plain):
            handle.result(timeout=60)


def test_a_limit_of_a_queue_that_a_graph_declares_holds_before_that_graph_has_a_run(any_store: Store) -> None:
    """H18: as soon as a worker knows the graph, also for workers that don't."""
    inside = Inside()
    declaring = single(inside, name="declares")
    declaring.compile(store=any_store, limits=[Limit("gpus", concurrency=1, queues=["gpu"])])
    other = single(inside, name="other").compile(store=any_store)
    handles = [other.start({}, queue="gpu") for _ in range(3)]
    with supervise(any_store, [declaring, other], concurrency=4, poll=0.2):
        until(lambda: len(inside.runs) == 1)
        with supervise(any_store, [other], concurrency=4, poll=0.2):
            handles.append(other.start({}, queue="gpu"))
            plain = [other.start({}), declaring.start({})]  # in another queue
            until(lambda: {handle.id for handle in plain} <= {*inside.runs})
            inside.let_all()
            for handle in (*handles, *plain):
                handle.result(timeout=60)
    assert inside.most == 3
    assert Limits(any_store).get("gpus").source("concurrency") == "code"


def test_a_rate_counts_a_run_once_when_it_is_first_executed() -> None:
    """H18: not when it is resumed after an answer."""
    store = MemoryStore()
    graph = single(lambda state: {"answer": pause("Ship it?")})
    graph.compile(store=store, limits=[Limit("slow", rate="2/hour")])
    with supervise(store, [graph], poll=0.1):
        first, second = graph.start({}), graph.start({})
        until(lambda: first.info.questions and second.info.questions)
        assert Limits(store).get("slow").begun == 2
        third = graph.start({})
        for handle in (first, second):
            handle.answer("yes")
            handle.result(timeout=60)
        assert Limits(store).get("slow").begun == 2
        assert third.info.shown_status == "queued"
        Limits(store).set("slow", rate=None)
        until(lambda: third.info.questions)


def test_a_rate_lets_runs_begin_as_soon_as_it_has_room() -> None:
    """H18: a worker wakes up for it, however rarely it looks otherwise."""
    store = MemoryStore()
    inside = Inside()
    inside.let_all()
    graph = single(inside).compile(store=store, limits=[Limit("slow", rate="2/0.4s")])
    handles = [graph.start({}) for _ in range(6)]
    began = monotonic()
    with supervise(store, [graph], poll=NEVER):
        for handle in handles:
            handle.result(timeout=60)
    # Not by the time between two nodes: a busy machine may begin one long after it was admitted.
    times = sorted(inside.times)
    assert times[2] - began > 0.39
    assert times[4] - began > 0.79


def test_slots_that_a_dead_worker_had_come_back(any_store: Store) -> None:
    """H18: of a worker that was about to claim a run, and of one that had claimed it."""
    client = client_for(any_store, 0.4)
    graph = single(lambda state: {"n": 1}).compile(store=any_store, lease=0.4, limits=[ONE])
    graph.execute({})
    lease = any_store.create(NewRun("dead", "g", [b"x"], holder="another machine", ttl=0.4))
    assert lease is not None
    assert limits_of(client).acquire([SlotRequest(lease, "", ("one",))], stands_in_line=False) == [None]
    handle = graph.start({}, run_id="mine")
    with supervise(any_store, [graph], lease=0.4, poll=0.1):
        handle.result(timeout=60)


@pytest.mark.parametrize("delay", ["before", "after"])
@pytest.mark.parametrize("lease", [0.4, 30.0])
def test_a_run_is_not_executed_with_a_slot_that_was_old_when_it_was_granted(lease: float, delay: str) -> None:
    """H18: on a store that is slow to write it, another worker takes the slot before the run is claimed."""
    memory = MemoryStore()
    inside = Inside()
    other = client_for(memory, 0.4)
    taken: list[SlotRequest] = []

    class Slow(FaultyStore):
        looks = 0

        def put_document(self, name: str, *args: Any, **kwargs: Any) -> Any:
            Slow.looks += 1
            is_slow = not taken and name == limit_name("one") and b"run-1" in args[0]
            if is_slow and delay == "before":
                sleep(0.5)
            written = super().put_document(name, *args, **kwargs)
            if is_slow:
                if delay == "after":
                    sleep(0.5)
                taken.append(SlotRequest(held_run.lease, "", ("one",)))
                assert limits_of(other).acquire(taken, stands_in_line=False) == [None]
            return written

        def list_documents(self, *args: Any, **kwargs: Any) -> Any:
            Slow.looks += 1
            return super().list_documents(*args, **kwargs)

    graph = single(inside).compile(store=memory, limits=[ONE])
    graph.start({}, run_id="run-2")
    held_run = other.claim("run-2")
    slow = Slow(memory)
    graph = single(inside).compile(store=slow, limits=[ONE])
    with supervise(slow, [graph], lease=lease, poll=0.05):
        graph.start({}, run_id="run-1")
        until(lambda: taken)
        looks = Slow.looks
        until(lambda: Slow.looks > looks + 5)
        assert inside.begun == []
        inside.let_all()
        limits_of(other).release(taken)
        until(lambda: inside.begun == ["run-1"])


def test_a_run_that_waits_for_a_slot_of_a_node_gives_up_that_of_its_graph() -> None:
    """H18: others may need it to get on."""
    store = MemoryStore()
    inside = Inside()
    graph = StateGraph(name="both").add_node("only", inside, limits=[ONE])
    graph.set_entry_point("only").set_finish_point("only").compile(
        store=store, limits=[Limit("run", concurrency=1)]
    )
    holder = single(inside, name="holder", limits=["one"]).compile(store=store)
    with supervise(store, [graph, holder], poll=0.1):
        graph.start({}, run_id="first")  # which declares both limits
        until(lambda: inside.runs == ["first"])
        holder.start({}, run_id="waits")
        until(lambda: Limits(store).get("one").waiting == 1)
        inside.let_all()
        for name in ("first", "waits"):
            Runs(store).get(name).wait(timeout=60)
    assert held(store, "run") == held(store) == []


# Runs that a caller executes


def test_runs_that_a_caller_executes_wait_in_place(any_store: Store) -> None:
    """H18: until they have the slots of their graph's limits."""
    inside = Inside()
    graph = single(inside).compile(store=any_store, limits=[Limit("few", concurrency=2)])
    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(graph.execute, {}) for _ in range(4)]
        until(lambda: len(inside.runs) == 2)
        inside.let_all()
        assert all(result.result(60)["done"] for result in results)
    assert inside.most == 2
    assert held(any_store, "few") == []


def test_many_runs_on_one_event_loop_wait_without_blocking_it() -> None:
    """H18: more than there are threads, and their nodes are sync."""
    store = MemoryStore()
    inside = Inside()
    inside.let_all()
    flow = Workflow("flow", store=store, limits=[ONE]).add_task("only", lambda ctx: inside({}, ctx))  # type: ignore[arg-type]

    async def main() -> None:
        await asyncio.gather(*(flow.aexecute({}) for _ in range(60)))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert len(inside.begun) == 60
    assert inside.most == 1


def test_a_run_that_waits_for_its_limit_can_be_cancelled_and_overdue(store: Any, via: Via) -> None:
    """H18: it is never called."""
    inside = Inside()
    graph = single(inside).compile(store=store, limits=[ONE])
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(graph.execute, {}, run_id="first")
        until(lambda: inside.runs)
        with pytest.raises(ExecutionError, match="deadline"):
            via.execute(graph, {}, deadline=0.2)
        second = threads.submit(via.execute, graph, {}, run_id="second")
        opened = graph.compiled().client.store  # type: ignore[union-attr]  # it has a store
        until(lambda: any(head.run_id == "second" for head in Runs(opened).list()))
        graph.get("second").cancel()
        with pytest.raises(RunCancelled):
            second.result(60)
        inside.let_all()
        first.result(60)
    assert inside.begun == ["first"]


def test_a_run_that_waits_for_a_child_of_its_own_graph_gives_its_slot_up(store: Any) -> None:
    """H18: the child needs it."""

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not state["depth"]:
            return {"sum": 0}
        child = ctx.start(graph, {"depth": state["depth"] - 1})
        return {"sum": ctx.join(child)["sum"] + 1}

    graph = single(work).compile(store=store, limits=[ONE])
    assert graph.execute({"depth": 2})["sum"] == 2
    assert held(store) == []


def test_the_limit_of_a_graph_that_has_paused_is_free(store: Any, via: Via) -> None:
    """H18: and a resume gets a slot again."""
    graph = single(lambda state: {"answer": pause("Ship it?")}).compile(store=store, limits=[ONE])
    via.paused(graph, {})
    assert held(store) == []
    assert via.resume(graph, "r", "yes")["answer"] == "yes"
    assert held(store) == []


def test_no_run_is_admitted_without_its_limit_as_the_store_fails() -> None:
    """H18: when the limit is declared, just before."""
    store = FaultyStore(MemoryStore())
    graph = single(lambda state: None).compile(store=store, limits=[ONE])
    graph.start({}, run_id="a")
    client = client_for(store)
    admission = LimitAdmission(client, GraphsOnStore(GraphCatalog([graph]), client, None))
    store.lose_ack("put_document")
    assert admission.admit([store.head("a")]) == []
    assert admission.admit([store.head("a")]) == [store.head("a")]
    assert held(store) == ["a"]


def test_a_run_that_another_worker_is_about_to_claim_holds_up_no_other() -> None:
    """H18: that worker may have crashed, so that the slot of this one run isn't free for the length of a lease."""
    store = MemoryStore()
    graph = single(lambda state: None).compile(store=store, limits=[Limit("few", concurrency=2)])
    for name in "ab":
        graph.start({}, run_id=name)
    clients = [client_for(store), LeaseClient(store)]
    one, other = (LimitAdmission(each, GraphsOnStore(GraphCatalog([graph]), each, None)) for each in clients)
    first, second = (store.head(name) for name in "ab")
    assert other.admit([first]) == [first]
    assert one.admit([first]) == []
    assert one.may_admit(second)
    assert one.admit([second]) == [second]


def test_a_rate_that_is_full_holds_up_no_run_that_has_begun() -> None:
    """H18: a rate counts a run once, so one that was left or whose worker died needn't wait for it."""
    store = MemoryStore()
    graph = single(lambda state: None).compile(store=store, limits=[Limit("slow", rate="1/hour")])
    for name in "abc":
        graph.start({}, run_id=name)
    store.claim("c", "a worker that crashed", 10)
    client = client_for(store)
    admission = LimitAdmission(client, GraphsOnStore(GraphCatalog([graph]), client, None))
    first, second, begun = (store.head(name) for name in "abc")
    assert admission.admit([first, second]) == [first]
    assert [admission.may_admit(head) for head in (second, begun)] == [False, True]
    assert admission.admit([begun]) == [begun]


def test_a_rate_counts_each_run_when_it_is_first_executed() -> None:
    """H18: a run may have been claimed before that: to be queued by a schedule, cancelled, or retried."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    begun: list[str] = []
    graph = single(lambda state, ctx: begun.append(ctx.run_id))
    graph.compile(store=store, limits=[Limit("slow", rate="1/hour")])
    graph.start({}, run_id="retried")
    graph.get("retried").cancel()
    graph.get("retried").retry()
    graph.start({}, run_id="delayed", delay=1)
    Schedules(store).add("each", graph, every="1m", catch_up="all", overlap="allow")
    clock.skip(minutes=2)
    ScheduleFiring(store, GraphCatalog([graph])).look()
    for hour in range(1, 5):
        graph.recover()
        assert len(begun) == hour
        assert Limits(store).get("slow").begun == 1
        clock.skip(hours=1, minutes=1)
    assert begun[:2] == ["retried", "delayed"]
    assert {run_id.partition(":")[0] for run_id in begun[2:]} == {"each"}


def test_a_rate_counts_a_run_once_that_pauses_or_whose_process_crashes() -> None:
    """H18: when it is resumed, it doesn't wait for the rate."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    graph = single(lambda state: {"said": pause("go on?")})
    graph.compile(store=store, limits=[Limit("slow", rate="2/hour")])
    graph.start({}, run_id="asked")
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="executed")
    graph.recover()
    assert Limits(store).get("slow").begun == 2
    graph.get("asked").answer("yes")
    store.claim("executed", "a process that crashed", 0.0)
    graph.get("executed").answer("yes")
    clock.skip(seconds=1)
    graph.recover()
    assert [graph.get(name).status for name in ("asked", "executed")] == ["completed"] * 2
    assert Limits(store).get("slow").begun == 2


def test_a_run_that_waited_for_a_rate_and_was_left_counts_when_it_is_resumed() -> None:
    """H18: it hadn't begun."""
    store = MemoryStore()
    begun: list[str] = []
    graph = single(lambda state, ctx: begun.append(ctx.run_id))
    graph.compile(store=store, limits=[Limit("slow", rate="1/hour")])
    graph.execute({}, run_id="first")

    async def leave_it() -> None:
        begin = (lambda: graph.aexecute({}, run_id="left"), lambda: graph.aresume("left"))
        for each in begin:
            task = asyncio.create_task(each())
            while not (task.done() or Limits(store).waiting("slow")):
                await asyncio.sleep(0.01)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(leave_it())
    assert begun == ["first"]


class Slow:
    """Notes how often a supervisor looks for runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        ready = WatchLoop.ready

        def counted(loop: WatchLoop) -> list[RunHead]:
            self.looks += 1
            return ready(loop)

        monkeypatch.setattr(WatchLoop, "ready", counted)


def test_a_worker_that_cannot_ask_for_slots_does_not_ask_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H18: the store can be read, and not written, with more runs in it than a look lists."""
    store = FaultyStore(MemoryStore())
    graph = single(lambda state: {"n": 1}).compile(store=store, limits=[ONE])
    limits_of(client_for(store)).declare([ONE])
    handles = [graph.start({}) for _ in range(20)]
    fault = store.fail("put_document", times=None)
    counted = Slow(monkeypatch)
    with supervise(store, [graph], concurrency=2, poll=0.5):
        until(lambda: counted.looks >= 4)
        began = monotonic()
        until(lambda: counted.looks >= 8)
        assert monotonic() - began > 0.5
        fault.release()
        for handle in handles:
            handle.result(timeout=60)


def damaged(store: Store, name: str) -> bool:
    """Damage a limit; False if it was changed meanwhile."""
    found = store.get_document(limit_name(name))
    return found is not None and store.put_document(found.name, b"damaged", found.version) is not None


def test_a_limit_that_cannot_be_read_holds_up_only_the_runs_that_need_it() -> None:
    """H18: until it is deleted."""
    store = MemoryStore()
    limited = single(lambda state: {"n": 1}, name="limited").compile(store=store, limits=[ONE])
    other = single(lambda state: {"n": 1}, name="other")
    other.compile(store=store, limits=[Limit("two", concurrency=2)])
    with supervise(store, [limited, other], concurrency=4, poll=0.2):
        limited.start({}).result(timeout=60)
        until(lambda: damaged(store, "one"))
        stuck = [limited.start({}, priority=1) for _ in range(10)]
        for handle in [other.start({}) for _ in range(10)]:
            handle.result(timeout=60)
        assert {handle.info.shown_status for handle in stuck} == {"queued"}
        Limits(store).delete("one")
        for handle in stuck:
            handle.result(timeout=60)


def test_a_run_that_a_dead_worker_was_about_to_claim_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H18: nor does a worker without room for others ask for it all the time."""
    store = MemoryStore()
    graph = single(lambda state: {"n": 1}).compile(store=store, limits=[Limit("few", concurrency=5)])
    handles = [graph.start({}, run_id=f"{number:02}") for number in range(30)]
    dead = LeaseClient(store)
    other = LimitAdmission(dead, GraphsOnStore(GraphCatalog([graph]), dead, None))
    first = store.head("00")
    assert other.admit([first]) == [first]
    counted = Slow(monkeypatch)
    with supervise(store, [graph], concurrency=1, poll=0.5):
        for handle in handles[1:]:
            handle.result(timeout=5)
    assert counted.looks < 200
