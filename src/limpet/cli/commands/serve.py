"""`serve`: the HTTP API and the page over the runs in a store, or over one exported run."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import secrets
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from limpet import MemoryStore, Runs
from limpet.cli.commands.schedules import put_declared
from limpet.cli.commands.worker import log_warnings, signal_names, stopped_text, stopping_text
from limpet.cli.exit_codes import OK, UNAVAILABLE
from limpet.cli.output import Output
from limpet.cli.project import NAME_GRAPHS_FOR_ALL_COMMANDS, Graph, find_store, is_place, project_graphs
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import UsageError
from limpet.journal.store import Store
from limpet.server.application import app
from limpet.server.security import LOOPBACK, WILDCARDS
from limpet.supervision import supervise
from limpet.threads.workers import start_thread

try:
    import uvicorn
except ImportError as error:
    raise UsageError("limpet serve needs the package uvicorn: pip install 'limpet[server]'") from error

HOST: Final = "127.0.0.1"
PORT: Final = 8765
TOKEN_VARIABLE: Final = "LIMPET_TOKEN"

TOKEN_BYTES: Final = 24
"""Random bytes of a token that is generated."""

SHORTEST_TOKEN: Final = 16
"""Characters of a token, at least, if other machines can reach the server."""

MAX_CONNECTIONS: Final = 1000
"""Connections at the same time. Further ones are answered with 503."""

WAITING_CONNECTIONS: Final = 256
"""Connections that the system keeps until the server accepts them."""

REQUEST_GRACE: Final = 2
"""Seconds that requests have to end when the server is stopped. Live events end at once."""

TOKEN_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What can be in a header, in a cookie and, quoted, in a URL."""

HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")

TEXT_BROWSERS: Final = ("elinks", "links", "lynx", "w3m", "www-browser")
"""Browsers that take over the terminal."""

DISPLAYS: Final = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
"""Variables of which one is set where a browser has a screen, except on Windows and macOS."""


class Shown(NamedTuple):
    """What is served: the runs in a store, and the graphs whose code is known."""

    store: Store
    graphs: Sequence[Graph]
    name: str
    """What it is called in messages."""
    path: str = "/"
    """The page that the browser opens."""
    read_only: bool = False
    has_worker: bool = False


class Address(NamedTuple):
    """Where a server listens, what requests need, and under which other names it is reached."""

    host: str = HOST
    port: int | None = None
    """None for `PORT`, or any other if that one is taken."""
    token: str = ""
    """What the user chose; empty for one that is generated."""
    names: Sequence[str] = ()


class Listening(NamedTuple):
    """A socket that listens, and its address."""

    socket: socket.socket
    address: Address
    token: str

    @property
    def port(self) -> int:
        """The port, also where any free one was asked for."""
        port: int = self.socket.getsockname()[1]
        return port

    @property
    def hosts(self) -> list[str]:
        """The names and addresses that requests may name as their host."""
        bound = self.socket.getsockname()[0]
        names = map(_host_name, (self.address.host, bound, *self.address.names))
        return list(dict.fromkeys([*LOOPBACK, *names]))

    def url(self, path: str = "/", with_token: bool = True) -> str:
        """The URL of a page for a browser on this machine."""
        host = _host_name(self.address.host)
        if host in WILDCARDS:
            host = {"0.0.0.0": HOST, "[::]": "[::1]"}[host]
        query = ""
        if with_token:
            query = f"?token={quote(self.token, safe='')}"
        return f"http://{host}:{self.port}{path}{query}"


def serve(args: Namespace, output: Output) -> int:
    """Serve the store, or the exported run, that the command line names."""
    address = _address(args)
    if args.file is not None:
        shown = _exported_run(args)
    else:
        shown = _stored_runs(args)
    return serve_runs(shown, address, output, opens_browser=not args.no_browser)


def serve_runs(
    shown: Shown,
    address: Address,
    output: Output,
    data: dict[str, Any] | None = None,
    opens_browser: bool = True,
) -> int:
    """Serve runs until Ctrl-C or SIGTERM, and return the exit code. `data` is more for programs to read."""
    try:
        listening = _listen(address)
    except OSError as problem:
        output.problem(_why_not(problem, address), "address-unavailable")
        return UNAVAILABLE
    log_warnings()
    supervisor: Supervisor | None = None
    if shown.has_worker:
        put_declared(shown.graphs, shown.store, output.say)
        supervisor = supervise(shown.store, shown.graphs)
    streams = _Streams(
        app(
            shown.store, shown.graphs, token=listening.token, hosts=listening.hosts, read_only=shown.read_only
        )
    )
    server = _Server(_config(streams), streams)
    with _stopping_by_signals(server.request_stop):
        _say_where(listening, shown, data or {}, output)
        if supervisor is not None:
            supervisor.start()
        if opens_browser and output.interactive:
            start_thread(_open_browser, "limpet-browser", listening.url(shown.path))
        asyncio.run(server.serve(sockets=[listening.socket]))
        had_runs = supervisor is not None and _stop(supervisor, output)
    output.say(stopped_text(had_runs))
    return OK


def _address(args: Namespace) -> Address:
    """Where to listen, as the command line and the environment say. Raises `UsageError`."""
    token = args.token
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
    elif not token:
        raise UsageError(f"--token is empty: leave it out to have one generated, or set {TOKEN_VARIABLE}")
    if token and not TOKEN_CHARACTERS.fullmatch(token):
        raise UsageError("a token may have letters, digits and - . _ ~ + / = only")
    host = _host_name(args.host)
    if not _is_loopback(host):
        if not token:
            raise UsageError(
                f"{args.host} can be reached from other machines, so choose a token: set {TOKEN_VARIABLE}, or give "
                "--token"
            )
        if len(token) < SHORTEST_TOKEN:
            raise UsageError(
                f"{args.host} can be reached from other machines, so the token needs {SHORTEST_TOKEN} characters or "
                f"more, not {len(token)}"
            )
    return Address(args.host, args.port, token, [_host_name(name) for name in args.allow_host])


def _host_name(text: str) -> str:
    """A host as requests name it: in small letters, and an IPv6 address in brackets. Raises `UsageError`."""
    name = text.strip().lower()
    bare = name.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        if not HOST_NAME.fullmatch(name):
            raise UsageError(f"{text!r} isn't the name or the address of a host, without a port") from None
        return name
    if address.version == 6:
        return f"[{address.compressed}]"
    return address.compressed


def _is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _stored_runs(args: Namespace) -> Shown:
    if args.worker and args.read_only:
        raise UsageError("--worker executes runs, and --read-only changes nothing: leave one of them out")
    graphs = project_graphs(args)
    if args.worker and not graphs:
        raise UsageError(f"--worker needs graphs: pass --graph, {NAME_GRAPHS_FOR_ALL_COMMANDS}")
    if graphs:
        store = find_store(args, graphs[0], must_exist=args.read_only)
    else:
        store = find_store(args, must_exist=True)
    return Shown(store, graphs, str(store), read_only=args.read_only, has_worker=args.worker)


def _exported_run(args: Namespace) -> Shown:
    """The run in a file, in a store of its own. Raises `UsageError`, and `StoreError` for a damaged file."""
    for option, is_given in (("--store", args.store), ("--worker", args.worker)):
        if is_given:
            raise UsageError(f"{option} can't be given with a FILE, which is shown as it is, without a store")
    if not os.path.exists(args.file):
        hint = ""
        if is_place(args.file):
            hint = f"; for a graph, give --graph {args.file}"
        raise UsageError(f"there is no file {args.file!r} to show{hint}")
    store = MemoryStore()
    run_id = Runs(store).import_(args.file)
    return Shown(store, project_graphs(args), args.file, run_path(run_id), read_only=True)


def run_path(run_id: str) -> str:
    """The path of the page of a run."""
    return f"/runs/{quote(run_id, safe='')}"


def _listen(address: Address) -> Listening:
    """Listen, so that browsers may connect from now on. Raises `OSError`."""
    token = address.token or secrets.token_urlsafe(TOKEN_BYTES)
    if address.port is not None:
        return Listening(_bound(address.host, address.port), address, token)
    try:
        return Listening(_bound(address.host, PORT), address, token)
    except OSError as problem:
        if problem.errno != errno.EADDRINUSE:
            raise
        return Listening(_bound(address.host, 0), address, token)


def _bound(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host.strip().strip("[]"), port, type=socket.SOCK_STREAM)
    # A name such as localhost has addresses of both kinds. Programs that know only one know IPv4.
    family, kind, protocol, _, place = min(found, key=lambda each: each[0] != socket.AF_INET)
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.listen(WAITING_CONNECTIONS)
    except BaseException:
        bound.close()
        raise
    return bound


def _why_not(problem: OSError, address: Address) -> str:
    """Why nothing can listen there, and what to do."""
    port = PORT if address.port is None else address.port
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {address.host} is in use: give another --port, or 0 for any that is free"
    return f"can't listen on port {port} of {address.host}: {problem.strerror or problem}"


def _config(application: Any) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        access_log=False,  # the first URL has the token
        log_config=None,
        log_level="warning",
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=REQUEST_GRACE,
    )


class _Streams:
    """An application whose live events end when the server stops; else they would keep it from doing so.

    A browser comes back for them once a server is there again, after the last event that it got.
    """

    def __init__(self, application: Any) -> None:
        self._application = application
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.current_task()
        assert task is not None

        async def noting(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.start" and _is_stream(message):
                self._tasks.add(task)
                if self._is_ending:
                    task.cancel()

        try:
            await self._application(scope, receive, noting)
        except asyncio.CancelledError:
            if not self._is_ending or task not in self._tasks:
                raise
            task.uncancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """End all streams, now and later."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()


def _is_stream(message: Any) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )


class _Server(uvicorn.Server):
    """A server that leaves signals to the command, and ends streams when it stops."""

    def __init__(self, config: uvicorn.Config, streams: _Streams) -> None:
        super().__init__(config)
        self._streams = streams

    def request_stop(self) -> None:
        """Have the server stop soon."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams, let other requests finish, and stop."""
        self._streams.end()
        await super().shutdown(sockets=sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would send them to the process again after it has stopped."""
        yield


@contextmanager
def _stopping_by_signals(request_stop: Callable[[], None]) -> Iterator[None]:
    """Call this on Ctrl-C and SIGTERM. A second one ends the process at once."""
    has_come: list[object] = []

    def handle(*_: object) -> None:
        if has_come:
            raise SystemExit(1)
        has_come.append(None)
        request_stop()

    signals = [signal.SIGTERM]
    # A shell has processes in the background ignore it: Ctrl-C is for the one in the foreground.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signals.append(signal.SIGINT)
    handlers = {each: signal.signal(each, handle) for each in signals}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _say_where(listening: Listening, shown: Shown, data: dict[str, Any], output: Output) -> None:
    """Print the URL with the token, once."""
    if output.json:
        where = {"url": listening.url(shown.path), "host": listening.address.host, "port": listening.port}
        output.result({**data, **where, "token": listening.token})
        return
    # What is no terminal may be a log that is kept; who chose the token knows it.
    with_token = not listening.address.token or sys.stdout.isatty()
    output.message(listening.url(shown.path, with_token))
    known = "without the code of a graph"
    if shown.graphs:
        known = ", ".join(graph.name for graph in shown.graphs)
    also = ""
    if shown.has_worker:
        also = ", and executing its runs"
    elif shown.read_only:
        also = ", read-only"
    output.say(f"serving {shown.name}: {known}{also}. {signal_names()} stops it")


def _open_browser(url: str) -> None:
    """Open a page in the user's browser, if there is one with a window of its own."""
    import webbrowser

    if sys.platform not in ("win32", "darwin") and not any(map(os.environ.get, DISPLAYS)):
        return
    try:
        browser = webbrowser.get()
        if os.path.basename(str(getattr(browser, "name", ""))) not in TEXT_BROWSERS:
            browser.open(url)
    except (webbrowser.Error, OSError):
        return  # the URL is on the terminal


def _stop(supervisor: Supervisor, output: Output) -> bool:
    """Stop executing runs, and return whether any were in progress."""
    running = supervisor.running
    if running:
        output.say(stopping_text(running, supervisor.options.grace, signal_names()))
    supervisor.stop()
    return bool(running)
