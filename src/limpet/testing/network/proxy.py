"""A network that fails on demand: a TCP proxy in front of a server, whose connections go silent, slow or break.

with FaultyNetwork(("127.0.0.1", 5432)) as network:
    store = open_store(f"postgresql://ann@127.0.0.1:{network.port}/runs?timeout=3")
    fault = network.plan("silent", "to_server", nth=5)     # the fifth message from now on doesn't arrive
    …
    assert fault.struck

A *message* is what one side has sent at once, as far as the proxy can see: for the stores here a call, or its answer.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from time import sleep
from types import TracebackType
from typing import Literal, NamedTuple, Self, get_args

from limpet.errors import UsageError
from limpet.stores.sockets import reset_when_closed

Mode = Literal["silent", "half", "late", "slow", "reset", "down"]
Direction = Literal["to_server", "to_client"]
Where = Literal["before", "middle", "after"]

MODES: tuple[Mode, ...] = get_args(Mode)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
PLACES: tuple[Where, ...] = get_args(Where)

LARGEST_MESSAGE = 1 << 20
SLOW_PIECES = 8
SLOW_PAUSE = 0.02
"""A slow connection delivers each message in this many pieces, with this many seconds after each."""


class FaultPoint(NamedTuple):
    """Where a fault strikes: at the `nth` message in a direction, before it is delivered, in its middle, or after it.

    Messages are counted over all connections that are not silent yet, from when the fault is planned.
    """

    mode: Mode
    direction: Direction
    nth: int
    where: Where

    def __str__(self) -> str:
        return f"{self.mode} {self.where} message {self.nth} {self.direction}"


class NetworkFault:
    """A planned fault, made by `FaultyNetwork.plan`. `struck` says whether it has struck."""

    def __init__(self, point: FaultPoint, seconds: float | None) -> None:
        self.point = point
        self.seconds = seconds
        self._seen = 0
        self._struck = threading.Event()

    def __repr__(self) -> str:
        return f"<NetworkFault: {self.point}; {'struck' if self.struck else 'has not struck'}>"

    @property
    def struck(self) -> bool:
        """Whether it has struck."""
        return self._struck.is_set()

    def wait(self, timeout: float = 60.0) -> None:
        """Return when it has struck. Raises `TimeoutError`."""
        if not self._struck.wait(timeout):
            raise TimeoutError(f"{self!r} in {timeout} s")

    def strikes(self, direction: Direction) -> bool:
        """Whether it strikes at this message, which is counted."""
        if self.struck or direction != self.point.direction:
            return False
        self._seen += 1
        if self._seen < self.point.nth:
            return False
        self._struck.set()
        return True


class FaultyNetwork:
    """Leads from `port` of 127.0.0.1 to the server at `target`, a host with a port or the path of a Unix socket.

    `plan` plans one fault. The modes:

    - `silent`: the connection on which it strikes delivers nothing any more, and neither side notices.
    - `half`: the same in the direction in which it strikes; the other one works.
    - `late`: as `silent`; but once the client has given up the connection, the server gets what was held back.
    - `slow`: the connection delivers every message in small pieces.
    - `reset`: the connection is reset, for both sides.
    - `down`: all connections deliver nothing, and new ones neither, for `seconds` or until `heal`; then all of them
      continue, as TCP does.

    Use it with `with`, or `close` it. `messages` counts those in each direction.
    """

    def __init__(self, target: tuple[str, int] | str) -> None:
        self.messages: Counter[Direction] = Counter()
        self._target = target
        self._lock = threading.Lock()
        self._faults: list[NetworkFault] = []
        self._links: list[_Link] = []
        self._up = threading.Event()
        self._up.set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="limpet-network", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def plan(
        self,
        mode: Mode,
        direction: Direction = "to_server",
        *,
        nth: int = 1,
        where: Where = "before",
        seconds: float | None = None,
    ) -> NetworkFault:
        """Plan a fault, by default at the next message to the server, before it is delivered.

        `seconds` is how long the network is `down`; by default until `heal`.
        """
        for name, value, known in (
            ("mode", mode, MODES),
            ("direction", direction, DIRECTIONS),
            ("where", where, PLACES),
        ):
            if value not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        if type(nth) is not int or nth < 1:
            raise UsageError(f"nth must be a whole number of at least 1, not {nth!r}")
        fault = NetworkFault(FaultPoint(mode, direction, nth, where), seconds)
        with self._lock:
            self._faults.append(fault)
        return fault

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        with self._lock:
            return len(self._links)

    def go_down(self) -> None:
        """Deliver nothing from now on, on any connection, until `heal`."""
        self._up.clear()

    def heal(self) -> None:
        """Cancel all faults. Connections that are silent stay so; a network that is down delivers again."""
        with self._lock:
            self._faults.clear()
        self._up.set()

    def close(self) -> None:
        """Reset all connections, and accept no more."""
        self._closed = True
        with suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.reset()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = _connected(self._target)
            except OSError:
                _reset(client)
                continue
            link = _Link(client, server)
            with self._lock:
                self._links.append(link)
            if self._closed:
                link.reset()
            for direction in DIRECTIONS:
                threading.Thread(target=self._pump, args=(link, direction), daemon=True).start()

    def _pump(self, link: _Link, direction: Direction) -> None:
        """Deliver what one side of a connection sends, until that side closes it."""
        with suppress(OSError):
            while data := link.receive(direction):
                self._pass_on(link, direction, data)
        link.ended(direction)

    def _pass_on(self, link: _Link, direction: Direction, data: bytes) -> None:
        fault = None
        with self._lock:
            if not link.is_silent(direction):
                self.messages[direction] += 1
                fault = next((fault for fault in self._faults if fault.strikes(direction)), None)
        if fault is None:
            self._deliver(link, direction, data)
            return
        size = {"before": 0, "middle": len(data) // 2, "after": len(data)}[fault.point.where]
        self._deliver(link, direction, data[:size])
        if fault.point.mode == "down":
            self.go_down()
            if fault.seconds is not None:
                timer = threading.Timer(fault.seconds, self.heal)
                timer.daemon = True
                timer.start()
        else:
            link.strike(fault.point.mode, direction)
        self._deliver(link, direction, data[size:])

    def _deliver(self, link: _Link, direction: Direction, data: bytes) -> None:
        self._up.wait()
        if data:
            link.deliver(direction, data)


class _Link:
    """One connection through the proxy: its two sockets, and what is wrong with it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._source = {"to_server": client, "to_client": server}
        self._target = {"to_server": server, "to_client": client}
        self._silent: set[Direction] = set()
        self._held: list[bytes] = []
        self._is_late = False
        self._is_slow = False
        self._lock = threading.Lock()

    def receive(self, direction: Direction) -> bytes:
        """The next message; empty when its sender has closed the connection."""
        return self._source[direction].recv(LARGEST_MESSAGE)

    def deliver(self, direction: Direction, data: bytes) -> None:
        """Hand a message on, or not, as the connection is."""
        target = self._target[direction]
        with self._lock:
            if direction in self._silent:
                if direction == "to_server":
                    self._held.append(data)
                return
        if not self._is_slow:
            target.sendall(data)
            return
        size = max(len(data) // SLOW_PIECES, 1)
        for start in range(0, len(data), size):
            target.sendall(data[start : start + size])
            sleep(SLOW_PAUSE)

    def is_silent(self, direction: Direction) -> bool:
        """Whether nothing that is sent in this direction arrives."""
        return direction in self._silent

    def strike(self, mode: Mode, direction: Direction) -> None:
        """Break the connection in this way, from now on."""
        with self._lock:
            if mode in ("silent", "late"):
                self._silent.update(DIRECTIONS)
                self._is_late = mode == "late"
            elif mode == "half":
                self._silent.add(direction)
            elif mode == "slow":
                self._is_slow = True
        if mode == "reset":
            self.reset()

    def ended(self, direction: Direction) -> None:
        """One side has closed the connection. A silent connection doesn't tell the other side."""
        target = self._target[direction]
        with self._lock:
            is_silent = direction in self._silent
            held = b"".join(self._held)
        with suppress(OSError):
            if is_silent and self._is_late and direction == "to_server":
                target.sendall(held)
            if not is_silent:
                target.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close it as an abrupt end does, for both sides."""
        for each in self._source.values():
            _reset(each)


def _connected(target: tuple[str, int] | str) -> socket.socket:
    if isinstance(target, str):
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(target)
        except OSError:
            server.close()
            raise
        return server
    server = socket.create_connection(target)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


def _reset(connection: socket.socket) -> None:
    """Close a socket so that its peer gets a reset. A thread that reads from it wakes up."""
    reset_when_closed(connection)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)
    connection.close()
