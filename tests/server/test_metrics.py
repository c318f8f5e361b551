"""H19, H21: numbers for Prometheus."""

from __future__ import annotations

import re

import pytest

from limpet import MemoryStore, supervise
from limpet.engine.leases import workers
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead
from limpet.server import metrics
from limpet.server.run_counts import RecentAnswers
from support.http_api import api
from support.waiting import until

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\\\n]*"(,[a-z]+="[^"\\\n]*")*\})? -?[0-9.e+-]+')


class Listed(MemoryStore):
    """A store that counts lists."""

    lists = 0

    def list(self, which: RunFilter) -> list[RunHead]:
        self.lists += 1
        return super().list(which)


def test_runs_requests_and_streams_are_counted() -> None:
    """H19: in the text format, each family with its type."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="kelp")
        client.run_until_it_stops("moss", topic="broken")
        client.read("/runs")
        client.read("/runs/none", 404)
        answer = client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = answer.text.splitlines()
        assert answer.text.endswith("\n")
        for line in lines:
            assert line.startswith(("# HELP limpet_", "# TYPE limpet_")) or LINE.fullmatch(line), line
        assert 'limpet_runs{status="paused"} 1' in lines
        assert 'limpet_runs{status="failed"} 1' in lines
        assert 'limpet_http_requests_total{method="GET",status="200"} 1' in lines
        assert 'limpet_http_requests_total{method="GET",status="404"} 1' in lines
        assert "limpet_event_streams 0" in lines
        assert "limpet_workers 0" in lines
        types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(types) == len(set(types))


def test_what_clients_make_up_adds_no_lines() -> None:
    """H19: methods that HTTP doesn't know are counted together; a path that isn't there is counted, too."""
    with api() as client:
        for method in ("BREW", "WHEN", 'P"\\'):
            assert client.request(method, "/api/v1/runs").status_code == 405
        assert client.get("/api/v1/none").status_code == 404
        lines = client.get("/metrics").text.splitlines()
        assert 'limpet_http_requests_total{method="other",status="405"} 3' in lines
        assert 'limpet_http_requests_total{method="GET",status="404"} 1' in lines
        assert sum(line.startswith("limpet_http_requests_total{") for line in lines) == 2


def test_all_runs_are_counted_but_not_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: page by page; a store of many runs isn't kept busy by those who ask how many there are."""
    monkeypatch.setattr(metrics, "PAGE_SIZE", 2)
    store = Listed()
    with api(store=store) as client:
        for number in range(5):
            client.act("/graphs/article/runs", input={"topic": "x"}, run_id=f"r{number}")
        assert 'limpet_runs{status="queued"} 5' in client.get("/metrics").text
        lists = store.lists
        client.act("/graphs/article/runs", input={"topic": "x"})
        assert 'limpet_runs{status="queued"} 5' in client.get("/metrics").text
        assert store.lists - lists < 3


def test_runs_that_no_worker_takes_are_counted_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """H21: a queue that grows is seen to grow, however long it is."""
    monkeypatch.setattr(workers, "MAX_COUNTED", 2)
    monkeypatch.setattr(metrics, "PAGE_SIZE", 3)
    with api() as client:
        for number in range(7):
            client.act("/graphs/article/runs", input={"topic": "x"}, run_id=f"r{number}")
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="later", delay="1h")
        client.run_until_it_stops("kelp", topic="kelp")
        lines = client.get("/metrics").text.splitlines()
        assert "limpet_unserved_runs 7" in lines
        assert 'limpet_runs{status="queued"} 7' in lines
    with api() as client, supervise(client.store, [client.graph]):
        until(lambda: client.read("/workers")["workers"])
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="r")
        assert "limpet_unserved_runs 0" in client.get("/metrics").text.splitlines()


def test_an_answer_is_found_again_when_it_is_too_old() -> None:
    """H19: by how long it took to find."""
    found: list[int] = []

    def find() -> int:
        found.append(1)
        return len(found)

    kept: RecentAnswers[int] = RecentAnswers(0.0, 3600.0)
    assert [kept.get("a", find), kept.get("a", find), kept.get("b", find)] == [1, 1, 2]
    fresh: RecentAnswers[int] = RecentAnswers(0.0)
    assert [fresh.get("a", find), fresh.get("a", find)] == [3, 4]
    for number in range(100):
        kept.get(number, find)
    assert kept.get("a", find) != 1  # few are kept
