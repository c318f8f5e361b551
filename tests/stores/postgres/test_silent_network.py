"""A network between a store and PostgreSQL that stops to deliver, and tells neither side."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from time import monotonic
from typing import Any

import pytest

from limpet import open_store
from limpet.errors import StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Commit, Lease, NewRun
from limpet.stores.postgres import listener
from limpet.testing.conformance.store_calls import ready_runs
from limpet.testing.network.proxy import DIRECTIONS, PLACES, Direction, FaultyNetwork, Where
from support.postgres import Server

TIMEOUT = 1.5
SLACK = 6.0
"""Seconds that a call may take beyond its timeout: a busy machine, and the driver's least time for a connection."""


@pytest.fixture
def network(postgres: Server) -> Iterator[FaultyNetwork]:
    with FaultyNetwork(postgres.socket_path) as network:
        yield network


@pytest.fixture
def store(network: FaultyNetwork, database: str) -> Iterator[Any]:
    """A store whose connections go through the network."""
    with closing(open_store(address(network, database))) as store:
        yield store


def address(network: FaultyNetwork, database: str, timeout: float = TIMEOUT) -> str:
    name = database.partition("?")[0].rpartition("/")[2]
    return f"postgresql://postgres@127.0.0.1:{network.port}/{name}?timeout={timeout}"


def within_timeout(call: Any) -> Any:
    """What the call returns or raises, which it has to do within the store's timeout."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    began = monotonic()
    thread.start()
    thread.join(TIMEOUT + SLACK)
    assert not thread.is_alive(), f"the call still waits after {monotonic() - began:.1f} s"
    return outcome[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("where", PLACES)
def test_a_save_on_a_silent_connection_is_settled_on_another_one(
    network: FaultyNetwork, store: Any, direction: Direction, where: Where
) -> None:
    """P8: whether it arrived or not, it is saved once, and reported as saved."""
    store.create(NewRun("r", "g", [b"1"], holder="ann"))
    for number, more in enumerate(({}, {"note": b"n"}, {"status": COMPLETED}), 2):
        fault = network.plan("silent", direction, where=where)
        commit = Commit("r", 1, number - 1, [b"%d" % number], **more)
        assert within_timeout(lambda: store.append([commit])) == [None]  # noqa: B023
        assert fault.struck
    network.heal()
    assert store.read("r", 1).records == [b"1", b"2", b"3", b"4"]


def test_every_call_ends_when_the_network_is_down(network: FaultyNetwork, database: str) -> None:
    """P8: with an error that names the timeout; when the network is back, the store works again."""
    store = open_store(f"{address(network, database)}&connections=30")
    lease = store.create(NewRun("r", "g", [b"1"], holder="ann", due=0.0))
    calls = (
        lambda: store.append([Commit("r", 1, 1, [b"2"])]),
        lambda: store.append([Commit("r", 1, 1, [b"2"]), Commit("s", 1, 1, [b"2"], note=b"n")]),
        lambda: store.create(NewRun("s", "g", [b"1"])),
        lambda: store.head("r"),
        lambda: store.read("r"),
        lambda: store.claim("r", "bob", 10, 1),
        lambda: store.renew([lease], 10),
        lambda: store.release(lease),
        lambda: store.heads(["r"]),
        lambda: store.post("r", "key", b""),
        lambda: store.inbox("r"),
        lambda: store.add_output("r", 1, [b""], 1),
        lambda: store.output("r"),
        lambda: store.put_document("d", b"", 0),
        lambda: store.get_document("d"),
        lambda: store.list_documents(),
        lambda: store.delete_document("d", 1),
        lambda: ready_runs(store, ["g"], 10),
        lambda: store.list(RunFilter()),
        lambda: store.prune("r", 1),
        lambda: store.expire(1e9),
        lambda: store.delete("s"),
    )
    with closing(store), ThreadPoolExecutor(len(calls)) as threads:
        together = threading.Barrier(len(calls))
        store_calls = [threads.submit(store._connections.use, lambda *_: together.wait(30)) for _ in calls]
        assert [each.result() is None for each in store_calls] == [False] * len(calls)
        network.go_down()
        for outcome in threads.map(within_timeout, calls):
            assert isinstance(outcome, StoreUnavailable)
            assert "didn't answer within 1.5 s" in str(outcome)
        network.heal()
        assert store.head("r").graph == "g"


def test_opening_and_closing_end_when_the_network_is_down(
    network: FaultyNetwork, database: str, store: Any
) -> None:
    store.create(NewRun("r", "g", [b"1"]))
    network.go_down()
    outcome = within_timeout(lambda: open_store(address(network, database, 1.4)))
    assert isinstance(outcome, StoreUnavailable)
    assert "didn't answer within 1.4 s" in str(outcome)
    assert within_timeout(store.close) is None


@pytest.mark.parametrize("nth", range(1, 7))
def test_a_new_connection_that_goes_silent_is_given_up(
    network: FaultyNetwork, database: str, nth: int
) -> None:
    """P8: at each message of its beginning; the next attempt succeeds."""
    fault = network.plan("silent", "to_client", nth=nth)
    outcome = within_timeout(lambda: open_store(address(network, database)))
    if fault.struck:
        assert isinstance(outcome, StoreUnavailable)
        assert "didn't answer within 1.5 s" in str(outcome)
        outcome = open_store(address(network, database))
    with closing(outcome) as store:
        assert store.list(RunFilter()) == []


def test_a_save_that_is_delivered_late_changes_nothing(network: FaultyNetwork, store: Any) -> None:
    """Invariant 2: after the store has given up the connection, and has saved the commit on another one."""
    store.create(NewRun("r", "g", [b"1"], holder="ann"))
    network.plan("late", "to_server")
    assert within_timeout(lambda: store.append([Commit("r", 1, 1, [b"2"])])) == [None]
    assert store.append([Commit("r", 1, 2, [b"3"])]) == [None]
    assert store.read("r", 1).records == [b"1", b"2", b"3"]


def test_idle_connections_are_not_trusted_after_one_was_silent(network: FaultyNetwork, store: Any) -> None:
    """A firewall that forgets one connection forgets all: each call would wait for a silent one in turn."""
    together = threading.Barrier(4)

    def use(cursor: Any, again: bool) -> None:
        together.wait(30)

    threads = [threading.Thread(target=store._connections.use, args=(use,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(store._connections._idle) == 4
    store.create(NewRun("r", "g", [b"1"], holder="ann"))
    network.plan("silent", "to_server")
    assert within_timeout(lambda: store.head("r")).graph == "g"
    assert len(store._connections._idle) == 1


def test_a_thread_that_waits_for_a_change_notices_a_silent_connection(
    network: FaultyNetwork, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for a sign of life; a silent connection counts as a change, and is replaced."""
    monkeypatch.setattr(listener, "LONGEST_SILENCE", 0.3)
    assert store.wait_for_change(0.0)  # a new connection
    before = store._listener._cursor
    network.plan("silent", "to_server")
    assert within_timeout(lambda: store.wait_for_change(30.0)) is True
    assert before.connection.closed
    deadline = monotonic() + 30
    while store._listener._cursor is None:
        assert monotonic() < deadline
        store.wait_for_change(0.1)
    with suppress(StoreUnavailable):
        store.release(Lease("r", 1, 0.0))


def test_dead_connections_are_noticed_by_the_system_too(store: Any) -> None:
    """The system asks for a sign of life and gives up what it can't deliver, also while no call waits."""
    cursor = store._connections.open()
    file = cursor.connection.pgconn.socket
    with closing(cursor.connection), socket.fromfd(file, socket.AF_INET, socket.SOCK_STREAM) as line:
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_interrupt_while_the_server_is_silent_takes_effect_at_once(
    network: FaultyNetwork, database: str, direction: Direction
) -> None:
    """Ctrl-C during a save, and during a call of the driver's cursor: neither waits for the server."""
    with closing(open_store(address(network, database, 40))) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        for call in (lambda: store.append([Commit("r", 1, 1, [b"2"])]), lambda: store.head("r")):
            fault = network.plan("silent", direction)

            def interrupt() -> None:
                fault.wait(30)  # noqa: B023
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            thread = threading.Thread(target=interrupt)
            thread.start()
            began = monotonic()
            try:
                with pytest.raises(KeyboardInterrupt):
                    call()
            finally:
                thread.join(30)
                signal.signal(signal.SIGINT, before)
            assert monotonic() - began < SLACK
        assert store.head("r").graph == "g"
