"""The hot store killed, flushed, restored or damaged at any time: runs behave as with the cold one alone."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from limpet import END, START, StateGraph, append, open_store
from limpet.errors import ExecutionError, RunNotFound, RunPaused, StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Commit, Lease, NewRun, Store
from limpet.stores import MemoryStore
from limpet.stores.composite import tiered
from limpet.stores.composite.tiered import TieredStore
from limpet.stores.redis.store import RedisStore
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.conformance import ManualClock
from models.test_stores_agree import StoresAgree
from support.redis_servers import RedisServer, redis_server

STEPS = 12


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hot store that failed is tried again at once: the tests want it to fail often."""
    monkeypatch.setattr(tiered, "FIRST_BACKOFF", 0.0)


class Shaky(MemoryStore):
    """A store that can be broken, and set back to what it was."""

    broken = False

    def _open(self) -> Any:
        if self.broken:
            raise RuntimeError("the hot store is broken")
        return super()._open()

    def dump(self) -> dict[str, Any]:
        runs = super()._open()
        return {run_id: (run.head, run.dropped, list(run.records)) for run_id, run in runs.items()}

    def restore(self, dump: dict[str, Any]) -> None:
        from limpet.stores.memory import _Run

        self._runs = {
            run_id: _Run(head, dropped, list(rest)) for run_id, (head, dropped, rest) in dump.items()
        }


def cold_reads(store: TieredStore, run_id: str) -> list[int]:
    """How many records each read of the cold store gave while the tail of a run is read."""
    sizes: list[int] = []
    read = store.cold.read

    def counting(*arguments: Any, **more: Any) -> Any:
        tail = read(*arguments, **more)
        sizes.append(len(tail.records))
        return tail

    store.cold.read = counting  # type: ignore[method-assign]
    try:
        assert store.read(run_id) == read(run_id)
    finally:
        del store.cold.read
    return sizes


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TieredStore]:
    if request.param == "redis":
        request.getfixturevalue("client")
        hot: Store = RedisStore(request.getfixturevalue("server").url)
    else:
        hot = Shaky()
    with closing(TieredStore(hot, SQLiteStore(tmp_path / "cold.db", level="process"))) as store:
        yield store


def begin(store: Store, steps: int = 9) -> None:
    store.create(NewRun("r", "g", [b"1"], holder="ann"))
    for number in range(1, steps + 1):
        assert store.append([Commit("r", 1, number, [b"%d" % (number + 1)])]) == [None]


class TestTheHotStoreIsUsed:
    """P5: it isn't there for nothing."""

    def test_a_tail_is_read_from_it(self, store: TieredStore) -> None:
        begin(store)
        assert cold_reads(store, "r") == [1]
        assert store.append([Commit("r", 1, 10, [b"11", b"12"], snapshot=11)]) == [None]
        assert cold_reads(store, "r") == [1]
        assert len(store.hot.read("copy of r", 1).records) == 2
        assert store.append([Commit("r", 1, 12, [b"13"])]) == [None]
        assert cold_reads(store, "r") == [1]

    def test_a_copy_that_is_missing_is_made_when_a_run_is_read(self, store: TieredStore) -> None:
        begin(store.cold)
        assert cold_reads(store, "r") == [10]
        assert cold_reads(store, "r") == [1]
        assert store.append([Commit("r", 1, 10, [b"11"])]) == [None]
        assert cold_reads(store, "r") == [1]

    def test_a_run_that_is_over_leaves_no_copy(self, store: TieredStore) -> None:
        begin(store)
        assert store.append([Commit("r", 1, 10, [], status=COMPLETED)]) == [None]
        assert cold_reads(store, "r") == [10]
        with pytest.raises(RunNotFound):
            store.hot.head("copy of r")

    def test_old_copies_expire(self, store: TieredStore) -> None:
        begin(store)
        store.hot.create(NewRun("another user's", "g", [b"1"]))
        assert store.expire(-1) == 0
        assert [head.run_id for head in store.hot.list(RunFilter())] == ["another user's"]
        assert store.append([Commit("r", 1, 10, [b"11"])]) == [None]
        assert cold_reads(store, "r") == [11]
        assert cold_reads(store, "r") == [1]

    def test_another_process_continues_what_one_began(self, store: TieredStore) -> None:
        """P8: the copies are shared, and none is needed to know what is in them."""
        begin(store)
        other = TieredStore(store.hot, store.cold)
        assert other.append([Commit("r", 1, 10, [b"11"])]) == [None]
        assert cold_reads(store, "r") == cold_reads(other, "r") == [1]


class TestTheHotStoreIsNotBelieved:
    """P5, P8: whatever it says."""

    def test_a_copy_that_is_behind_is_completed(self, store: TieredStore) -> None:
        """A hot store that was restored from an old dump."""
        begin(store)
        for number in range(10, 13):
            assert store.cold.append([Commit("r", 1, number, [b"%d" % (number + 1)])]) == [None]
        assert cold_reads(store, "r") == [4]
        assert store.append([Commit("r", 1, 13, [b"14"])]) == [None]  # doesn't fit the copy, which is dropped
        assert cold_reads(store, "r") == [14]
        assert cold_reads(store, "r") == [1]

    def test_a_copy_behind_the_newest_snapshot(self, store: TieredStore) -> None:
        begin(store)
        assert store.cold.append([Commit("r", 1, 10, [b"11", b"12", b"13"], snapshot=12)]) == [None]
        assert cold_reads(store, "r") == [4]

    def test_a_copy_that_is_ahead_is_not_used(self, store: TieredStore) -> None:
        begin(store)
        copy = store._copies["r"]
        assert copy is not None
        (more,) = tiered._with_digests("r", copy, 11, [b"never acknowledged"])
        assert store.hot.append([Commit("copy of r", 1, 10, [more])]) == [None]
        assert cold_reads(store, "r") == [0, 10]
        assert cold_reads(store, "r") == [1]

    def test_a_copy_of_an_earlier_run_of_that_id_is_not_used(self, store: TieredStore) -> None:
        begin(store)
        store.cold.release(_lease(store))
        store.cold.delete("r")
        store.cold.create(NewRun("r", "g", [b"one"]))
        for number in range(1, 10):
            assert store.cold.append([Commit("r", 1, number, [b"%d" % (number + 1)])]) == [None]
        assert cold_reads(store, "r") == [1, 10]

    def test_another_last_record_is_noticed(self, store: TieredStore) -> None:
        begin(store)
        copy = store._copies["r"]
        assert copy is not None
        store._put("r", copy, "g", [b"%d" % number for number in range(1, 10)] + [b"other"])
        assert cold_reads(store, "r") == [1, 10]

    def test_a_purged_or_deleted_run_is_gone(self, store: TieredStore) -> None:
        begin(store)
        assert store.cold.append([Commit("r", 1, 10, [], purge=True, status=COMPLETED)]) == [None]
        assert store.read("r") == store.cold.read("r")
        store.cold.delete("r")
        with pytest.raises(RunNotFound):
            store.read("r")

    def test_a_journal_without_a_whole_record_is_read_from_the_cold_store(self, store: TieredStore) -> None:
        """After a purge there may be none; there is no telling then where the copy should begin."""
        begin(store)
        assert store.append([Commit("r", 1, 10, [], purge=True)]) == [None]
        assert store.append([Commit("r", 1, 10, [b"11", b"12"])]) == [None]
        assert cold_reads(store, "r") == [2]
        assert cold_reads(store, "r") == [1, 2]

    def test_equal_records_at_other_places_are_distinguished(self, store: TieredStore) -> None:
        store.create(NewRun("r", "g", [b"", b""], holder="ann"))
        for expected in (2, 4):
            assert store.cold.append([Commit("r", 1, expected, [b"", b""], snapshot=expected + 1)]) == [None]
        assert store.prune("r", 5) == 4
        assert cold_reads(store, "r") == [2, 2]
        assert cold_reads(store, "r") == [1]

    @pytest.mark.parametrize("position", range(20))
    def test_a_changed_byte_is_noticed(
        self, client: Any, tmp_path: Path, server: RedisServer, position: int
    ) -> None:
        """H5: in any record, and in its digest."""
        with closing(TieredStore(RedisStore(server.url), SQLiteStore(tmp_path / "cold.db"))) as store:
            begin(store)
            name = "limpet:journal:copy of r"
            number = position % 9
            data = bytearray(client.lindex(name, number))
            data[position % len(data)] ^= 1 << position % 8
            client.lset(name, number, bytes(data))
            assert cold_reads(store, "r") == [10]
            assert cold_reads(store, "r") == [1]

    @pytest.mark.parametrize(
        "harm",
        [
            lambda client: client.hset("limpet:run:copy of r", "note", "nonsense"),
            lambda client: client.hset("limpet:run:copy of r", "dropped", "x"),
            lambda client: client.delete("limpet:journal:copy of r"),
            lambda client: client.lpop("limpet:journal:copy of r", 3),
            lambda client: client.rpush("limpet:journal:copy of r", b"", b"\x80\x04cos\nsystem\n."),
            lambda client: client.lset("limpet:journal:copy of r", 2, b""),
            lambda client: client.set("limpet:journal:copy of r", b"x"),
            lambda client: client.set("limpet:run:copy of r", b"x"),
            lambda client: client.set("limpet:runs", b"x"),
            lambda client: client.config_set("maxmemory", "1"),
            lambda client: client.script_flush(),
        ],
    )
    def test_whatever_is_done_to_it_runs_continue(
        self, client: Any, tmp_path: Path, server: RedisServer, harm: Any
    ) -> None:
        """P5, H5: damaged and malicious values are ignored."""
        with closing(TieredStore(RedisStore(server.url), SQLiteStore(tmp_path / "cold.db"))) as store:
            begin(store)
            harm(client)
            try:
                cold_reads(store, "r")
                assert store.append([Commit("r", 1, 10, [b"11"])]) == [None]
                cold_reads(store, "r")
                store.create(NewRun("s", "g", [b"1"], holder="ann"))
                assert (
                    store.append([Commit("s", 1, 1, [b"2"], snapshot=2), Commit("r", 1, 11, [b"12"])])
                    == [None] * 2
                )
                cold_reads(store, "r")
                cold_reads(store, "s")
            finally:
                client.config_set("maxmemory", "0")


def _lease(store: TieredStore) -> Lease:
    return Lease("r", store.cold.head("r").fence, 0.0)


class TestAHotStoreThatFails:
    """P5: it is left out for a while, and no run fails."""

    def test_it_is_tried_again_later_and_then_less_often(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(tiered, "FIRST_BACKOFF", 5.0)
        now = [1000.0]
        monkeypatch.setattr(tiered, "time", SimpleNamespace(monotonic=lambda: now[0]))
        hot = Shaky()
        store = TieredStore(hot, SQLiteStore(tmp_path / "cold.db"))
        begin(store)
        hot.broken = True
        assert store.read("r") == store.cold.read("r")
        assert len(caplog.records) == 1
        for _ in range(5):
            assert store.read("r") == store.cold.read("r")
        assert len(caplog.records) == 1
        now[0] += 5.1
        assert store.read("r") == store.cold.read("r")
        now[0] += 5.1
        assert store.read("r") == store.cold.read("r")
        assert len(caplog.records) == 2
        hot.broken = False
        now[0] += 5.1
        assert cold_reads(store, "r") == [1]
        store.close()

    def test_a_slow_one_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tiered, "FIRST_BACKOFF", 5.0)
        now, calls = [1000.0], [0]
        monkeypatch.setattr(tiered, "time", SimpleNamespace(monotonic=lambda: now[0]))

        class Slow(Shaky):
            def read(self, *arguments: Any, **more: Any) -> Any:
                now[0] += 2
                calls[0] += 1
                return super().read(*arguments, **more)

        store = TieredStore(Slow(), SQLiteStore(tmp_path / "cold.db"))
        begin(store)
        for _ in range(3):
            assert store.read("r") == store.cold.read("r")
        assert calls == [1]
        store.close()

    def test_one_that_is_not_there_yet_is_opened_later(
        self, server: RedisServer, client: Any, tmp_path: Path
    ) -> None:
        opened: list[Store] = []

        def open_hot() -> Store:
            if not opened:
                opened.append(MemoryStore())
                raise StoreUnavailable("not yet")
            return RedisStore(server.url)

        with closing(TieredStore(open_hot, SQLiteStore(tmp_path / "cold.db"))) as store:
            begin(store)
            assert store.read("r") == store.cold.read("r")
            assert cold_reads(store, "r") == [1]


class TestURL:
    def test_both_are_named(self, server: RedisServer, client: Any, tmp_path: Path) -> None:
        url = f"tiered://?hot={server.url}&cold=sqlite:///{tmp_path}/cold.db"
        with closing(open_store(url)) as store:
            assert isinstance(store, TieredStore)
            assert open_store(url) is store
            assert isinstance(store.hot, RedisStore)
            assert store.abilities == store.cold.abilities
            begin(store)
            assert cold_reads(store, "r") == [1]

    def test_an_unavailable_hot_one_doesnt_prevent_opening(self, tmp_path: Path) -> None:
        url = f"tiered://?hot=redis://:s3cret@127.0.0.1:1&cold=sqlite:///{tmp_path}/cold.db"
        with closing(open_store(url)) as store:
            begin(store)
            assert len(store.read("r").records) == 10
            assert "s3cret" not in repr(store)
            assert "s3cret" not in str(store)

    def test_a_hot_one_whose_package_is_missing_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P5: it wouldn't come by waiting."""
        for name in [each for each in sys.modules if each.partition(".")[0] == "redis"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "redis", None)
        with pytest.raises(StoreUnavailable, match=r"pip install 'limpet\[redis\]'"):
            open_store(f"tiered://?hot=redis://127.0.0.1:1&cold=sqlite:///{tmp_path}/cold.db")

    @pytest.mark.parametrize(
        "url",
        [
            "tiered://",
            "tiered://?hot=memory://",
            "tiered://x?hot=memory://&cold=memory://",
            "tiered://?warm=x",
        ],
    )
    def test_one_that_makes_no_sense_is_refused(self, url: str) -> None:
        with pytest.raises(UsageError):
            open_store(url)

    def test_stores_that_make_no_sense_are_refused(self) -> None:
        one = MemoryStore()
        for hot, cold in ((one, one), ("memory", one), (one, None), (one, MemoryStore)):
            with pytest.raises(UsageError):
                TieredStore(hot, cold)  # type: ignore[arg-type]


class TieredAgrees(StoresAgree):
    """Any calls, with any losses of the hot store between them, give what the cold store alone gives."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory()
        self.model = MemoryStore(clock=self.clock)
        path = Path(self.folder.name, "runs.db")
        self.hot = self.make_hot()
        pair = [TieredStore(self.hot, SQLiteStore(path, level="process", clock=self.clock)) for _ in range(2)]
        self.stores, self.born = {"tiered": [*pair]}, set()
        self.dumps: list[dict[str, Any]] = [{}]

    def make_hot(self) -> Any:
        return Shaky(clock=self.clock)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def reopen(self) -> None:
        """No rule here: the two share the hot store, and closing one would close it for the other."""

    def same(self, method: str, *arguments: Any, **more: Any) -> None:
        if method == "create":
            self.clock.advance(0.001)  # no two runs of one id are created at the same time
        super().same(method, *arguments, **more)

    @rule()
    def the_hot_store_is_flushed(self) -> None:
        self.hot.restore({})

    @rule()
    def the_hot_store_is_dumped(self) -> None:
        self.dumps.append(self.hot.dump())

    @rule()
    def the_hot_store_is_set_back(self) -> None:
        self.hot.restore(self.dumps[-1])

    @rule()
    def the_hot_store_breaks_or_is_repaired(self) -> None:
        self.hot.broken = not self.hot.broken


class ShakyRedis(RedisStore):
    """The same on a real server."""

    broken = False

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.url)
        self.client = server.client()

    def _command(self, *arguments: Any) -> Any:
        if self.broken:
            raise RuntimeError("the hot store is broken")
        return super()._command(*arguments)

    def dump(self) -> dict[bytes, bytes]:
        return {key: self.client.dump(key) for key in self.client.scan_iter()}

    def restore(self, dump: dict[bytes, bytes]) -> None:
        self.client.flushall()
        for key, value in dump.items():
            self.client.restore(key, 0, value)

    def close(self) -> None:
        super().close()
        self.client.close()


@pytest.mark.parametrize(("kind", "examples"), [("memory", 40), ("redis", 10)])
def test_whatever_happens_to_the_hot_store_the_cold_one_decides(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    """P5, P6, P8: a property of random calls and random losses."""

    class Machine(TieredAgrees):
        def make_hot(self) -> Any:
            if kind == "memory":
                return super().make_hot()
            hot = ShakyRedis(request.getfixturevalue("server"))
            hot.restore({})
            return hot

    logging.getLogger("limpet.stores").setLevel(logging.CRITICAL)
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=50,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
    finally:
        logging.getLogger("limpet.stores").setLevel(logging.NOTSET)


class Log(TypedDict):
    seen: Annotated[list[int], append]
    text: str


def counting(store: Store, meanwhile: Any) -> StateGraph:
    """A graph of `STEPS` nodes, each of which notes its number; one in the middle stops for a person."""
    graph = StateGraph(Log, name="counting")
    for number in range(STEPS):

        def node(state: Any, number: int = number) -> dict[str, Any]:
            meanwhile(number)
            return {"seen": [number], "text": f"{state.get('text', '')}{number};"}

        graph.add_node(f"n{number}", run=node)
    graph.add_edge(START, "n0")
    for number in range(1, STEPS):
        graph.add_edge(f"n{number - 1}", f"n{number}")
    graph.add_edge(f"n{STEPS - 1}", END)
    graph.compile(store=store, interrupt_before=[f"n{STEPS // 2}"], preserve=True)
    return graph


WHOLE = {"seen": list(range(STEPS)), "text": "".join(f"{number};" for number in range(STEPS))}


@pytest.mark.parametrize(
    ("cold", "seed"), [*(("sqlite", seed) for seed in range(10)), ("postgres", 10), ("postgres", 11)]
)
def test_runs_continue_however_often_the_hot_store_is_flushed(
    server: RedisServer, client: Any, tmp_path: Path, cold: str, seed: int, request: pytest.FixtureRequest
) -> None:
    """P5, P8, P9: FLUSHALL at random moments; pauses, failures and resumes in between."""
    chance = Random(seed)
    kept = (
        f"sqlite:///{tmp_path}/cold.db?level=process"
        if cold == "sqlite"
        else request.getfixturevalue("database")
    )
    failing = [chance.randrange(STEPS), chance.randrange(STEPS)]

    def meanwhile(number: int) -> None:
        if chance.random() < 0.4:
            client.flushall()
        if number in failing:
            failing.remove(number)
            raise RuntimeError("for once")

    def opened() -> TieredStore:
        return TieredStore(RedisStore(server.url), open_store(kept))

    with closing(opened()) as store:
        graph = counting(store, meanwhile)
        run = graph.stream({"seen": [], "text": ""})
        for _ in run:
            pass
        run_id = run.id
    for _ in range(4):
        with closing(opened()) as store:
            if store.head(run_id).status == COMPLETED:
                break
            with suppress(ExecutionError, RunPaused):
                counting(store, meanwhile).resume(run_id)
    with closing(opened()) as store:
        assert store.head(run_id).status == COMPLETED
        state = counting(store, meanwhile).state_at(run_id)
        assert dict(state) == WHOLE


def test_runs_continue_when_the_hot_store_is_killed(tmp_path: Path) -> None:
    """P5: in the middle of a run, and while another resumes without it."""
    with redis_server(tmp_path / "own") as own:
        hot = RedisStore(own.url, timeout=0.2)
        with closing(TieredStore(hot, SQLiteStore(tmp_path / "cold.db"))) as store:
            run = counting(store, lambda number: own.kill() if number == 2 else None).stream(
                {"seen": [], "text": ""}
            )
            for _ in run:
                pass
        with closing(open_store(f"tiered://?hot={own.url}&cold=sqlite:///{tmp_path}/cold.db")) as store:
            assert dict(counting(store, lambda number: None).resume(run.id)) == WHOLE
        own.start()


def test_a_hot_store_set_back_to_an_old_dump_is_found_out(tmp_path: Path) -> None:
    """P5: the dump of a Redis server, from the middle of a run that continued since."""
    with redis_server(tmp_path / "own", dbfilename="old.rdb") as own:

        def meanwhile(number: int) -> None:
            if number == 3:
                with own.client() as client:
                    client.save()

        with closing(TieredStore(RedisStore(own.url), SQLiteStore(tmp_path / "cold.db"))) as store:
            run = counting(store, meanwhile).stream({"seen": [], "text": ""})
            for _ in run:
                pass
            own.kill()
            own.start()
            known = store.hot.head("copy of " + run.id).sequence
            assert 0 < known < store.cold.head(run.id).sequence
            sizes = cold_reads(store, run.id)
            assert len(sizes) == 1
            assert dict(counting(store, meanwhile).resume(run.id)) == WHOLE


def test_two_processes_share_both_stores(server: RedisServer, client: Any, tmp_path: Path) -> None:
    """P8: one is killed in the middle of a run, the other resumes from the hot copy."""
    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
from stores.composite.test_tiered_losses import counting
from limpet.stores.redis.store import RedisStore
from limpet.stores.sqlite.store import SQLiteStore
from limpet.stores.composite.tiered import TieredStore
store = TieredStore(RedisStore({server.url!r}), SQLiteStore({str(tmp_path / "cold.db")!r}))
graph = counting(store, lambda number: os._exit(9) if number == 4 else None)
run = graph.stream({{"seen": [], "text": ""}})
print(run.id, flush=True)
for _ in run: pass
"""
    child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    assert child.returncode == 9
    with closing(TieredStore(RedisStore(server.url), SQLiteStore(tmp_path / "cold.db"))) as store:
        (head,) = store.list(RunFilter())
        assert cold_reads(store, head.run_id) == [1]
        ran: list[int] = []
        graph = counting(store, ran.append)
        with pytest.raises(RunPaused):
            graph.resume(head.run_id, wait=15)
        assert dict(graph.resume(head.run_id)) == WHOLE
        assert ran == list(range(4, STEPS))
