"""`limpet serve` as a process: who may use it, what it shows, and how it stops. H19, H20."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPResponse
from pathlib import Path
from time import time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

import limpet as library
from limpet import open_store
from support.command_line import FLOWS, Command
from support.redis_servers import redis_server
from support.waiting import SOON, until

pytest.importorskip("uvicorn", reason="the extra server isn't installed")

from limpet.cli.commands import serve
from limpet.frontends.security import CODE_LASTS, is_browser_code

SLOW = """
import os, time

from limpet import StateGraph


def wait(state):
    open("at-wait", "w").close()
    while os.path.exists("hold"):
        time.sleep(0.02)
    return {"seen": 1}


graph = StateGraph({"seen": int}, name="slow").add_node("wait", wait)
graph.set_entry_point("wait").set_finish_point("wait").compile(preserve=True)
"""

OTHER_COMMANDS = """
import contextlib, json, pkgutil, sys
import limpet, limpet.cli.commands
from limpet.cli.main import main

limpet.StateGraph, limpet.Runs
for each in pkgutil.iter_modules(limpet.cli.commands.__path__, "limpet.cli.commands."):
    if each.name not in ("limpet.cli.commands.serve", "limpet.cli.commands.mcp"):
        __import__(each.name)
for words in (["--help"], ["serve", "--help"], ["mcp", "--help"], ["completion", "bash"]):
    with contextlib.suppress(SystemExit):  # as help ends
        main(words)
packages = ("starlette", "uvicorn", "h11", "anyio", "mcp", "limpet.server", "limpet.integrations.mcp")
print(json.dumps([name for name in sys.modules if name.startswith(packages)]))
"""
"""Use everything but the servers, and print what was imported of them."""

CHOSEN = "a-token-of-the-tests"
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="there is no signal to send")


class Served:
    """A server in a process of its own, and what is asked of it over HTTP."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        self.said = json.loads(line)
        self.base = f"http://127.0.0.1:{self.said['port']}"

    def open(self, path: str, body: Any = None, method: str = "", **headers: str) -> HTTPResponse:
        """Ask, with the token unless other headers say so."""
        given = {"authorization": f"Bearer {self.said['token']}", **headers}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            given["content-type"] = "application/json"
        request = Request(self.base + path, data, given, method=method or None)
        answered: HTTPResponse = urlopen(request, timeout=SOON)
        return answered

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        with self.open(f"/api/v1{path}", body, **headers) as answered:
            return json.load(answered)

    def refusal(self, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, str]:
        """The status and the code of a request that is refused."""
        with pytest.raises(HTTPError) as refused:
            self.open(f"/api/v1{path}", body, method, **headers).close()
        with refused.value:
            return refused.value.code, json.load(refused.value)["code"]

    def stop(self, told: signal.Signals = signal.SIGTERM) -> str:
        """End it, and return what it had written to standard error."""
        self.process.send_signal(told)
        _, errors = self.process.communicate(timeout=SOON)
        return errors


Serve = Callable[..., Served]


@pytest.fixture
def started(tmp_path: Path, ctrl_c: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command in a project."""
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "slow.py").write_text(SLOW)
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str, **more: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if "LIMPET" not in name}
        process = subprocess.Popen(
            [sys.executable, "-m", "limpet", *words], cwd=tmp_path, text=True,
            env={**kept, "PYTHONPATH": str(Path(library.__file__).parents[1]), **more},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def served(started: Callable[..., subprocess.Popen[str]]) -> Serve:
    """Serve: `served("--graph", "flows:graph")`."""

    def start(*words: str, **more: str) -> Served:
        return Served(started("serve", "--json", "--no-browser", "--port", "0", *words, **more))

    return start


@needs_signals
def test_a_server_takes_its_token_and_says_it_once(served: Serve) -> None:
    """H19: on this machine only, under its own names, and not a word of the token in its log."""
    server = served("--graph", "flows:graph", "--graph", "flows:plain")
    token = server.said["token"]
    assert server.said == {
        "url": f"{server.base}/?token={token}",
        "host": "127.0.0.1",
        "port": server.said["port"],
        "token": token,
    }
    assert len(token) >= 32
    assert [each["name"] for each in server.ask("/graphs")["graphs"]] == ["article", "plain"]
    assert server.refusal("/graphs", authorization="") == (401, "no-token")
    assert server.refusal("/graphs", authorization=f"Bearer {token[:-1]}") == (401, "no-token")
    assert server.refusal("/graphs", host="evil.example") == (421, "wrong-host")
    assert server.ask("/graphs", host=f"localhost:{server.said['port']}")
    assert server.refusal("/runs/none") == (404, "run-not-found")
    with server.open("/healthz") as health:
        assert health.headers["server"] is None
    said = server.stop()
    assert (server.process.returncode, said) == (0, "")


@needs_signals
def test_behind_a_proxy_with_tls_the_cookie_is_sent_over_tls_only(served: Serve) -> None:
    """H20: the proxy says how the browser has reached it."""
    server = served("--graph", "flows:graph")
    for scheme in ("http", "https"):
        with server.open("/session", method="POST", **{"x-forwarded-proto": scheme}) as answer:
            assert answer.status == 204
            assert ("Secure" in answer.headers["set-cookie"]) is (scheme == "https")
    server.stop()


@needs_signals
def test_people_get_one_line_with_the_url_and_another_about_the_rest(started: Any, served: Serve) -> None:
    """H20: a token that the user chose isn't printed where it may end in a log."""
    other = served("--graph", "flows:graph")  # creates the store
    for chosen in ("", CHOSEN):
        process = started(
            "serve", "--no-browser", "--port", "0", **({"LIMPET_TOKEN": chosen} if chosen else {})
        )
        url = process.stdout.readline()
        pattern = r"http://127\.0\.0\.1:\d+/\n" if chosen else r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}\n"
        assert re.fullmatch(pattern, url)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=SOON)
        assert (process.returncode, out) == (0, "")
        first, last = errors.splitlines()
        assert re.fullmatch(
            r"serving .*limpet\.db.*: without the code of a graph\. Ctrl-C or SIGTERM stops it", first
        )
        assert last == "stopped"
    other.stop()


@needs_signals
def test_a_server_for_other_machines_has_the_token_that_was_chosen(served: Serve) -> None:
    """H19: it is reached under its address and the names that are allowed, and no others."""
    server = served(
        "--host", "0.0.0.0", "--allow-host", "Runs.Example", "--graph", "flows:graph", LIMPET_TOKEN=CHOSEN
    )
    assert (server.said["token"], server.said["host"]) == (CHOSEN, "0.0.0.0")
    assert server.said["url"].startswith("http://127.0.0.1:")
    assert server.ask("/runs", host="runs.example") == {"runs": [], "next": None, "searched": None}
    assert server.ask("/runs", host="192.0.2.7:80")
    assert server.refusal("/runs", host="other.example") == (421, "wrong-host")
    server.stop()


@needs_signals
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_server_stops_at_once_although_a_client_follows_a_run(
    served: Serve, started: Any, told: signal.Signals
) -> None:
    """H19: the stream ends as a whole response does, nothing is cut off after a grace, and there is no traceback."""
    assert started("run", "flows:graph", "-i", "topic=kelp", "--id", "waits").wait(SOON) == 3
    server = served()
    stream = server.open("/api/v1/runs/waits/live")
    assert stream.readline() == b"event: event\n"
    errors = server.stop(told)
    assert stream.read().endswith(b"\n\n")  # IncompleteRead, had it been cut off
    stream.close()
    assert (server.process.returncode, errors) == (0, "")


@needs_signals
def test_a_server_with_a_worker_executes_what_is_started_and_answered(served: Serve) -> None:
    """H19, H20: one command is enough."""
    server = served("--graph", "flows:graph", "--worker")
    begun = server.ask("/graphs/article/runs", {"input": {"topic": "kelp"}, "run_id": "a/b?c"})
    assert (begun["run_id"], begun["graph"]) == ("a/b?c", "article")
    path = f"/runs/{quote('a/b?c', safe='')}"
    until(lambda: server.ask(path)["status"] == "paused")
    until(lambda: [worker["runs"] for worker in server.ask("/workers")["workers"]] == [0])
    server.ask(f"{path}/answer", {"value": "yes"})
    until(lambda: server.ask(path)["status"] == "completed")
    assert server.stop() == ""
    assert server.process.returncode == 0


@needs_signals
def test_a_server_with_a_worker_waits_for_its_nodes_unless_it_is_stopped_twice(
    started: Any, tmp_path: Path
) -> None:
    """H1: as a worker does."""
    (tmp_path / "hold").touch()
    assert started("run", "slow:graph", "--id", "r", "--detach").wait(SOON) == 0
    process = started("serve", "--no-browser", "--port", "0", "--graph", "slow:graph", "--worker")
    until((tmp_path / "at-wait").exists)
    process.send_signal(signal.SIGINT)
    told = next(line for line in process.stderr if "stopping" in line)
    assert "waits up to 30 s for the steps under way in 1 run. Ctrl-C or SIGTERM again leaves at once" in told
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SOON)
    assert (process.returncode, errors) == (1, "")
    assert (tmp_path / "hold").exists()


@needs_signals
def test_steps_can_be_watched_while_a_server_waits_for_them(served: Serve, tmp_path: Path) -> None:
    """H1, H20: it is stopped once, and what it had begun is done."""
    (tmp_path / "hold").touch()
    server = served("--graph", "slow:graph", "--worker")
    server.ask("/graphs/slow/runs", {"run_id": "r"})
    until((tmp_path / "at-wait").exists)
    server.process.send_signal(signal.SIGTERM)
    assert server.ask("/runs/r")["status"] == "running"
    (tmp_path / "hold").unlink()
    assert server.process.wait(SOON) == 0
    later = served()
    assert later.ask("/runs/r/state")["values"] == {"seen": 1}
    later.stop()


@needs_signals
def test_a_server_where_ctrl_c_is_ignored_stops_by_sigterm(started: Any, served: Serve) -> None:
    """H1: as in a shell that has started it in the background."""
    served("--graph", "flows:graph").stop()  # creates the store
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = started("serve", "--no-browser", "--port", "0", "--token", CHOSEN)
    url = process.stdout.readline().strip()
    assert process.stderr.readline().endswith(". SIGTERM stops it\n")
    process.send_signal(signal.SIGINT)
    with urlopen(f"{url}healthz", timeout=SOON) as answered:
        assert answered.status == 200
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=SOON) == ("", "stopped\n")
    assert process.returncode == 0


@needs_signals
def test_a_server_works_although_its_url_is_all_that_is_read_of_it(served: Serve) -> None:
    """H20: `limpet serve | head -1`."""
    server = served("--graph", "flows:graph", "--worker")
    assert server.process.stdout is not None
    server.process.stdout.close()
    assert server.ask("/runs")["runs"] == []
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(SOON) == 0
    assert server.process.stderr is not None
    assert server.process.stderr.read() == ""


@needs_signals
def test_a_server_with_a_worker_survives_its_store(served: Serve, tmp_path: Path) -> None:
    """H19: requests are refused while the store is away, and it can be stopped then, too."""
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as store:
        server = served("--graph", "flows:graph", "--worker", "--store", store.url)
        store.kill()
        assert server.refusal("/runs") == (503, "store-unavailable")
        store.start()
        server.ask("/graphs/article/runs", {"input": {"topic": "kelp"}, "run_id": "r"})
        until(lambda: server.ask("/runs/r")["status"] == "paused")
        store.kill()
        server.stop()
        assert server.process.returncode == 0
        store.start()


@pytest.mark.parametrize("part", [serve.WebServer, serve.Supervisor])
def test_a_server_that_cannot_start_says_why(
    limpet: Command, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    """H19: where the system has no more threads, or no more files."""

    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(part, "start", fail)
    failed = limpet("serve", "--graph", "flows:graph", "--worker", "--port", "0", "--no-browser")
    assert failed.code == 1
    assert failed.err.splitlines()[-1] == "error: the server has failed: RuntimeError: can't start new thread"


@needs_signals
def test_an_exported_run_is_shown_without_a_store(served: Serve, started: Any, tmp_path: Path) -> None:
    """H20: at its own page, and nothing can be changed."""
    assert started("run", "flows:graph", "-i", "topic=kelp", "--id", "kelp/1").wait(SOON) == 3
    assert started("runs", "export", "kelp/1", "kelp.run").wait(SOON) == 0
    with closing(open_store(f"sqlite:///{tmp_path}/limpet.db")) as store:
        head = store.head("kelp/1")
    for path in tmp_path.glob("limpet.db*"):
        path.unlink()
    server = served("kelp.run")
    assert server.said["url"].startswith(f"{server.base}/runs/kelp%2F1?token=")
    run = server.ask("/runs/kelp%2F1")
    assert (run["run_id"], run["status"]) == ("kelp/1", "paused")
    assert (run["created"], run["updated"]) == (head.created, head.updated)
    assert [each["created"] for each in server.ask("/runs")["runs"]] == [head.created]
    assert server.ask("/runs/kelp%2F1/state")["values"]["text"] == "About kelp."
    assert server.refusal("/runs/kelp%2F1/answer", {"value": "yes"}) == (403, "read-only")
    assert server.refusal("/runs/kelp%2F1", method="DELETE") == (403, "read-only")
    assert server.stop() == ""
    assert not list(tmp_path.glob("limpet.db*"))


def test_a_port_that_is_in_use_is_refused(limpet: Command) -> None:
    """H19: with the exit code for what is unavailable."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = limpet("serve", "--graph", "flows:graph", "--port", port)
        assert (refused.code, refused.out) == (6, "")
        assert f"port {port} of 127.0.0.1 is in use: give another --port" in refused.err
        as_json = limpet("serve", "--graph", "flows:graph", "--port", port, "--json")
        assert as_json.data["error"]["code"] == "address-unavailable"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--host", "0.0.0.0"],
            "0.0.0.0 can be reached from other machines, so choose a token: set LIMPET_TOKEN",
        ),
        (["--host", "example.org"], "example.org can be reached from other machines"),
        (["--host", "::"], ":: can be reached from other machines"),
        (["--host", "0.0.0.0", "--token", "short"], "the token needs 16 characters or more, not 5"),
        (["--host", ""], "'' isn't the name or the address of a host"),
        (["--token", ""], "--token is empty"),
        (["--token", "with space"], "a token may have letters, digits and"),
        (["--allow-host", "https://runs.example"], "isn't the name or the address of a host, without a port"),
        (["--allow-host", "*"], "isn't the name or the address of a host"),
        (["--port", "65536"], "takes a number from 0 to 65535"),
        (["--worker", "--read-only"], "leave one of them out"),
        (["--worker"], "--worker needs graphs: pass --graph"),
        (["--store", "sqlite:///none.db"], "none.db"),
        (["--store", "sqlite:///none.db", "--read-only", "--graph", "flows:graph"], "none.db"),
        ([], "no store named"),
        (["none.run"], "there is no file 'none.run' to show"),
        (["flows:graph"], "for a graph, give --graph flows:graph"),
        (["flows.py"], "for a graph, give --graph flows.py"),
        (["."], "'.' is a directory; if it is a store, give --store file:///"),
        (["r.run", "--worker"], "--worker can't be given with a FILE"),
        (["r.run", "--store", "sqlite:///a.db"], "--store can't be given with a FILE"),
        (["r.run", "--store", ""], "--store can't be given with a FILE"),
    ],
)
def test_what_a_server_refuses_to_do(limpet: Command, here: Path, words: list[str], reason: str) -> None:
    """H19: before it listens, and before it creates a store."""
    refused = limpet("serve", *words)
    assert refused.code in (2, 4, 6)
    assert reason in refused.err
    assert refused.out == ""
    assert not list(here.glob("*.db"))


def test_the_file_of_a_store_is_not_taken_for_a_run(limpet: Command, here: Path) -> None:
    """H20: the error says how a store is named."""
    limpet("run", "flows:plain", "--id", "r")
    refused = limpet("serve", "limpet.db")
    assert refused.code == 2
    assert "'limpet.db' is a store, not an exported run: give --store sqlite:///limpet.db" in refused.err


def test_a_damaged_file_is_refused(limpet: Command, here: Path) -> None:
    """H20: with what is wrong, whatever is damaged."""
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    limpet("runs", "export", "r", "r.run")
    whole = (here / "r.run").read_bytes()
    for damaged in (b"", b"not a run", whole[:-5], whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]):
        (here / "r.run").write_bytes(damaged)
        refused = limpet("serve", "r.run")
        assert (refused.code, refused.out) == (6, "")
        assert "r.run" in refused.err
        assert "Traceback" not in refused.err


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
@pytest.mark.parametrize("words", [["serve"], ["demo", "--serve", "--dir", "shown"]])
def test_a_server_without_its_packages_says_what_to_install(
    tmp_path: Path, package: str, words: list[str]
) -> None:
    """H19: so does the demonstration, before it begins."""
    script = (
        f"import sys; sys.modules[{package!r}] = None; from limpet.cli.main import main; main(sys.argv[1:])"
    )
    path = {**os.environ, "PYTHONPATH": str(Path(library.__file__).parents[1])}
    command = [sys.executable, "-c", f"{script}", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=path, cwd=tmp_path, check=True)
    assert done.stdout == ""
    assert done.stderr.splitlines()[0].endswith(f"needs the package {package}: pip install 'limpet[server]'")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_else_imports_the_server() -> None:
    """H19: who doesn't serve needs no package for it, and doesn't wait for one."""
    path = {**os.environ, "PYTHONPATH": str(Path(library.__file__).parents[1])}
    command = [sys.executable, "-c", OTHER_COMMANDS]
    done = subprocess.run(command, capture_output=True, text=True, env=path, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize(
    ("name", "variable", "is_opened"),
    [
        ("firefox", "DISPLAY", True),
        ("/usr/bin/w3m", "DISPLAY", False),
        ("lynx", "BROWSER", False),
        ("xdg-open", "", False),
        ("xdg-open", "WAYLAND_DISPLAY", True),
    ],
)
def test_no_browser_takes_over_the_terminal(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str, is_opened: bool
) -> None:
    """H20: and none is started where there is no screen."""
    opened: list[str] = []

    class Browser(webbrowser.GenericBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            opened.append(url)
            return True

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(webbrowser, "get", lambda: Browser(name))
    for each in serve.DISPLAYS:
        monkeypatch.delenv(each, raising=False)
    if variable:
        monkeypatch.setenv(variable, ":0")
    serve._open_browser("http://localhost")
    assert opened == ["http://localhost"] * is_opened


def test_where_there_is_no_browser_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """H20."""

    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "get", none)
    serve._open_browser("http://localhost")


def test_the_browser_is_opened_without_the_token(limpet: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """H20: other users of the machine can read how a program is started."""
    opened: list[str] = []

    def work(server: Any, supervisor: Any, signals: Any, output: Any, once_started: Any) -> int:
        opened.append(once_started.args[-1])
        return 0

    monkeypatch.setattr(serve, "serve_until_stopped", work)
    monkeypatch.setattr(serve.Output, "interactive", property(lambda output: True))
    assert limpet("serve", "--graph", "flows:graph", "--port", "0", "--token", CHOSEN).code == 0
    (url,) = opened
    assert CHOSEN not in url
    _, _, code = url.partition("/?token=")
    assert is_browser_code(code, CHOSEN, time())
    assert not is_browser_code(code, CHOSEN, time() + CODE_LASTS + 1)


@needs_signals
def test_the_demonstration_can_be_answered_in_the_browser(started: Any) -> None:
    """H20: the run is shown at its own page, and this process continues it."""
    server = Served(started("demo", "--serve", "--fast", "--dir", "shown", "--json"))
    assert (server.said["run_id"], server.said["status"]) == ("kelp-0", "paused")
    assert "/runs/kelp-0?token=" in server.said["url"]
    server.ask("/runs/kelp-0/answer", {"value": "yes"})
    until(lambda: server.ask("/runs/kelp-0")["status"] == "completed")
    assert "is at publish" in server.stop()
    assert server.process.returncode == 0
