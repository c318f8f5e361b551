"""A hunt through the conversation of a run with its store: the network fails at each message in turn.

hunt = NetworkHunt(
    ("127.0.0.1", 5432),
    open_store=lambda port: limpet.open_store(f"postgresql://ann@127.0.0.1:{port}/runs?timeout=1.5"),
    timeout=1.5,
    build=lambda observer: my_graph(observer=observer),
    input={"n": 0},
)
report = hunt.run(hunt.points())
assert report.ok, report

For each point (a message, a place in it, and a way to fail) a run is executed through a `FaultyNetwork`. Then it is
checked: no call of the store took longer than its timeout; the run ended as an undisturbed one, or failed because of
`StoreUnavailable` and did so when it was resumed; no step that was reported as saved is missing or was called again;
the journal is whole. `leave` checks that a supervisor can be left within its grace while its store is silent.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from limpet.errors import LimpetError, RunNotFound, StoreUnavailable
from limpet.journal.store import COMPLETED, Store
from limpet.observe.events import CHECKPOINT_SAVE, NODE_START, Event
from limpet.supervision import supervise
from limpet.testing.faults import FaultyStore
from limpet.testing.network.proxy import (
    DIRECTIONS,
    MODES,
    PLACES,
    Direction,
    FaultPoint,
    FaultyNetwork,
    Mode,
    NetworkFault,
    Where,
)

SLACK = 6.0
"""Seconds that a call may take beyond its timeout, and a supervisor beyond its grace: the machine may be busy."""

PATIENCE = 60.0
"""Seconds for what must succeed once the network works: a server is busy with many runs, and the timeout is short."""

PAUSE = 0.05

T = TypeVar("T")

Observer = Callable[[Event], None]

_numbers = count()


class Attempt(NamedTuple):
    """What happened at one point: whether the fault struck, the first error of the run if any, and what is wrong."""

    point: FaultPoint
    struck: bool
    error: Exception | None
    longest_call: float
    problems: list[str]


class HuntReport:
    """What a hunt found. `ok` says whether all is well, and `str()` of it is to be read."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = attempts

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """What went wrong, each with its point."""
        return [f"{each.point}: {problem}" for each in self.attempts for problem in each.problems]

    @property
    def struck(self) -> int:
        """At how many points the network failed."""
        return sum(each.struck for each in self.attempts)

    @property
    def continued(self) -> int:
        """In how many of these the run continued by itself, without an error."""
        return sum(each.struck and each.error is None for each in self.attempts)

    def __str__(self) -> str:
        modes = Counter(each.point.mode for each in self.attempts if each.struck)
        counts = ", ".join(f"{number} {mode}" for mode, number in sorted(modes.items()))
        longest = max((each.longest_call for each in self.attempts), default=0.0)
        lines = [
            f"{self.struck} faults ({counts}): {self.continued} runs continued, "
            f"{self.struck - self.continued} failed and were resumed; the longest call took {longest:.1f} s",
            *self.problems,
        ]
        return "\n".join(lines)


class NetworkHunt:
    """Executes the graph that `build` makes, on the server at `target`, through networks that fail.

    `open_store(port)` opens the store through that port of 127.0.0.1, with `timeout` as its timeout.
    `build(observer)` makes the graph, with that observer and not compiled yet, and `input` is what its runs start
    from.
    """

    def __init__(
        self,
        target: tuple[str, int] | str,
        *,
        open_store: Callable[[int], Store],
        timeout: float,
        build: Callable[[Observer], Any],
        input: Any = None,
    ) -> None:
        self._target = target
        self._open_store = open_store
        self._timeout = timeout
        self._build = build
        self._input = input

    def points(self, modes: Iterable[Mode] = MODES, places: Iterable[Where] = PLACES) -> list[FaultPoint]:
        """Every point of an undisturbed run, from the opening of the store to its end."""
        messages, self._expected = _patiently(self._undisturbed)
        places = list(places)
        return [
            FaultPoint(mode, direction, nth, where)
            for mode in modes
            for direction in DIRECTIONS
            for nth in range(1, messages[direction] + 1)
            for where in places
        ]

    def _undisturbed(self) -> tuple[dict[Direction, int], Any]:
        """How many messages a run sends in each direction when nothing fails, and what it ends with."""
        with FaultyNetwork(self._target) as network:
            conversation = _Conversation(self, network)
            conversation.run()
            conversation.store.close()
            return dict(network.messages), conversation.result

    def run(self, points: Sequence[FaultPoint], at_once: int = 16) -> HuntReport:
        """Have the network fail at each of these points, in a run each, several at a time."""
        with ThreadPoolExecutor(at_once, "limpet-hunt") as threads:
            return HuntReport(list(threads.map(self.attempt, points)))

    def attempt(self, point: FaultPoint) -> Attempt:
        """Have the network fail at one point of a run, and check what happens."""
        with FaultyNetwork(self._target) as network:
            # A network that is down comes back in time for the last attempt of a call.
            fault = network.plan(
                point.mode, point.direction, nth=point.nth, where=point.where, seconds=self._timeout / 2
            )
            conversation = _Conversation(self, network)
            error = conversation.first_error()
            was_missed = network.messages[point.direction] >= point.nth and not fault.struck
            network.heal()
            conversation.finish()
            problems = conversation.problems(error, self._expected)
            if was_missed:
                problems.append("the network didn't fail there")
            longest = conversation.store.slowest
            conversation.store.close()
        return Attempt(point, fault.struck, error, longest, problems)

    def leave(self, point: FaultPoint, grace: float) -> list[str]:
        """Have the network go down at one point of a supervised run, for good, and leave the supervisor.

        The messages are counted from the call of the first node on.
        """
        with FaultyNetwork(self._target) as network:
            conversation = _Conversation(self, network)
            supervisor = supervise(conversation.store, [conversation.compiled()], poll=0.1, grace=grace)
            faults: list[NetworkFault] = []
            conversation.on_first_node = lambda: faults.append(
                network.plan("down", point.direction, nth=point.nth, where=point.where)
            )
            supervisor.start()
            # In a thread, as the fault may strike the answer to this call.
            starting = threading.Thread(target=conversation.enqueue, daemon=True)
            starting.start()
            conversation.first_node.wait(self.longest)
            faults[0].wait(self.longest)
            began = monotonic()
            supervisor.stop()
            took = monotonic() - began
            network.heal()
            conversation.finish()
            problems = conversation.problems(None, self._expected)
            conversation.store.close()
        if took > grace + SLACK:
            problems.append(f"the supervisor was left after {took:.1f} s, with a grace of {grace:g} s")
        return problems

    def open(self, network: FaultyNetwork) -> FaultyStore:
        """The store, through this network."""
        return FaultyStore(self._open_store(network.port))

    def build(self, observer: Observer) -> Any:
        """A graph, not compiled yet."""
        return self._build(observer)

    @property
    def input(self) -> Any:
        """What a run starts from."""
        return self._input

    @property
    def longest(self) -> float:
        """Seconds that a call of the store may take."""
        return self._timeout + SLACK


class _Conversation:
    """A run through a network: what was reported of it, and how it ended."""

    def __init__(self, hunt: NetworkHunt, network: FaultyNetwork) -> None:
        self._hunt = hunt
        self._network = network
        self._lock = threading.Lock()
        self._saved: set[int] = set()
        self._repeated: list[int] = []
        self._graph: Any = None
        self._opened_in = 0.0
        self.first_node = threading.Event()
        self.on_first_node: Callable[[], object] | None = None
        self.run_id = f"hunt-{network.port}-{next(_numbers)}"
        self.result: Any = None
        self._store: FaultyStore | None = None

    @property
    def store(self) -> FaultyStore:
        """The store, opened when it is first needed."""
        if self._store is None:
            began = monotonic()
            try:
                self._store = self._hunt.open(self._network)
            finally:
                self._opened_in = max(self._opened_in, monotonic() - began)
        return self._store

    def compiled(self) -> Any:
        """The graph, on the store."""
        if self._graph is None:
            store = self.store
            self._graph = self._hunt.build(self._observe)
            self._graph.compile(store=store, preserve=True)
        return self._graph

    def run(self) -> None:
        """Execute the run, or resume it if it was created before."""
        graph = self.compiled()
        try:
            head = self.store.head(self.run_id)
        except RunNotFound:
            self.result = graph.execute(self._hunt.input, run_id=self.run_id)
            return
        if head.status == COMPLETED:
            self.result = graph.state_at(self.run_id)
        else:
            self.result = graph.resume(self.run_id, wait=self._hunt.longest)

    def enqueue(self) -> None:
        """Create the run for a supervisor."""
        with suppress(StoreUnavailable):
            self.compiled().start(self._hunt.input, run_id=self.run_id)

    def first_error(self) -> Exception | None:
        """Execute the run; returns what it failed with."""
        try:
            self.run()
        except LimpetError as error:
            return error
        return None

    def finish(self) -> None:
        """Resume the run, now that the network works, until it has completed."""
        deadline = monotonic() + PATIENCE
        while self.result is None and monotonic() < deadline:
            if self.first_error() is not None:
                sleep(PAUSE)

    def problems(self, error: Exception | None, expected: Any) -> list[str]:
        """What is wrong with the run, once it should have completed. `error` is what it failed with at first."""
        found = []
        longest = max(self.store.slowest, self._opened_in)
        if longest > self._hunt.longest:
            found.append(f"a call took {longest:.1f} s")
        if error is not None and not _is_because_of_the_store(error):
            found.append(f"it failed with {error!r}")
        if self.result is None:
            return [*found, "it did not complete after the network was back"]
        if dict(self.result) != dict(expected):
            found.append(f"it ended with {dict(self.result)}, not with {dict(expected)}")
        if self._repeated:
            found.append(f"steps {self._repeated} were called again after they were reported as saved")
        graph = self.compiled()
        history = _patiently(lambda: graph.history(self.run_id))
        missing = self._saved - {checkpoint.step for checkpoint in history}
        if missing:
            found.append(f"steps {sorted(missing)} were reported as saved, and are missing")
        verification = _patiently(lambda: graph.verify(self.run_id))
        if not verification.ok:
            found.append(str(verification))
        return found

    def _observe(self, event: Event) -> None:
        if event.type == CHECKPOINT_SAVE:
            with self._lock:
                self._saved.add(event.data["step"])
        elif event.type == NODE_START:
            if self.on_first_node is not None and not self.first_node.is_set():
                self.on_first_node()
            self.first_node.set()
            with self._lock:
                if event.data["iteration"] in self._saved:
                    self._repeated.append(event.data["iteration"])


def _patiently(read: Callable[[], T]) -> T:
    """What a call gives that can be repeated: of many runs at once, the server may be too busy to answer in time."""
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        with suppress(StoreUnavailable):
            return read()
        sleep(PAUSE)
    return read()


def _is_because_of_the_store(error: BaseException) -> bool:
    """Whether it says that the store can't be reached, or that a step couldn't be saved because of that."""
    return isinstance(error, StoreUnavailable) or isinstance(error.__cause__, StoreUnavailable)
