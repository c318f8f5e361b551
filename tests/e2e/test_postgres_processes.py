"""One PostgreSQL server, several real processes: shared, forked, and a server that dies in the middle of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from limpet import END, START, LimpetError, RunNotFound, StateGraph, StoreUnavailable, open_store
from limpet.errors import Conflict, RunExists
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Commit, Document, Lease, NewRun, Post
from support.postgres import Server
from support.store_processes import (
    Start,
    all_at_once,
    check_claims,
    check_forks,
    check_nothing_lost,
    create_claimable_runs,
    needs_fork,
    starting,
)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python process: `start(code, database, …)`."""
    with starting() as start:
        yield start


def test_of_two_processes_one_gets_the_claim(start: Start, database: str) -> None:
    """P8."""
    code = """
    together()
    claim_each(open_store(place))
    """
    with closing(open_store(database)) as store:
        create_claimable_runs(store)
        ann, bob = all_at_once([start(code, database, holder) for holder in ("ann", "bob")])
        check_claims(store, {"ann": ann, "bob": bob})


def test_a_stale_holder_in_another_process_is_refused(start: Start, database: str) -> None:
    """P8: its fence is old, whatever it believes."""
    code = """
    together()
    (refusal,) = open_store(place).append([Commit("r", 1, 1, [b"zombie"])])
    print(type(refusal).__name__, refusal.holder)
    """
    with closing(open_store(database)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        store.claim("r", "bob", 100, instead_of=1)
        assert all_at_once([start(code, database)]) == [["Conflict bob"]]
        assert store.read("r").records == [b"1"]


def test_processes_may_create_the_schema_at_the_same_moment(start: Start, database: str) -> None:
    """D10: it is made once, whichever process is first."""
    code = """
    together()
    for number in range(5):
        open_store(f"{place}&schema=s{number}").create(NewRun(sys.argv[2], "g", [b"1"]))
    """
    all_at_once([start(code, database, number) for number in range(4)])
    for number in range(5):
        with closing(open_store(f"{database}&schema=s{number}")) as store:
            assert {head.run_id for head in store.list(RunFilter())} == {"0", "1", "2", "3"}


def test_four_processes_lose_nothing(start: Start, database: str) -> None:
    """P6, P8: 4 processes × 50 runs on one database; all of each is there at the end."""
    code = """
    together()
    run_fifty(counting_graph(place))
    """
    all_at_once([start(code, database, number) for number in range(4)])
    with closing(open_store(database)) as store:
        check_nothing_lost(store, processes=4)


@needs_fork
def test_a_fork_may_happen_at_any_time(start: Start, database: str) -> None:
    """P6: parent and child write on, and neither uses the other's connections."""
    code = "fork_while_writing(open_store(place), forks=4, writes=20, forks_in_c=1)"
    assert start(code, database).end() == ["[0, 0, 0, 0, 0] True"]
    with closing(open_store(database)) as store:
        check_forks(store, forks=5, writes=20)


class Break:
    """Makes the server end a store's session: before a statement arrives, or after it but before the answer."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.patch = store, monkeypatch
        self.times = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """What another process does before the call is repeated."""

    def __call__(self, arrives: bool, call: Callable[[], Any]) -> Any:
        """Make `call`, whose first attempt breaks: before it gets anywhere, or once it has been carried out."""
        use, self.times = self.store._connections.use, 0

        def breaking(work: Callable[..., Any]) -> Any:
            def first(cursor: Any, again: bool) -> Any:
                if self.times == 0:
                    self.times += 1
                    if arrives:
                        work(cursor, again)
                    self.meanwhile()
                    self._end(cursor)
                return work(cursor, again)

            return use(first)

        with self.patch.context() as patch:
            patch.setattr(self.store._connections, "use", breaking)
            outcome = call()
        assert self.times == 1
        return outcome

    def _end(self, cursor: Any) -> None:
        with closing(self.store._connections.open().connection) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (cursor.connection.info.backend_pid,))
        cursor.execute("SELECT 1")


@pytest.mark.parametrize("arrives", [True, False], ids=["carried out", "not carried out"])
def test_a_call_whose_answer_was_lost_is_carried_out_once(
    database: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Invariants 1 and 5: the store finds out whether it has happened, and says so either way."""
    with closing(open_store(database)) as store:
        broken = Break(store, monkeypatch)
        assert (
            broken(arrives, lambda: store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=1e6))).fence == 1
        )
        store.create(NewRun("s", "g", [b"1"]))
        assert broken(arrives, lambda: store.append([Commit("r", 1, 1, [b"2"])])) == [None]
        full = Commit("r", 1, 2, [b"3", b"4"], snapshot=3, note=b"n")
        assert broken(arrives, lambda: store.append([full])) == [None]
        both = [Commit("r", 1, 4, [b"5"]), Commit("s", 1, 1, [b"2"])]
        assert broken(arrives, lambda: store.append(both)) == [None, None]
        mixed = [Commit("r", 1, 5, [b"6"], note=b"m"), Commit("s", 1, 2, [b"3"], note=b"m")]
        assert broken(arrives, lambda: store.append(mixed)) == [None, None]
        assert store.read("r", first=1).records == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert store.read("s", first=1).records == [b"1", b"2", b"3"]
        lease = broken(arrives, lambda: store.claim("r", "bob", 1e6, instead_of=1))
        assert (lease.fence, lease.crashes) == (2, 1)
        assert broken(arrives, lambda: store.renew([lease], 10)) == [False]
        for run_id in ("t", "u"):
            store.create(NewRun(run_id, "g", [b"1"], due=0.0))
        listed = [store.head(run_id) for run_id in ("u", "r", "t")]
        leases = broken(arrives, lambda: store.claim_ready(listed, "bob", 1e6))
        assert [each and (each.run_id, each.fence) for each in leases] == [("u", 2), None, ("t", 2)]
        assert [store.head(run_id).crashes for run_id in ("t", "u")] == [0, 0]
        assert broken(arrives, lambda: store.claim_ready(listed, "cid", 1e6)) == [None, None, None]
        assert broken(arrives, lambda: store.post("r", "key", b"body"))
        assert list(store.inbox("r")) == [Post(1, "key", b"body")]
        end = Commit("r", 2, 6, [b"7"], status=COMPLETED, purge=True, takes=1)
        assert broken(arrives, lambda: store.append([end])) == [None]
        head = store.head("r")
        assert (head.status, head.sequence, head.taken, head.holder) == (COMPLETED, 7, 1, None)
        broken(arrives, lambda: store.release(lease))
        broken(arrives, lambda: store.delete("r"))
        with pytest.raises(RunNotFound):
            broken(arrives, lambda: store.head("r"))


@pytest.mark.parametrize("arrives", [True, False], ids=["carried out", "not carried out"])
def test_a_post_output_or_document_whose_answer_was_lost_is_there_once(
    database: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """H10, H12, H17: the answer is that of the first attempt, although equal bodies were there before."""
    with closing(open_store(database)) as store:
        broken = Break(store, monkeypatch)
        store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=1e6))
        for key in ("a", "b"):
            assert broken(arrives, lambda: store.post("r", key, b"same"))  # noqa: B023
            assert not broken(arrives, lambda: store.post("r", key, b"same"))  # noqa: B023
        assert [post.key for post in store.inbox("r")] == ["a", "b"]
        for number in (2, 4):
            assert broken(arrives, lambda: store.add_output("r", 1, [b"same"] * 2, 10)) == number
        assert [item.number for item in store.output("r")] == [1, 2, 3, 4]
        first = broken(arrives, lambda: store.put_document("d", b"same", 0))
        assert store.get_document("d") == Document("d", first, b"same")
        second = broken(arrives, lambda: store.put_document("d", b"same", first))
        assert store.get_document("d") == Document("d", second, b"same")
        assert broken(arrives, lambda: store.put_document("d", b"same", first)) is None
        assert broken(arrives, lambda: store.delete_document("d", second))
        assert not broken(arrives, lambda: store.delete_document("d", second))
        assert store.get_document("d") is None


def test_a_change_whose_answer_was_lost_is_known_after_another_change(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: else a process that counts in a document would count twice."""
    with closing(open_store(database)) as store, closing(open_store(database)) as other:
        broken = Break(store, monkeypatch)
        for change in (
            lambda found: other.put_document("d", b"2", found.version),
            lambda found: other.delete_document("d", found.version),
        ):
            broken.meanwhile = lambda: change(other.get_document("d"))  # noqa: B023
            version = broken(True, lambda: store.put_document("d", b"1", 0))
            assert version is not None
            found = store.get_document("d")
            assert found is None or found.version > version
            if found is not None:
                store.delete_document("d", found.version)


@pytest.mark.parametrize("arrives", [True, False], ids=["carried out", "not carried out"])
def test_a_refusal_whose_answer_was_lost_is_still_a_refusal(
    database: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """P8: what another process has written isn't mistaken for the caller's, not even if it is equal."""
    with closing(open_store(database)) as store:
        broken = Break(store, monkeypatch)
        stale = store.create(NewRun("r", "g", [b"1"], holder="ann"))
        assert stale is not None
        fresh = store.claim("r", "bob", 1e6, instead_of=1)
        assert store.append([Commit("r", fresh.fence, 1, [b"same"])]) == [None]
        store.create(NewRun("s", "g", [b"1"]))
        late = Commit("r", stale.fence, 1, [b"same"])
        for commits in ([late], [late, Commit("s", 1, 1, [b"2"])]):
            assert isinstance(broken(arrives, lambda: store.append(commits))[0], Conflict)  # noqa: B023
        with pytest.raises(RunExists):
            broken(arrives, lambda: store.create(NewRun("r", "g", [b"1"])))
        with pytest.raises(Conflict, match="held by bob"):
            broken(arrives, lambda: store.claim("r", "cid", 10))
        assert broken(arrives, lambda: store.renew([Lease("r", 1, 0.0)], 10)) == [None]
        assert store.read("r").records == [b"1", b"same"]


def test_a_server_that_stays_away_is_given_up(postgres: Server, database: str) -> None:
    """G9: after `timeout`, with an error that says what to start; when it is back, the store works again."""
    with closing(open_store(database + "&timeout=0.2")) as store:
        store.create(NewRun("r", "g", [b"1"]))
        postgres.kill()
        try:
            for call in (lambda: store.append([Commit("r", 1, 1, [b"2"])]), lambda: store.head("r")):
                with pytest.raises(StoreUnavailable, match="start the server"):
                    call()
        finally:
            postgres.start()
        assert store.append([Commit("r", 1, 1, [b"2"])]) == [None]


@pytest.mark.parametrize("timeout", [30, 0.05], ids=["waits", "gives up"])
def test_a_server_killed_ten_times_costs_nothing(postgres: Server, database: str, timeout: float) -> None:
    """Invariants 1 and 2: 50 runs survive kill -9 of the server; nothing is lost, nothing saved runs twice."""
    steps, runs = 20, 50
    done: dict[str, list[int]] = {f"run-{number}": [] for number in range(runs)}
    failures: list[LimpetError] = []

    def step(state: Any) -> dict[str, Any]:
        done[state["name"]].append(state["n"] + 1)
        return {"n": state["n"] + 1}

    graph = StateGraph({"n": int, "name": str}, name="count")
    graph.add_node("step", run=step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: state["n"] < steps, {True: "step", False: END})
    graph.compile(store=f"{database}&timeout={timeout}", preserve=True)

    def finish(run_id: str) -> int:
        deadline = time.monotonic() + 40
        while True:
            try:
                # Also for a run that completed although its last commit seemed to fail: it gives its result.
                return graph.execute({"n": 0, "name": run_id}, run_id=run_id)["n"]
            except LimpetError as error:
                assert time.monotonic() < deadline
                failures.append(error)

    total = lambda: sum(map(len, done.values()))  # noqa: E731
    with ThreadPoolExecutor(10) as pool:
        finished = [pool.submit(finish, run_id) for run_id in done]
        for kill in range(10):
            while total() < kill * steps * runs // 11:
                threading.Event().wait(0.002)
                assert not all(each.done() for each in finished)
            postgres.kill()
            postgres.start()
        assert [each.result() for each in finished] == [steps] * runs
    if timeout > 1:
        assert failures == []
        assert list(done.values()) == [list(range(1, steps + 1))] * runs
    for path in done.values():
        assert sorted(set(path)) == list(range(1, steps + 1))
        assert all(later >= earlier for earlier, later in pairwise(path))
    store = open_store(f"{database}&timeout={timeout}")
    for run_id in done:
        tail = store.read(run_id, first=1)
        assert tail.head.status == COMPLETED
        assert len(tail.records) == tail.head.sequence
    store.close()


WAITING = """
together()
from limpet.engine.leases import change_waiter as link
link.LONGEST_RECHECK = 1000.0  # so that it continues because it is notified, not because it polls
graph = StateGraph({"n": int}, name="wait")
graph.add_node("step", run=lambda state: {"n": state["n"] + 1})
graph.set_entry_point("step")
graph.set_finish_point("step")
graph.compile(store=place, preserve=True)
print(graph.resume("r", wait=90)["n"])
"""


@pytest.mark.parametrize("restart", [False, True], ids=["undisturbed", "the server restarts"])
def test_a_process_that_waits_for_a_run_is_notified_when_it_is_free(
    start: Start, postgres: Server, database: str, restart: bool
) -> None:
    """P8: resume(…, wait=…) continues as soon as the holder in another process releases it, over a restart too."""
    begun, proceed = threading.Event(), threading.Event()

    def step(state: Any) -> None:
        begun.set()
        assert proceed.wait(90)
        raise ValueError("let another try")

    graph = StateGraph({"n": int}, name="wait")
    graph.add_node("step", run=step)
    graph.set_entry_point("step")
    graph.set_finish_point("step")
    graph.compile(store=database, preserve=True)
    with closing(open_store(database)), ThreadPoolExecutor(2) as pool:
        running = pool.submit(graph.execute, {"n": 1}, run_id="r")
        assert begun.wait(30)
        waiting = start(WAITING, database)
        printed = pool.submit(all_at_once, [waiting])
        wait_for_a_listener(postgres)
        if restart:
            postgres.kill()
            postgres.start()
            wait_for_a_listener(postgres)
        assert not printed.done()
        proceed.set()
        with pytest.raises(LimpetError, match="let another try"):
            running.result(90)
        assert printed.result(90) == [["2"]]


def wait_for_a_listener(postgres: Server) -> None:
    """Until a session of the server listens, and waits for nothing else."""
    listening = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN limpet%' AND state = 'idle'"
    deadline = time.monotonic() + 60
    while not postgres.sql(listening):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_listens_for_itself(database: str) -> None:
    """P6: what its parent hears is the parent's, and neither disturbs the other."""
    with closing(open_store(database)) as store:
        while store.wait_for_change(0.05):
            pass
        child = os.fork()
        if child == 0:
            try:
                heard = store.wait_for_change(30)  # it has begun to listen
                while store.wait_for_change(0.05):
                    pass
                store.create(NewRun("r", "g", [b"1"]))
                os._exit(0 if heard and store.wait_for_change(30) else 1)
            finally:
                os._exit(2)
        assert store.wait_for_change(30)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.head("r").sequence == 1
        store.delete("r")
        assert store.wait_for_change(30)


def test_a_run_in_a_store_that_sends_no_notifications_is_still_found(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: a pooler may keep notifications back; then the waiting client polls at intervals."""
    from limpet.engine.leases.lease_client import client_for

    with closing(open_store(database)) as store, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(store, "wait_for_change", lambda timeout: bool(time.sleep(timeout)))
        lease = store.create(NewRun("r", "g", [b"1"], holder="other", ttl=1000.0))
        claimed = pool.submit(client_for(store, 60.0).claim, "r", 60.0)
        store.release(lease)
        held = claimed.result(60)
        assert held.lease.fence == 2
        store.release(held.lease)
