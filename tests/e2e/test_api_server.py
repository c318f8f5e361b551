"""The API server of the examples, with separate workers, one of which is killed, and clients that reconnect. H10."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Runs, open_store

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "fastapi_app.py"
PATIENCE = 90.0
RUNS = 2

Event = dict[str, Any]


class Processes:
    """A server and workers in processes of their own, on one store."""

    def __init__(self, url: str, folder: Path) -> None:
        source = str(Path(limpet.__file__).parents[1])
        self._env = {**os.environ, "LIMPET_STORE": url, "PACE": "0.1", "PYTHONPATH": f"{source}:{ROOT}"}
        self._folder = folder
        self._all: list[subprocess.Popen[bytes]] = []

    def serve(self) -> str:
        """Start the server, and return its address."""
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            fd = listening.fileno()
            self._start("uvicorn", "examples.fastapi_app:app", "--fd", str(fd), pass_fds=[fd])
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

    def work(self) -> subprocess.Popen[bytes]:
        """Start a worker."""
        return self._start("limpet", "worker", f"{APP}:graph", "--poll", "0.2")

    def _start(self, module: str, *arguments: str, pass_fds: Any = ()) -> subprocess.Popen[bytes]:
        with (self._folder / f"{module}-{len(self._all)}.log").open("wb") as log:
            command = [sys.executable, "-m", module, *arguments]
            process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log, pass_fds=pass_fds)
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


@contextmanager
def processes(url: str, folder: Path) -> Iterator[Processes]:
    made = Processes(url, folder)
    try:
        yield made
    finally:
        made.end()


class Browser(threading.Thread):
    """Reads the server-sent events of a run as a browser does; one that is `restless` reconnects now and then."""

    def __init__(self, address: str, run_id: str, restless: bool) -> None:
        super().__init__(daemon=True)
        self.url = f"{address}/runs/{run_id}/events"
        self.restless = restless
        self.events: list[Event] = []
        self.connections = 0
        self.start()

    def run(self) -> None:
        headers: dict[str, str] = {}
        while not self.events or self.events[-1]["type"] != "complete":
            self.connections += 1
            with httpx.stream("GET", self.url, headers=headers, timeout=PATIENCE) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    name, _, value = line.partition(": ")
                    if name == "id":
                        headers["Last-Event-ID"] = value
                    elif name == "data":
                        self.events.append(json.loads(value))
                        if self.restless and len(self.events) % 2 == 0:
                            break


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it didn't come true"
        time.sleep(0.02)
    return found


def is_up(address: str) -> bool:
    try:
        return bool(httpx.get(f"{address}/runs/none", timeout=PATIENCE).status_code == 404)
    except httpx.TransportError:
        return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_clients_of_an_api_server_see_every_event_once_though_a_worker_is_killed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """H10: two workers, one killed; two clients of each run, one reconnecting; questions answered by the server."""
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else request.getfixturevalue("database")
    with processes(url, tmp_path) as started, httpx.Client(timeout=PATIENCE) as http:
        address = started.serve()
        workers = [started.work(), started.work()]
        until(lambda: is_up(address))
        runs = [http.post(f"{address}/runs", json={"topic": f"t{n}"}).json()["run_id"] for n in range(RUNS)]
        clients = {
            run_id: [Browser(address, run_id, False), Browser(address, run_id, True)] for run_id in runs
        }
        store = open_store(url)

        def a_holder() -> Any:
            """A worker that executes one of the runs: either may have got both."""
            holders = [head.holder or "" for head in store.heads(runs) if head is not None]
            return next((each for each in workers for holder in holders if str(each.pid) in holder), None)

        until(a_holder).kill()
        for run_id in runs:
            asked = until(lambda run_id=run_id: http.get(f"{address}/runs/{run_id}").json()["questions"])
            assert asked[0]["prompt"].startswith("Publish this?")
            steady = clients[run_id][0]
            until(lambda steady=steady: steady.events and steady.events[-1]["type"] == "pause")
            # Such a client may come and go for weeks: its answer begins, so the server notices when it is gone.
            seen = {"last-event-id": steady.events[-1]["cursor"]}
            with http.stream("GET", f"{address}/runs/{run_id}/events", headers=seen) as waiting:
                assert waiting.status_code == 200
            answer = {"answer": "yes", "question": asked[0]["id"]}
            reply = http.post(f"{address}/runs/{run_id}/answer", json=answer)
            assert reply.status_code == 200, reply.text
            assert http.post(f"{address}/runs/{run_id}/answer", json=answer).status_code == 409
        assert http.post(f"{address}/runs/{runs[0]}/answer", json={"answer": "no"}).status_code == 409
        for run_id, (steady, restless) in clients.items():
            steady.join(PATIENCE)
            restless.join(PATIENCE)
            assert not steady.is_alive()
            assert not restless.is_alive()
            assert steady.connections == 1
            assert restless.connections > 3
            assert steady.events == restless.events
            assert [event["cursor"] for event in steady.events] == [
                event["cursor"] for event in Runs(store).get(run_id).events()
            ]
            seen = {"last-event-id": steady.events[-1]["cursor"]}
            assert http.get(f"{address}/runs/{run_id}/events", headers=seen).status_code == 204
            nodes = [event["node"] for event in steady.events if event["type"] == "step"]
            assert nodes == [*["research"] * 5, "write", "review", "publish"]
            assert Runs(store).get(run_id).result(1)["published"] is True
        store.close()
