"""The hunt through the conversation of a run with PostgreSQL and with Redis: networks that fail at each message."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from limpet import END, START, StateGraph, open_store, supervise
from limpet.errors import StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, Lease, NewRun
from limpet.stores.redis.store import RedisStore
from limpet.testing.conformance.store_calls import ready_runs
from limpet.testing.network.hunt import SLACK, NetworkHunt
from limpet.testing.network.proxy import DIRECTIONS, MODES, PLACES, Direction, FaultPoint, FaultyNetwork
from support.postgres import Server
from support.redis_servers import need_redis, redis_server

TIMEOUT = 1.5
PATIENCE = 40.0
"""The timeout of stores that are not to be waited for."""
STEPS = 3
EVERY_POINT = os.environ.get("NETWORK_POINTS") == "all"
"""Fail at every place of every message; otherwise at one place of each, in turn."""


def counting(observer: Any = None) -> StateGraph:
    graph = StateGraph({"n": int}, name="count", observer=observer)
    graph.add_node("step", run=lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: state["n"] < STEPS, {True: "step", False: END})
    return graph


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    need_redis()
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.port


@pytest.fixture(params=["postgres", "redis"])
def hunt_with(request: pytest.FixtureRequest) -> Callable[[float, bool], NetworkHunt]:
    """Gives a hunt with this timeout of the store; if `apart`, each of its runs has a store of its own."""
    target: Any
    if request.param == "redis":
        target = ("127.0.0.1", request.getfixturevalue("redis_port"))
        url = "redis://127.0.0.1:{port}/0"
        place = "&prefix=hunt-{port}:"
    else:
        target = request.getfixturevalue("postgres").socket_path
        database: str = request.getfixturevalue("database")
        open_store(database).close()  # so that no run of the hunt has to create the tables
        url = through(database)
        place = "&schema=hunt_{port}"

    def hunt(timeout: float, apart: bool = False) -> NetworkHunt:
        address = f"{url}?timeout={timeout}{place if apart else ''}"
        return NetworkHunt(
            target,
            open_store=lambda port: open_store(address.format(port=port)),
            timeout=timeout,
            build=counting,
            input={"n": 0},
        )

    return hunt


def through(database: str) -> str:
    """The URL of the database through a port that is to be filled in."""
    name = database.partition("?")[0].rpartition("/")[2]
    return f"postgresql://postgres@127.0.0.1:{{port}}/{name}"


def test_wherever_the_network_fails_each_call_ends_and_no_step_is_lost(
    hunt_with: Callable[[float, bool], NetworkHunt],
) -> None:
    """P8, invariants 1 and 2: silent, half silent, late, slow, reset and down, at each message in both directions."""
    hunt = hunt_with(TIMEOUT, False)
    points = hunt.points()
    if not EVERY_POINT:
        points = [
            point
            for point in points
            if PLACES.index(point.where) == (point.nth + MODES.index(point.mode)) % len(PLACES)
        ]
    report = hunt.run(points, at_once=32)
    assert report.ok, str(report)
    # On a busy machine, messages arrive together: there are fewer than there were at first.
    struck = {(each.point.mode, each.point.direction) for each in report.attempts if each.struck}
    assert struck == set(itertools.product(MODES, DIRECTIONS))
    # The others failed while the store was opened, which is tried once; or, on a busy machine, as time ran out.
    assert report.continued >= report.struck * 0.4, str(report)
    print(report)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_supervisor_is_left_within_its_grace_wherever_the_network_fails(
    hunt_with: Callable[[float, bool], NetworkHunt], direction: Direction
) -> None:
    """H2: however long the store may take to answer. The run is resumed when the network is back."""
    hunt = hunt_with(PATIENCE, True)  # apart: no supervisor may resume the run of another
    hunt.points()
    points = [FaultPoint("down", direction, nth, "before") for nth in range(1, 5)]
    with ThreadPoolExecutor(len(points)) as threads:
        problems = list(threads.map(lambda point: hunt.leave(point, grace=0.3), points))
    assert problems == [[]] * len(points)


def test_a_supervisor_on_an_event_loop_is_left_while_its_store_is_silent(
    postgres: Server, database: str
) -> None:
    """H2: though every thread that it has for the store waits for an answer."""
    with FaultyNetwork(postgres.socket_path) as network:
        store = open_store(through(database).format(port=network.port) + f"?timeout={PATIENCE}")
        graph = counting()
        graph.compile(store=store)

        async def leave() -> float:
            async with supervise(store, [graph], poll=0.05, grace=0.3):
                fault = network.plan("down", "to_server")
                await asyncio.to_thread(fault.wait)
                began = monotonic()
            return monotonic() - began

        assert asyncio.run(leave()) < PATIENCE / 2
        network.heal()
        store.close()


def test_a_server_that_is_silent_while_it_is_opened_keeps_no_other_store_waiting(
    postgres: Server, tmp_path: Path
) -> None:
    """P5: a thread opens a silent server; meanwhile others open what they need."""
    with FaultyNetwork(postgres.socket_path) as network:
        network.go_down()
        failed: list[Exception] = []

        def open_silent() -> None:
            try:
                open_store(f"postgresql://postgres@127.0.0.1:{network.port}/postgres?timeout={PATIENCE}")
            except StoreUnavailable as error:
                failed.append(error)

        thread = threading.Thread(target=open_silent, daemon=True)
        thread.start()
        deadline = monotonic() + 30
        while not network.connections:
            assert monotonic() < deadline
        open_store(f"sqlite:///{tmp_path}/runs.db").close()
        assert failed == []
        network.close()
        thread.join(30)
        assert len(failed) == 1


class TestRedis:
    """P8: what only the Redis store does when its network is silent."""

    @pytest.fixture
    def network(self, redis_port: int) -> Iterator[FaultyNetwork]:
        with FaultyNetwork(("127.0.0.1", redis_port)) as network:
            yield network

    @pytest.fixture
    def store(self, network: FaultyNetwork, tmp_path: Path) -> Iterator[RedisStore]:
        """A store whose calls have time, also on a busy machine."""
        url = f"redis://127.0.0.1:{network.port}/0"
        with closing(RedisStore(url, prefix=f"{tmp_path.name}:", timeout=4.0)) as store:
            yield store

    def test_every_call_ends_when_the_network_is_down(self, network: FaultyNetwork, tmp_path: Path) -> None:
        """With an error that names the timeout; closing the store doesn't wait either."""
        url = f"redis://127.0.0.1:{network.port}/0"
        store = RedisStore(url, prefix=f"{tmp_path.name}:", timeout=0.6)
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        network.go_down()
        for call in (
            lambda: store.append([Commit("r", 1, 1, [b"2"])]),
            lambda: ready_runs(store, ["g"], 1),
            lambda: store.list(RunFilter()),
            lambda: store.renew([Lease("r", 1, 0.0)], 10),
            lambda: RedisStore(url, timeout=0.6),
        ):
            began = monotonic()
            with pytest.raises(StoreUnavailable, match=r"didn't answer within 0\.6 s"):
                call()
            assert monotonic() - began < SLACK
        began = monotonic()
        store.close()
        assert monotonic() - began < SLACK

    def test_a_run_whose_deletion_was_not_answered_counts_as_deleted(
        self, network: FaultyNetwork, store: RedisStore
    ) -> None:
        """It is found missing when the call is repeated; that isn't an error of the caller."""
        store.create(NewRun("r", "g", [b"1"]))
        fault = network.plan("silent", "to_client")
        store.delete("r")
        assert fault.struck
        assert store.list(RunFilter()) == []

    def test_idle_connections_are_not_trusted_after_one_was_silent(
        self, network: FaultyNetwork, store: RedisStore
    ) -> None:
        """A firewall that forgets one connection forgets all: three silent ones would use up the time."""
        for _ in range(4):
            store._connections._idle.append(store._connections._connect())
        network.plan("silent", "to_server")
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        assert len(store._connections._idle) == 1


def test_a_fault_that_makes_no_sense_is_refused(redis_port: int) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"mode": "loud"},
        {"mode": "silent", "nth": 0},
        {"mode": "slow", "where": "there"},
    )
    with FaultyNetwork(("127.0.0.1", redis_port)) as network:
        for arguments in wrong:
            with pytest.raises(UsageError):
                network.plan(**arguments)


def test_a_server_that_is_missing_resets_connections(tmp_path: Path) -> None:
    """What is behind a network is reached when a client connects, and not before."""
    need_redis()
    with FaultyNetwork(str(tmp_path / "nothing")) as network, pytest.raises(StoreUnavailable):
        RedisStore(f"redis://127.0.0.1:{network.port}/0", timeout=0.2)
