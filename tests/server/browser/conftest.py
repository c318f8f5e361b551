"""What the tests of the web page share: a browser, servers, and visitors that must see nothing go wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from limpet import MemoryStore, supervise
from support import sample_runs
from support.http_server import Served, served
from support.waiting import until

if TYPE_CHECKING:
    from support.browser import Desk, Visitor

Serve = Callable[..., Served]

WATCHER = "limpet-run-changes"
"""The thread of a server that ends when its last client has left."""


@pytest.fixture(scope="session")
def desk() -> Iterator[Desk]:
    """The browser of this test process."""
    from support.browser import browser

    with browser() as started:
        yield started


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve the runs of a store: `serve(store, graphs)`. With `works`, a worker executes them in this process."""
    with ExitStack() as stack:

        def start(
            store: Any, graphs: Any = (), *, works: bool = False, application: Any = None, **options: Any
        ) -> Served:
            if works:
                stack.enter_context(supervise(store, list(graphs), poll=0.05))
            if application is not None:
                return stack.enter_context(Served(application))
            return stack.enter_context(served(store, graphs, **options))

        yield start
    until(lambda: WATCHER not in [thread.name for thread in threading.enumerate()], "the end of the watcher")


@pytest.fixture
def visitor(serve: Serve, desk: Desk) -> Iterator[Visitor]:
    """Opens pages. Whatever the test is about: no error, no refused script, no request to another host."""
    from support.browser import Visitor, used

    with used(desk):
        person = Visitor(desk)
        yield person
        person.leave()
    assert person.faults == []


class Samples(NamedTuple):
    """Runs of every kind, and their graphs by name."""

    store: Any
    graphs: dict[str, Any]


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> Samples:
    """Runs of every kind, made without waiting."""
    monkeypatch.setattr(sample_runs, "PACE", 0)
    store = MemoryStore()
    return Samples(store, sample_runs.fill(store))
