"""`serve`: the HTTP API and the page over the runs in a store, or over one exported run."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from limpet import MemoryStore, Runs
from limpet.cli.commands.schedules import put_declared
from limpet.cli.commands.worker import log_warnings, signal_names
from limpet.cli.exit_codes import UNAVAILABLE
from limpet.cli.output import Output
from limpet.cli.project import NAME_GRAPHS_FOR_ALL_COMMANDS, Graph, find_store, is_place, project_graphs
from limpet.cli.serving import StopSignals, serve_until_stopped
from limpet.cli.web.listening import Address, Listening, address_of, listen, why_not
from limpet.cli.web.web_server import WebServer
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import UsageError
from limpet.journal.export import ExportedRun
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead, Store, Tail
from limpet.server.application import app
from limpet.supervision import supervise
from limpet.threads.workers import start_thread

SQLITE_FILE: Final = b"SQLite format 3\0"
"""How the file of a SQLite store begins."""

CODE: Final = (".py", ".yaml", ".yml")
"""How the names of files with graphs end."""

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


def serve(args: Namespace, output: Output) -> int:
    """Serve the store, or the exported run, that the command line names."""
    address = address_of(args)
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
    log_warnings()
    supervisor: Supervisor | None = None
    if shown.has_worker:
        supervisor = supervise(shown.store, shown.graphs)
    try:
        listening = listen(address)
    except OSError as problem:
        output.problem(why_not(problem, address), "address-unavailable")
        return UNAVAILABLE
    with listening.socket, StopSignals() as signals:
        application = app(
            shown.store,
            shown.graphs,
            token=listening.token,
            hosts=listening.hosts,
            read_only=shown.read_only,
        )
        if shown.has_worker:
            put_declared(shown.graphs, shown.store, output.say)
        # Connections wait until the server accepts them.
        _say_where(listening, shown, data or {}, output)
        url = ""
        if opens_browser and output.interactive:
            url = listening.url_to_open(shown.path)
        opens = partial(start_thread, _open_browser, "limpet-browser", url) if url else None
        server = WebServer(application, listening.socket)
        return serve_until_stopped(server, supervisor, signals, output, opens)


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
    for option, is_given in (("--store", args.store is not None), ("--worker", args.worker)):
        if is_given:
            raise UsageError(f"{option} can't be given with a FILE, which is shown as it is, without a store")
    _check_file(args.file)
    store = _ExportedStore(args.file)
    return Shown(store, project_graphs(args), args.file, run_path(store.run_id), read_only=True)


class _ExportedStore(MemoryStore):
    """A store in memory with one exported run, which was created and has changed when its file says, not just now."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._exported: ExportedRun | None = None
        self.run_id = Runs(self).import_(path)
        self._exported = ExportedRun.from_bytes(Path(path).read_bytes(), path)

    def head(self, run_id: str) -> RunHead:
        return self._dated(super().head(run_id))

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        return [head and self._dated(head) for head in super().heads(run_ids)]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        tail = super().read(run_id, first, last)
        return tail._replace(head=self._dated(tail.head))

    def list(self, which: RunFilter) -> list[RunHead]:
        return [self._dated(head) for head in super().list(which)]

    def _dated(self, head: RunHead) -> RunHead:
        if self._exported is None:
            return head
        return head._replace(created=self._exported.created, updated=self._exported.updated)


def _check_file(path: str) -> None:
    """Refuse what isn't an exported run, but something else that can be shown. Raises `UsageError`."""
    if is_place(path) and (not os.path.exists(path) or path.endswith(CODE)):
        raise UsageError(f"{path!r} isn't the file of an exported run; for a graph, give --graph {path}")
    if os.path.isdir(path):
        place = quote(os.path.abspath(path))
        raise UsageError(f"{path!r} is a directory; if it is a store, give --store file://{place}")
    if not os.path.exists(path):
        raise UsageError(f"there is no file {path!r} to show")
    with suppress(OSError), open(path, "rb") as file:
        if file.read(len(SQLITE_FILE)) == SQLITE_FILE:
            raise UsageError(
                f"{path!r} is a store, not an exported run: give --store sqlite:///{quote(path)}"
            )


def run_path(run_id: str) -> str:
    """The path of the page of a run."""
    return f"/runs/{quote(run_id, safe='')}"


def _say_where(listening: Listening, shown: Shown, data: dict[str, Any], output: Output) -> None:
    """Print the URL with the token, once."""
    if output.json:
        where = {"url": listening.url(shown.path), "host": listening.address.host, "port": listening.port}
        output.result({**data, **where, "token": listening.token})
        return
    # Where this isn't a terminal, it may be a log that is kept; and the user knows a token that the user chose.
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
