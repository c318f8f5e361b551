"""H19: schedules and workers over HTTP."""

from __future__ import annotations

from typing import Any

from limpet import supervise
from support.http_api import api
from support.http_server import API
from support.waiting import until


def test_a_schedule_is_added_looked_at_paused_triggered_and_deleted() -> None:
    """H19: the same schedule twice is one."""
    with api() as client:
        schedule: dict[str, Any] = {
            "name": "nightly",
            "graph": "article",
            "every": "1h",
            "input": {"topic": "moss"},
            "tags": ["n"],
            "overlap": "queue",
        }
        added = client.act("/schedules", **schedule)
        assert client.act("/schedules", **schedule) == added
        assert (added["when"], added["status"], added["input"]) == ("every 1h", "active", {"topic": "moss"})
        assert client.act("/schedules", 400, **{**schedule, "every": "2h"})["code"] == "usage"
        assert client.act("/schedules", **{**schedule, "every": "2h"}, replace=True)["when"] == "every 2h"
        assert [each["name"] for each in client.read("/schedules")["schedules"]] == ["nightly"]
        times = client.read("/schedules/nightly/next", count=3)["times"]
        assert times[1] - times[0] == 7200
        assert client.act("/schedules/nightly/pause")["status"] == "paused"
        assert client.act("/schedules/nightly/resume")["status"] == "active"
        assert client.act("/schedules/nightly/trigger")["run_id"].startswith("nightly:")
        assert client.read("/schedules/nightly")["triggers"][0].startswith("nightly:")
        assert client.delete(f"{API}/schedules/nightly").json() == {"deleted": "nightly"}
        assert client.read("/schedules/nightly", 404)["code"] == "schedule-not-found"


def test_a_schedule_that_makes_no_sense_is_refused() -> None:
    """H19: nothing is stored."""
    with api() as client:
        usual = {"name": "s", "graph": "article", "every": "1h"}
        for wrong, status in (
            ({"graph": "other"}, 404),
            ({"name": "a/b"}, 400),
            ({"every": "often"}, 400),
            ({"every": f"{'9' * 400}h"}, 400),
            ({"every": None}, 400),
            ({"cron": "* * * * *"}, 400),
            ({"every": None, "cron": "nonsense"}, 400),
            ({"timezone": "Moon"}, 400),
            ({"overlap": "maybe"}, 400),
            ({"catch_up": "maybe"}, 400),
            ({"ends": "2001-01-01"}, 400),
            ({"priority": 2**60}, 400),
        ):
            client.act("/schedules", status, **{**usual, **wrong})
        assert client.read("/schedules")["schedules"] == []
        assert client.read("/schedules/none/next", 404)["code"] == "schedule-not-found"
        client.act("/schedules", **usual)
        for count in (-1, 10_001):
            assert client.read("/schedules/s/next", 400, count=count)["code"] == "usage"


def test_a_list_of_schedules_has_the_sizes_of_large_inputs() -> None:
    """H19: the schedule itself has all of it."""
    with api() as client:
        for name, topic in (("large", "x" * 100_000), ("small", "kelp")):
            client.act("/schedules", name=name, graph="article", every="1h", input={"topic": topic})
        large, small = client.read("/schedules")["schedules"]
        assert (large["input"], small["input"]) == (None, {"topic": "kelp"})
        assert 100_000 < large["input_size"] < 100_100
        assert "input_size" not in small
        assert len(client.get(f"{API}/schedules").content) < 5_000
        assert client.read("/schedules/large")["input"] == {"topic": "x" * 100_000}


def test_workers_are_listed_with_what_they_leave_to_others() -> None:
    """H19: and the runs that no worker can continue."""
    with api() as client:
        client.act("/graphs/article/runs", input={"topic": "broken"}, run_id="r")
        (lane,) = client.read("/workers")["unserved"]
        assert (lane["graph"], lane["runs"], lane["reason"]) == ("article", 1, "no worker is running")
        supervisor = supervise(client.store, [client.graph])
        supervisor.start()
        try:
            (worker,) = until(lambda: client.read("/workers")["workers"])
            assert (worker["is_live"], list(worker["graphs"])) == (True, ["article"])
            until(lambda: client.read("/runs/r")["status"] == "failed")
        finally:
            supervisor.stop()
        assert client.read("/workers")["workers"] == []
