"""Limits and schedules whose documents can't be read: others work, and the user repairs them. In every store."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from limpet import (
    END,
    START,
    DamagedDocument,
    Limit,
    Limits,
    Schedules,
    State,
    StateGraph,
    loads,
    open_store,
    supervise,
)
from limpet.cli.commands.schedules import put_declared
from limpet.cli.main import main
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.leases.limit_slots import LimitClient, SlotRequest, limits_of
from limpet.engine.schedules.schedule import find_schedule
from limpet.graphs.names import LIMITS, LINES
from limpet.journal.store import NewRun, Store, document_version
from limpet.stores.files.documents import document_file
from support.damage import changed_at_its_end
from support.damaged_places import Place, local_place
from support.graphs import single
from support.redis_servers import redis_server
from support.waiting import until

API = Limit("api", concurrency=1)

FILE = """
name: letters
nodes:
  - name: send
    set: {sent: true}
schedules:
  - {name: nightly, every: 15m, starts: "2020-01-01T00:00:00Z", catch_up: all}
"""


def sqlite_damage(path: Path) -> Callable[[str], None]:
    def damage(name: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            changed = connection.execute("UPDATE documents SET body = x'c1' WHERE name = ?", (name,))
            assert changed.rowcount == 1

    return damage


def file_damage(path: Path) -> Callable[[str], None]:
    def damage(name: str) -> None:
        file = path / "documents" / f"{document_file(name)}.document"
        file.write_bytes(changed_at_its_end(file.read_bytes()))

    return damage


def damage_through(url: str) -> Callable[[str], None]:
    """For a store that notices no damage to documents by itself: those who read them do."""

    def damage(name: str) -> None:
        store = open_store(url)
        found = store.get_document(name)
        assert found is not None
        assert store.put_document(name, b"\xc1", found.version, found.due) is not None

    return damage


@pytest.fixture(params=["sqlite", "files", "postgres", "redis", "encrypted", "tiered"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    path = tmp_path / "store"
    if request.param == "redis":
        with redis_server(tmp_path) as server, server.client() as client:
            yield Place(server.url, lambda name: client.hset("limpet:documents", f"d:{name}", "?"), {})
    elif request.param == "postgres":
        url = request.getfixturevalue("database")
        yield Place(url, damage_through(url), {})
        open_store(url).close()
    else:
        yield local_place(request.param, path, sqlite_damage(path), file_damage(path))


def counted(state: State) -> dict[str, int]:
    return {"n": 1}


def named_graphs(store: Store) -> tuple[StateGraph, StateGraph]:
    """One with a node that needs the limit, and one without."""
    translate = StateGraph(name="translate")
    translate.add_node("ask", run=counted, limits=[API])
    translate.add_edge(START, "ask")
    translate.add_edge("ask", END)
    return translate.compile(store=store), single(counted, name="reports").compile(store=store)


def in_line(store: Store, *run_ids: str) -> tuple[LimitClient, list[SlotRequest]]:
    """A process whose calls ask for slots of the limit: the first has it, the others stand in line."""
    limits = limits_of(LeaseClient(store))
    limits.declare([API])
    leases = [store.create(NewRun(run_id, "g", [b"x"], holder="h", ttl=600)) for run_id in run_ids]
    requests = [SlotRequest(lease, "ask#1", ("api",)) for lease in leases if lease is not None]
    limits.acquire(requests, stands_in_line=True)
    return limits, requests


def posts(store: Store, run_id: str) -> int:
    return len(store.inbox(run_id))


def test_a_damaged_limit_holds_up_only_the_runs_that_need_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """H18: until it is deleted. The log says so once, and a held-up run says why."""
    with place.opened() as store:
        Limits(store).set("api", concurrency=1)
    place.damage("limit/api")
    with place.opened() as store:
        translate, reports = named_graphs(store)
        stuck = [translate.start({}, priority=1) for _ in range(3)]
        with caplog.at_level(logging.WARNING), supervise(store, [translate, reports], poll=0.02):
            for _ in range(3):
                reports.start({}).result(timeout=60)
            assert {handle.info.shown_status for handle in stuck} == {"queued"}
            (held,) = Limits(store).held_up_by(stuck[0].info, translate.compiled())
            assert (held.limit, held.usage[:14]) == ("api", "it is damaged:")
            Limits(store).delete("api")
            for handle in stuck:
                handle.result(timeout=60)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == len(set(texts)), "each problem is logged once"
    assert any("'limit/api' is damaged" in text for text in texts)


def test_runs_of_a_queue_wait_while_its_limit_is_damaged(place: Place) -> None:
    """H18: where a graph that declares it is known; those of other queues aren't held up."""
    gpus = Limit("api", concurrency=1, queues=["gpu"])
    with place.opened() as store:
        limits_of(LeaseClient(store)).declare([gpus])
    place.damage("limit/api")
    with place.opened() as store:
        declaring = single(lambda state: {"n": 1}, name="declares").compile(store=store, limits=[gpus])
        other = single(lambda state: {"n": 1}, name="other").compile(store=store)
        stuck = other.start({}, queue="gpu", priority=1)
        with supervise(store, [declaring, other], poll=0.02):
            for graph in (other, declaring):
                graph.start({}).result(timeout=60)
            assert stuck.info.shown_status == "queued"
            Limits(store).set("api", concurrency=1, queues=["gpu"])
            stuck.result(timeout=60)


def test_runs_wait_for_a_limit_that_is_damaged_while_a_worker_uses_it(place: Place) -> None:
    """H18: they stay queued, and don't fail one by one."""
    with place.opened() as store:
        translate, reports = named_graphs(store)
        with supervise(store, [translate, reports], poll=0.02):
            translate.start({}).result(timeout=60)
            until(lambda: not Limits(store).get("api").held)  # to release a slot would write the limit
            place.damage("limit/api")
            limits = limits_of(client_for(store))
            until(lambda: is_damaged(limits))
            stuck = [translate.start({}, priority=1) for _ in range(3)]
            for _ in range(3):
                reports.start({}).result(timeout=60)
            assert {handle.info.shown_status for handle in stuck} == {"queued"}
            Limits(store).set("api", concurrency=1)
            for handle in stuck:
                handle.result(timeout=60)


def is_damaged(limits: LimitClient) -> bool:
    """Whether this process has noticed that the limit is damaged."""
    try:
        limits.check_readable(["api"])
    except DamagedDocument:
        return True
    return False


def test_a_damaged_limit_is_deleted_and_its_line_continues(place: Place) -> None:
    """H18."""
    with place.opened() as store:
        in_line(store, "a", "b", "c")
    place.damage("limit/api")
    with place.opened() as store:
        limits = Limits(store)
        with pytest.raises(DamagedDocument, match=r"'limit/api' is damaged: .*limpet limits delete api"):
            limits.get("api")
        assert limits.list() == []
        limits.delete("api")
        assert [posts(store, run_id) for run_id in "abc"] == [0, 1, 1]
        assert [*store.list_documents(LIMITS), *store.list_documents(LINES)] == []
        assert document_version(store, "limit/api") == 0


def test_a_damaged_limit_is_replaced_by_what_is_set(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """H18: with a warning. The calls in line keep their places, and get the slots that there are now."""
    with place.opened() as store:
        in_line(store, "a", "b", "c", "d")
    place.damage("limit/api")
    with place.opened() as store:
        with caplog.at_level(logging.WARNING, "limpet.limits"):
            info = Limits(store).set("api", concurrency=2)
        assert "limit 'api' was damaged, and is replaced" in caplog.text
        assert (info.concurrency, info.waiting) == (2, 1)
        assert [(each.run_id, each.state) for each in info.held] == [("b", "reserved"), ("c", "reserved")]
        assert [posts(store, run_id) for run_id in "abcd"] == [0, 1, 1, 0]
        assert [info.name for info in Limits(store).list()] == ["api"]


def test_a_damaged_limit_is_not_replaced_by_what_code_declares(place: Place) -> None:
    """H18: its values may have been set at run time, so a person decides."""
    with place.opened() as store:
        Limits(store).set("api", concurrency=1)
    place.damage("limit/api")
    with place.opened() as store, pytest.raises(DamagedDocument):
        limits_of(LeaseClient(store)).declare([Limit("api", concurrency=100)])


def test_a_damaged_place_in_a_line_hides_none_behind_it(place: Place) -> None:
    """H18: the next call in line gets the slot."""
    with place.opened() as store:
        _, requests = in_line(store, "a", "b", "c")
        first = store.list_documents(LINES)[0].name
    place.damage(first)
    with place.opened() as store:
        limits_of(LeaseClient(store)).release(requests[:1])
        assert [posts(store, run_id) for run_id in "abc"] == [0, 0, 1]


def test_a_damaged_schedule_is_deleted(place: Place) -> None:
    """H17: others are listed meanwhile."""
    with place.opened() as store:
        _, graph = named_graphs(store)
        for name in ("broken", "sound"):
            Schedules(store).add(name, graph, every="10m")
    place.damage("schedule/broken")
    with place.opened() as store:
        schedules = Schedules(store)
        for call in (schedules.get, schedules.pause, schedules.trigger):
            with pytest.raises(DamagedDocument, match=r"schedule/broken.*limpet schedules delete broken"):
                call("broken")
        assert [info.name for info in schedules.list()] == ["sound"]
        schedules.delete("broken")
        assert find_schedule(store, "broken") is None
        assert [info.name for info in schedules.list()] == ["sound"]


def test_a_damaged_schedule_is_replaced_if_the_user_says_so(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """H17: with a warning. It has the times from now on, as it isn't known which were fired."""
    with place.opened() as store:
        _, graph = named_graphs(store)
        Schedules(store).add("nightly", graph, every="10m")
    place.damage("schedule/nightly")
    with place.opened() as store:
        _, graph = named_graphs(store)
        schedules = Schedules(store)
        with pytest.raises(DamagedDocument, match="replace=True"):
            schedules.add("nightly", graph, every="10m")
        with caplog.at_level(logging.WARNING, "limpet.schedules"):
            info = schedules.add(
                "nightly", graph, every="1h", starts="2020-01-01T00:00:00Z", catch_up="all", replace=True
            )
        assert "schedule nightly was damaged, and is replaced" in caplog.text
        assert info.next_time is not None
        assert info.next_time.timestamp() > LeaseClient(store).store_time()
        assert schedules.get("nightly").when == info.when


def test_a_damaged_schedule_that_a_file_declares_keeps_no_worker_from_starting(place: Place) -> None:
    """H17: the file replaces it, as `schedules sync` does."""
    graph = loads(FILE)
    with place.opened() as store:
        put_declared([graph], store, print)
    place.damage("schedule/nightly")
    with place.opened() as store:
        (info,) = put_declared([graph], store, print)
        assert (info.name, info.status) == ("nightly", "active")
        assert [each.name for each in Schedules(store).list()] == ["nightly"]


def test_a_damaged_schedule_concerns_no_other(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """H17: those that are due are fired, and the log says once what is wrong."""
    with place.opened() as store:
        _, graph = named_graphs(store)
        for name in ("broken", "sound"):
            Schedules(store).add(name, graph, every="1s")
    place.damage("schedule/broken")
    with place.opened() as store:
        _, graph = named_graphs(store)
        with caplog.at_level(logging.WARNING), supervise(store, [graph], poll=0.02):
            until(lambda: Schedules(store).get("sound").fired >= 2)
    texts = [record.getMessage() for record in caplog.records if "broken" in record.getMessage()]
    assert len(texts) == len(set(texts)) == 1


def test_verify_lists_damaged_documents(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """H5: the exit code says so."""
    if place.options or place.url.startswith("tiered"):
        pytest.skip("the command opens stores by their URL")
    command = ("--store", place.url, "store", "verify")
    with place.opened() as store:
        _, graph = named_graphs(store)
        Limits(store).set("api", concurrency=1)
        Schedules(store).add("nightly", graph, every="10m")
        graph.execute({}, run_id="r")
    assert main(command) == 0
    capsys.readouterr()
    place.damage("limit/api")
    place.damage("schedule/nightly")
    assert main(command) == 1
    shown = capsys.readouterr().out
    assert "limit/api" in shown
    assert "schedule/nightly" in shown
    assert main((*command, "r")) == 0
