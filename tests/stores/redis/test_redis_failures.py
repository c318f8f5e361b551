"""What only the Redis store does: the server's settings, its failures, missing answers, damage, forks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limpet import open_store
from limpet.errors import (
    Conflict,
    DamagedRecord,
    LimpetError,
    RunExists,
    RunNotFound,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    COMPLETED,
    FAILED,
    RUNNING,
    Commit,
    Document,
    Labels,
    Lane,
    Lease,
    NewRun,
    Post,
)
from limpet.stores.redis import store as redis_store
from limpet.stores.redis.head_fields import CHECKSUMMED_FIELDS, FIELDS, checksum
from limpet.stores.redis.store import RedisStore
from limpet.testing.conformance.store_calls import ready_runs
from support.redis_servers import RedisServer, free_port, need_redis, redis_server

prefixes = (f"test{number}:" for number in itertools.count())


@pytest.fixture(scope="module", autouse=True)
def needs_redis() -> None:
    need_redis()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server for this test alone, which may break it. It flushes each write."""
    with redis_server(tmp_path / "own", appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def store(server: RedisServer, client: Any) -> Iterator[RedisStore]:
    with closing(RedisStore(server.url, timeout=5)) as store:
        yield store


def begin(store: RedisStore, run_id: str = "r", *records: bytes) -> Lease:
    lease = store.create(NewRun(run_id, "g", list(records) or [b"1"], holder="ann"))
    assert lease is not None
    return lease


class TestLevels:
    """Invariant 1: the server's settings decide what a save survives, and nothing more is promised."""

    @pytest.mark.parametrize(
        ("appendonly", "appendfsync", "level"),
        [
            ("no", "always", "memory"),
            ("yes", "no", "process"),
            ("yes", "everysec", "process"),
            ("yes", "always", "disk"),
        ],
    )
    def test_the_settings_decide(
        self, own: RedisServer, appendonly: str, appendfsync: str, level: str
    ) -> None:
        with own.client() as client:
            client.config_set("appendfsync", appendfsync)
            client.config_set("appendonly", appendonly)
        with closing(open_store(f"{own.url}?timeout=5")) as store:
            assert store.abilities.level == level
        for wanted in ("memory", "process", "disk"):
            url = f"{own.url}?level={wanted}"
            if ("memory", "process", "disk").index(wanted) <= ("memory", "process", "disk").index(level):
                open_store(url).close()
            else:
                with pytest.raises(StoreUnavailable, match="set append") as caught:
                    open_store(url)
                assert ("appendonly yes" in str(caught.value)) == (appendonly == "no")
                assert ("appendfsync always" in str(caught.value)) == (
                    wanted == "disk" and appendfsync != "always"
                )

    def test_a_server_that_skips_the_fsync_at_times_is_not_for_disk(self, own: RedisServer) -> None:
        with own.client() as client:
            client.config_set("no-appendfsync-on-rewrite", "yes")
        with closing(RedisStore(own.url)) as store:
            assert store.abilities.level == "process"
        with pytest.raises(StoreUnavailable, match="set no-appendfsync-on-rewrite no on the server"):
            RedisStore(own.url, level="disk")

    def test_dumps_are_not_a_level(self, own: RedisServer) -> None:
        """An RDB dump is minutes old: what was written since is lost with the server."""
        with own.client() as client:
            client.config_set("appendonly", "no")
            client.config_set("save", "60 1")
        with closing(RedisStore(own.url)) as store:
            assert store.abilities.level == "memory"

    def test_where_the_server_does_not_report_its_settings_the_url_decides(self, own: RedisServer) -> None:
        with own.client() as client:
            client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config")
        url = own.url.replace("redis://", "redis://app:pw@")
        for level, query in (("process", ""), ("disk", "?level=disk"), ("process", "?level=process")):
            with closing(open_store(url + query)) as store:
                assert store.abilities.level == level
        with own.client() as client:
            client.config_set("appendonly", "no")
        with pytest.raises(StoreUnavailable, match="appendonly yes"):
            open_store(f"{url}?level=disk")

    def test_a_server_that_evicts_keys_is_refused(self, own: RedisServer) -> None:
        with own.client() as client:
            client.config_set("maxmemory", "100mb")
            client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnavailable, match="noeviction"):
            RedisStore(own.url)
        RedisStore(own.url, level="memory").close()

    def test_an_unknown_level_is_refused(self, server: RedisServer) -> None:
        with pytest.raises(UsageError, match="level"):
            open_store(f"{server.url}?level=best")


class TestFailures:
    """Invariant 9: each failure says what to do, no password is shown, and nothing is half-written."""

    def test_a_missing_server(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable, match="can't be reached: start it") as caught:
            open_store("redis://ann:s3cret@127.0.0.1:1/0")
        assert "s3cret" not in str(caught.value) + repr(caught.value.__cause__)
        with pytest.raises(StoreUnavailable, match="can't be reached"):
            open_store(f"redis+unix://{tmp_path}/nothing.sock")

    def test_a_wrong_password(self, own: RedisServer) -> None:
        with own.client() as client:
            client.config_set("requirepass", "s3cret-right")
        wrong = own.url.replace("redis://", "redis://:s3cret-wrong@")
        with pytest.raises(StoreUnavailable, match="user name or password") as caught:
            open_store(wrong)
        assert "s3cret" not in str(caught.value) + repr(caught.value.__cause__)
        with pytest.raises(StoreUnavailable, match="requires a password"):
            open_store(own.url)
        with closing(open_store(own.url.replace("redis://", "redis://:s3cret-right@"))) as store:
            assert "s3cret" not in repr(store)
            assert "s3cret" not in str(store)

    def test_no_error_about_a_url_shows_its_password(self) -> None:
        for rest in (
            ":pa/s3cret@host:1/0",
            ":pa?s3cret@host:1/0",
            ":pa?s3cret=@host:1/0",
            ":s3cret@host:port/0",
        ):
            url = f"redis://{rest}"
            with pytest.raises((UsageError, StoreUnavailable)) as caught:
                open_store(url)
            assert "s3cret" not in str(caught.value)

    def test_a_missing_database(self, server: RedisServer) -> None:
        with pytest.raises(StoreUnavailable, match="no database of this number"):
            open_store(server.url.replace("/0", "/99"))

    def test_a_database_that_is_not_a_number(self, server: RedisServer) -> None:
        """P5: the driver would use database 0, where another program's keys may be."""
        for url in (server.url.replace("/0", "/runs"), server.url + "/runs"):
            with pytest.raises(UsageError, match="can't be read"):
                open_store(url)

    def test_a_read_only_replica(self, own: RedisServer, server: RedisServer) -> None:
        with closing(RedisStore(own.url, timeout=1)) as store:
            lease = begin(store)
            with own.client() as client:
                client.replicaof("127.0.0.1", 1)
                with pytest.raises(StoreUnavailable, match="read-only replica: name the primary"):
                    RedisStore(own.url)
                (outcome,) = store.append([Commit("r", lease.fence, 1, [b"2"])])
                assert isinstance(outcome, StoreUnavailable)
                assert "name the primary" in str(outcome)
                with pytest.raises(StoreUnavailable, match="name the primary"):
                    store.create(NewRun("s", "g", [b"1"]))
                client.replicaof("NO", "ONE")
            assert store.append([Commit("r", lease.fence, 1, [b"2"])]) == [None]
            assert store.read("r").records == [b"1", b"2"]

    def test_a_full_memory(self, own: RedisServer) -> None:
        with closing(RedisStore(own.url)) as store:
            lease = begin(store)
            with own.client() as client:
                client.config_set("maxmemory", "1mb")
                before = store.read("r")
                commits = [
                    Commit("r", lease.fence, 1, [b"x"]),
                    Commit("r", lease.fence, 1, [b"x"], snapshot=2),
                ]
                for commit in commits:
                    (outcome,) = store.append([commit])
                    assert isinstance(outcome, StoreUnavailable)
                    assert "raise its maxmemory" in str(outcome)
                with pytest.raises(StoreUnavailable, match="raise its maxmemory"):
                    store.create(NewRun("s", "g", [b"1"]))
                assert store.read("r") == before
                assert [head.run_id for head in store.list(RunFilter())] == ["r"]
                client.config_set("maxmemory", "0")
            assert store.append([Commit("r", lease.fence, 1, [b"2"])]) == [None]

    def test_a_cluster(self, tmp_path: Path) -> None:
        # The port for the cluster would by default be one that the system gives to any connection.
        ports = {"cluster_enabled": "yes", "cluster_port": str(free_port())}
        with (
            redis_server(tmp_path / "cluster", **ports) as server,
            pytest.raises(StoreUnavailable, match="cluster"),
        ):
            RedisStore(server.url)

    def test_a_record_too_large_refuses_its_own_commit_only(
        self, store: RedisStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_store, "LARGEST", 1000)
        for run_id in ("large", "small"):
            begin(store, run_id)
        outcomes = store.append([Commit("large", 1, 1, [b"x" * 1001]), Commit("small", 1, 1, [b"x" * 1000])])
        assert isinstance(outcomes[0], StoreUnavailable)
        assert outcomes[1] is None
        assert (store.head("large").sequence, store.head("small").sequence) == (1, 2)
        with pytest.raises(StoreUnavailable):
            store.create(NewRun("s", "g", [b"x" * 1001]))

    def test_odd_text_and_options(self, store: RedisStore, server: RedisServer) -> None:
        with pytest.raises(UsageError, match="isn't text"):
            store.head("half a surrogate \ud800")
        for query in ("timeout=-1", "ttl=0", "ttl=x", "colour=red"):
            with pytest.raises(UsageError):
                open_store(f"{server.url}?{query}")


class TestServerAway:
    """P8: a server that goes away and comes back neither loses nor repeats an acknowledged commit."""

    def test_killed_and_started_again_between_and_during_commits(self, own: RedisServer) -> None:
        with closing(RedisStore(own.url, timeout=30, level="disk")) as store:
            lease = begin(store, "r")
            acknowledged = threading.Semaphore(0)  # counts, so that none is missed by a slow reader
            failures: list[object] = []

            def write() -> None:
                for expected in range(1, 301):
                    (outcome,) = store.append([Commit("r", lease.fence, expected, [b"%d" % (expected + 1)])])
                    if outcome is not None:
                        failures.append((expected, outcome))
                        return
                    if expected % 75 == 0:
                        acknowledged.release()

            writer = threading.Thread(target=write)
            writer.start()
            for _ in range(3):
                assert acknowledged.acquire(timeout=60)
                own.kill()
                own.start()
            writer.join(60)
            assert failures == []
            assert store.read("r").records == [b"%d" % number for number in range(1, 302)]

    def test_a_call_whose_answer_is_missing_is_repeated_safely(
        self, store: RedisStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was carried out is not carried out again, and is reported as it was."""
        from redis.exceptions import ConnectionError

        lose = [False]
        reply = store._connections._reply

        def losing(connection: Any) -> Any:
            answer = reply(connection)
            if lose[0]:
                lose[0] = False
                raise ConnectionError("the line went dead")
            return answer

        def cut_off(method: str, *arguments: Any) -> Any:
            lose[0] = True
            outcome = getattr(store, method)(*arguments)
            assert not lose[0]
            return outcome

        monkeypatch.setattr(store._connections, "_reply", losing)
        assert cut_off("create", NewRun("r", "g", [b"1"], holder="ann")).fence == 1
        with pytest.raises(RunExists):
            store.create(NewRun("r", "g", [b"1"]))
        assert cut_off("append", [Commit("r", 1, 1, [b"2"])]) == [None]
        assert cut_off("append", [Commit("r", 1, 2, [b"3"], snapshot=3, note=b"n")]) == [None]
        assert cut_off("append", [Commit("r", 1, 3, [], status=FAILED)]) == [None]
        lease = cut_off("claim", "r", "bob", 10)
        assert (lease.fence, store.head("r").fence, store.head("r").crashes) == (2, 2, 0)
        for run_id in ("t", "u"):
            store.create(NewRun(run_id, "g", [b"1"], due=0.0))
        listed = [store.head(run_id) for run_id in ("u", "r", "t")]
        leases = cut_off("claim_ready", listed, "bob", 10)
        assert [each and (each.run_id, each.fence) for each in leases] == [("u", 2), None, ("t", 2)]
        assert [(store.head(run_id).fence, store.head(run_id).crashes) for run_id in "tu"] == [(2, 0), (2, 0)]
        assert cut_off("claim_ready", listed, "cid", 10) == [None, None, None]
        begin(store, "s")
        both = [Commit("r", 2, 3, [b"4"]), Commit("s", 1, 1, [b"2"])]
        assert cut_off("append", both) == [None, None]
        assert cut_off("append", [Commit("s", 1, 2, [b"3"], purge=True)]) == [None]
        assert store.read("r", 1).records == [b"1", b"2", b"3", b"4"]
        assert (store.head("s").sequence, store.read("s").records) == (3, [])
        (outcome,) = cut_off("append", [Commit("r", 1, 4, [b"5"])])
        assert isinstance(outcome, Conflict)
        assert cut_off("post", "r", "key", b"body")
        assert not cut_off("post", "r", "key", b"body")
        assert list(store.inbox("r")) == [Post(1, "key", b"body")]
        for newest in (2, 4):
            assert cut_off("add_output", "r", 2, [b"same"] * 2, 10) == newest
        assert [item.number for item in store.output("r")] == [1, 2, 3, 4]
        version = cut_off("put_document", "d", b"same", 0)
        assert store.get_document("d") == Document("d", version, b"same")
        assert cut_off("put_document", "d", b"same", 0) is None
        assert cut_off("delete_document", "d", version)
        assert not cut_off("delete_document", "d", version)

    def test_forgotten_scripts_are_sent_again(self, store: RedisStore, client: Any) -> None:
        lease = begin(store)
        begin(store, "s")
        for expected in range(1, 4):
            client.script_flush()
            assert store.append(
                [Commit("r", lease.fence, expected, [b"x"]), Commit("s", 1, expected, [b"y"])]
            ) == [
                None,
                None,
            ]
        assert store.head("r").sequence == store.head("s").sequence == 4

    def test_a_server_that_stays_away_is_named(self, own: RedisServer) -> None:
        with closing(RedisStore(own.url, timeout=0.2)) as store:
            lease = begin(store)
            own.kill()
            for call in (
                lambda: store.append([Commit("r", lease.fence, 1, [b"2"])]),
                lambda: store.head("r"),
                lambda: store.list(RunFilter()),
            ):
                with pytest.raises(StoreUnavailable, match="can't be reached"):
                    call()
            own.start()
            assert store.read("r").records == [b"1"]
            assert store.append([Commit("r", lease.fence, 1, [b"2"])]) == [None]

    def test_a_server_that_hangs_is_reported(self, own: RedisServer) -> None:
        with closing(RedisStore(own.url, timeout=0.2)) as store:
            begin(store)
            with own.client() as client:
                client.execute_command("CLIENT", "PAUSE", "100000", "ALL")
                with pytest.raises(StoreUnavailable, match=r"didn't answer within 0\.2 s"):
                    store.head("r")


class TestDamage:
    """H5: damage is reported, and never read as data."""

    @pytest.mark.parametrize("field", [name for name in FIELDS if name != "last"])
    @pytest.mark.parametrize(
        "value", [b"", b"=", b"7", b"-1", b"nan", b"\xff\xfe", b"cos\nsystem\n(S'x'\ntR."]
    )
    def test_a_changed_head_is_noticed(
        self, store: RedisStore, client: Any, field: str, value: bytes
    ) -> None:
        begin(store, "r", b"1", b"2")
        begin(store, "other")
        before = client.hgetall("limpet:run:r")
        if before[field.encode()] == value:
            value += b"7"
        client.hset("limpet:run:r", field, value)
        for call in (store.head, store.read):
            with pytest.raises(StoreError) as caught:
                call("r")
            assert isinstance(caught.value, DamagedRecord | StoreUnavailable)
        for commit in (Commit("r", 1, 2, [b"3"]), Commit("r", 1, 2, [b"3"], snapshot=3, status=COMPLETED)):
            (outcome,) = store.append([commit])
            assert outcome is None or isinstance(outcome, StoreError)
            if outcome is None:  # nothing that this commit relies on was touched
                break
        if field != "sequence":
            for change in (lambda: store.claim("r", "bob", 1, 1), lambda: store.post("r", "key", b"")):
                with pytest.raises(StoreError):
                    change()
        assert store.read("other").records == [b"1"]

    def test_a_damaged_run_is_listed_as_such(
        self, store: RedisStore, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        for run_id in ("a", "b", "c", "d"):
            begin(store, run_id)
        client.hset("limpet:run:a", "fence", "9")
        client.delete("limpet:run:b")
        client.set("limpet:run:b", "something else")
        client.delete("limpet:journal:c")
        listed = {head.run_id: head.status for head in store.list(RunFilter())}
        assert listed == {"a": "damaged", "b": "damaged", "c": "damaged", "d": "running"}
        assert len(caplog.records) == 3
        assert store.expire(-1, (RUNNING,)) == 0
        store.release(Lease("d", 1, 0.0))

    def test_a_damaged_run_keeps_no_other_from_being_claimed(self, store: RedisStore, client: Any) -> None:
        """H1, H5: however urgent it is; and a deleted one is removed from the index."""
        for run_id in ("changed", "replaced", "cut", "odd", "gone", "sound"):
            store.create(NewRun(run_id, "g", [b"1"], due=0.0, priority=run_id != "sound"))
        client.hset("limpet:run:changed", "fence", "9")
        client.delete("limpet:run:replaced", "limpet:journal:cut", "limpet:journal:odd", "limpet:run:gone")
        client.set("limpet:run:replaced", "something else")
        client.set("limpet:journal:odd", "something else")
        assert [head.run_id for head in ready_runs(store, ["g"], 1)] == ["sound"]
        assert client.zcard("limpet:runs:urgent:g") == 5
        # As if they had become due by and by.
        client.zadd("limpet:runs:due:g", {"replaced": 0.0, "gone": 0.0})
        assert [head.run_id for head in ready_runs(store, ["g"], 9)] == ["sound"]
        assert client.zrange("limpet:runs:due:g", 0, -1) == [b"replaced"]

    @pytest.mark.parametrize("change", ["delete", "pop", "push", "type", "rename"])
    def test_a_journal_of_another_length_is_noticed(
        self, store: RedisStore, client: Any, change: str
    ) -> None:
        """H5: evicted, cut, or written to by another program."""
        begin(store, "r", b"1", b"2", b"3")
        begin(store, "s")
        name = "limpet:journal:r"
        if change in ("delete", "type"):
            client.delete(name)
        if change == "pop":
            client.lpop(name)
        if change == "push":
            client.rpush(name, b"4")
        if change == "type":
            client.set(name, b"x")
        if change == "rename":
            client.rename("limpet:run:r", "limpet:run:t")
            client.rename(name, "limpet:journal:t")
        run_id = "t" if change == "rename" else "r"
        for call in (store.head, store.read):
            with pytest.raises(DamagedRecord):
                call(run_id)
        if change != "rename":
            (outcome,) = store.append([Commit("r", 1, 3, [b"x"])])
            assert isinstance(outcome, DamagedRecord)
            with pytest.raises(DamagedRecord):
                store.prune("r", 2)
        assert store.read("s").records == [b"1"]

    def test_a_newer_format_is_refused(self, store: RedisStore, client: Any) -> None:
        """P10."""
        begin(store)
        values = [client.hget("limpet:run:r", name) for name in CHECKSUMMED_FIELDS[1:]]
        client.hset("limpet:run:r", mapping={"v": "5", "sum": checksum([b"5", *values])})
        with pytest.raises(StoreUnavailable, match="upgrade"):
            store.read("r")


class TestKeys:
    def test_prefixes_keep_stores_apart(self, server: RedisServer, client: Any) -> None:
        with (
            closing(open_store(f"{server.url}?prefix=a:")) as one,
            closing(open_store(f"{server.url}?prefix=b:")) as other,
        ):
            one.create(NewRun("r", "g", [b"of one"]))
            other.create(NewRun("r", "g", [b"of other"]))
            one.delete("r")
            assert other.read("r").records == [b"of other"]
            assert one.list(RunFilter()) == []
            assert {key.split(b":")[0] for key in client.scan_iter()} == {b"b"}

    def test_a_deleted_run_takes_no_space(self, store: RedisStore, client: Any) -> None:
        """P7."""
        for run_id in ("deleted", "expired"):
            store.create(
                NewRun(run_id, "g", [b"1", b"2"], due=0.0, tags=("a", "b"), parent="p", holder="ann")
            )
            store.post(run_id, "key", b"")
            store.add_output(run_id, 1, [b"emitted"], 5)
            store.release(Lease(run_id, 1, 0.0))
        ended = Commit("expired", 1, 2, [b"3"], status=COMPLETED, takes=1, labels=Labels("n", "e", "w"))
        assert store.append([ended]) == [None]
        store.delete("deleted")
        assert store.expire(-1) == 1
        assert client.keys() == []

    def test_ended_runs_expire_by_themselves(self, server: RedisServer, client: Any) -> None:
        """P7: by ttl, counted by the server; a run that hasn't ended, or that a process holds, stays."""
        keys = ("limpet:run:r", "limpet:journal:r", "limpet:posts:r", "limpet:output:r")
        with closing(open_store(f"{server.url}?ttl=3600")) as store:
            lease = store.create(NewRun("r", "g", [b"1"], holder="ann", tags=("a",), parent="p"))
            assert lease is not None
            store.add_output("r", 1, [b"emitted"], 5)
            assert [client.ttl(key) for key in keys] == [-1, -1, -2, -1]
            failed = Commit("r", 1, 1, [b"2"], status=FAILED, labels=Labels("n", "e", "w"))
            assert store.append([failed]) == [None]
            assert store.post("r", "key", b"")
            assert all(3590 < client.ttl(key) <= 3600 for key in keys)
            lease = store.claim("r", "bob", 10)
            assert [client.ttl(key) for key in keys] == [-1] * 4
            store.release(lease)
            assert all(3590 < client.ttl(key) <= 3600 for key in keys)
            for key in keys:
                client.pexpire(key, 1)
            while client.exists(*keys):
                pass
            assert store.list(RunFilter()) == store.list(RunFilter(statuses=(FAILED,))) == []
            assert client.keys() == []
            with pytest.raises(RunNotFound):
                store.head("r")
            store.create(NewRun("r", "g", [b"new"]))
            assert store.read("r", 1).records == [b"new"]

    def test_many_runs_are_listed_and_many_records_taken(self, store: RedisStore) -> None:
        for number in range(600):
            store.create(NewRun(f"{number:03}", "g" if number % 3 else "h", [b"1"]))
        assert len(store.list(RunFilter())) == 600
        listed = store.list(RunFilter(graph="h"))
        found = store.list(RunFilter(graph="h", limit=3, after=listed[99].cursor))
        assert [head.run_id for head in found] == ["297", "294", "291"]
        records = [b"%d" % number for number in range(12_000)]
        assert store.append([Commit("000", 1, 1, records)]) == [None]
        assert store.read("000", 2).records == records


class TestPlaces:
    def test_runs_that_are_not_ready_are_not_read(self, store: RedisStore, client: Any) -> None:
        """H1: neither those that are held, nor those that have ended or are due later, nor another graph's."""
        more: dict[str, Any]
        for number in range(200):
            for more in (
                {"graph": "g", "holder": "ann", "ttl": 1e6, "due": 0.0},
                {"graph": "g", "status": COMPLETED},
                {"graph": "g", "due": 1e12},
                {"graph": "h", "due": 0.0},
            ):
                store.create(
                    NewRun(f"{number} {len(more)} {more['graph']} {more.get('due')}", records=[], **more)
                )
        store.create(NewRun("r", "g", [b"1"], due=0.0))
        assert [head.run_id for head in ready_runs(store, ["g"], 10)] == ["r"]
        client.config_resetstat()
        assert [head.run_id for head in ready_runs(store, ["g"], 10)] == ["r"]
        assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 1

    def test_runs_that_are_ready_are_found_without_reading_the_backlog(
        self, store: RedisStore, client: Any
    ) -> None:
        """H2: the server reads the heads that it answers with, however many new runs wait."""
        for number in range(600):
            store.create(
                NewRun(f"r{number}", "gh"[number % 2], [b"1"], due=float(number), priority=number % 3)
            )
        for _ in range(2):
            client.config_resetstat()
            found = ready_runs(store, ["g", "h"], 4)
            assert [head.run_id for head in found] == ["r2", "r5", "r8", "r11"]
            assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 4

    def test_a_run_leaves_no_trace_among_the_urgent_ones(self, store: RedisStore, client: Any) -> None:
        """P7: when it is deleted, expires, ends or is claimed."""
        for run_id in ("claimed", "deleted", "ended", "expired"):
            store.create(NewRun(run_id, "g", [b"1"], due=0.0))
        assert len(ready_runs(store, ["g"], 9)) == 4
        store.claim("claimed", "ann", 10)
        store.delete("deleted")
        assert store.append([Commit("ended", 1, 1, [], status=COMPLETED)]) == [None]
        assert store.expire(-1, (RUNNING,)) == 1
        assert client.exists("limpet:runs:urgent:g") == 0

    def test_runs_of_an_earlier_version_are_found(self, store: RedisStore, client: Any) -> None:
        """P10: and so is a run that a process of that version has claimed, released or changed since."""
        store.create(NewRun("r", "g", [b"1"], due=0.0))
        assert [head.run_id for head in ready_runs(store, ["g"], 9)] == ["r"]
        # As an earlier version does: it knows the sets of due runs only.
        client.delete("limpet:runs:urgent:g")
        client.zadd("limpet:runs:due:g", {"r": 0.0})
        assert [head.run_id for head in ready_runs(store, ["g"], 9)] == ["r"]
        client.zadd("limpet:runs:due:g", {"r": 0.0})
        assert [head.run_id for head in ready_runs(store, ["g"], 9)] == ["r"]

    def test_a_unix_socket(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with (
            redis_server(tmp_path / "unix", unixsocket=str(path)),
            closing(open_store(f"redis+unix://{path}?db=3")) as store,
        ):
            begin(store)
            assert store.read("r").records == [b"1"]
            assert "database 3" in repr(store)

    def test_a_url_that_is_open_already_is_the_same_store(self, server: RedisServer) -> None:
        with closing(open_store(server.url)) as store:
            assert open_store(server.url) is store
        with closing(open_store(server.url)) as again:
            assert again is not store

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """P5."""
        monkeypatch.setitem(sys.modules, "redis", None)
        monkeypatch.setitem(sys.modules, "redis.exceptions", None)
        with pytest.raises(StoreUnavailable, match=r"limpet\[redis\]"):
            open_store("redis://localhost/9")

    def test_nothing_is_imported_before_it_is_needed(self) -> None:
        code = (
            "import sys, limpet; print([name for name in sys.modules if 'redis' in name or 'tiered' in name])"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "[]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_has_connections_of_its_own(store: RedisStore) -> None:
    """P8: parent and child write at once through the same store, and neither gets the other's answers."""
    for run_id in ("parent", "child"):
        begin(store, run_id)

    def write(run_id: str) -> None:
        for expected in range(1, 200):
            data = f"{run_id} {expected}".encode()
            assert store.append([Commit(run_id, 1, expected, [data])]) == [None]
            assert store.read(run_id, expected + 1).records == [data]

    child = os.fork()
    if child == 0:
        try:
            write("child")
            os._exit(0)
        finally:
            os._exit(1)
    write("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.head("parent").sequence == store.head("child").sequence == 200


def test_two_processes_share_a_run(store: RedisStore, server: RedisServer) -> None:
    """P8: of two writers at each place one wins, and a claim shuts the other out."""
    begin(store)
    code = f"""
from limpet.stores.redis.store import RedisStore
from limpet.journal.store import Commit
store = RedisStore({server.url!r})
won = 0
at = store.head("r").sequence
while at < 300:
    if store.append([Commit("r", 1, at, [b"child"])]) == [None]:
        won += 1
    at = store.head("r").sequence
print(won)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    won = 0
    at = 1
    while at < 300:
        won += store.append([Commit("r", 1, at, [b"parent"])]) == [None]
        at = store.head("r").sequence
    theirs = int(child.communicate(timeout=60)[0])
    records = store.read("r", 2).records
    assert (records.count(b"parent"), records.count(b"child")) == (won, theirs)
    assert won + theirs == len(records) == 299
    store.claim("r", "bob", 10, instead_of=1)
    (outcome,) = store.append([Commit("r", 1, 300, [b"late"])])
    assert isinstance(outcome, Conflict)


def test_only_our_errors_come_out(store: RedisStore, client: Any) -> None:
    """The driver's errors never leak out."""
    client.set("limpet:runs", "something else")
    for call in (lambda: store.list(RunFilter()), lambda: store.create(NewRun("r", "g", [b"1"]))):
        with pytest.raises(LimpetError):
            call()
    client.flushall()
    lease = begin(store)
    before = store.read("r")
    client.set("limpet:runs:due:g", "something else")
    (outcome,) = store.append([Commit("r", lease.fence, 1, [b"2"], status=RUNNING, due=0.0)])
    assert isinstance(outcome, LimpetError)
    assert store.read("r") == before
    client.set("limpet:runs:urgent:g", "something else")
    lanes = [Lane("default", "g", "")]
    for call in (lambda: store.ready(lanes, 1), lambda: store.create(NewRun("s", "g", [], due=0.0))):
        with pytest.raises(LimpetError):
            call()
    with pytest.raises(RunNotFound):
        store.head("s")
