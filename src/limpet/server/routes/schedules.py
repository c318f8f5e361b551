"""Routes about schedules and workers: what is due, who is alive, and which runs no worker can continue."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from limpet.engine.schedules.schedule_info import ScheduleInfo
from limpet.frontends.run_facts import run_facts
from limpet.journal.encoding.json_values import to_json_value
from limpet.server.endpoint import INTEGER, ApiRequest, Endpoint, Parameter


def list_schedules(request: ApiRequest) -> dict[str, Any]:
    """All schedules, by name."""
    return {"schedules": [_facts(each) for each in request.service.schedules.list()]}


def show(request: ApiRequest) -> dict[str, Any]:
    """One schedule, with the statuses of its newest runs."""
    return _facts(request.service.schedules.get(request.path["name"]))


def next_times(request: ApiRequest) -> dict[str, Any]:
    """The next planned times of a schedule, as seconds since the epoch."""
    count = request.values.get("count", 5)
    times = request.service.schedules.next_times(request.path["name"], count)
    return {"times": [each.timestamp() for each in times]}


def pause(request: ApiRequest) -> dict[str, Any]:
    """Have a schedule start nothing."""
    request.service.schedules.pause(request.path["name"])
    return show(request)


def resume(request: ApiRequest) -> dict[str, Any]:
    """Have a paused schedule continue."""
    request.service.schedules.resume(request.path["name"])
    return show(request)


def trigger(request: ApiRequest) -> dict[str, Any]:
    """Start a run of a schedule now."""
    return {"run_id": request.service.schedules.trigger(request.path["name"])}


def delete(request: ApiRequest) -> dict[str, Any]:
    """Delete a schedule. Its runs stay."""
    request.service.schedules.delete(request.path["name"])
    return {"deleted": request.path["name"]}


def workers(request: ApiRequest) -> dict[str, Any]:
    """Who executes runs, and which runs are due that no live worker can continue."""
    runs = request.service.runs
    found = [
        {**each._asdict(), "graphs": dict(each.graphs), "left": len(each.left), "process": each.process}
        for each in runs.workers()
    ]
    return {
        "workers": to_json_value(found),
        "unserved": to_json_value([lane._asdict() for lane in runs.unserved()]),
    }


def children(request: ApiRequest) -> dict[str, Any]:
    """The runs that nodes of a run have started."""
    found = request.service.runs.list(parent=request.run_id, limit=500)
    return {"runs": [to_json_value(run_facts(each)) for each in found], "next": found.next, "searched": None}


def _facts(info: ScheduleInfo) -> dict[str, Any]:
    facts = {
        name: value.timestamp() if isinstance(value, datetime) else value
        for name, value in info._asdict().items()
    }
    facts["recent"] = [_firing(each) for each in info.recent]
    shown: dict[str, Any] = to_json_value(facts)
    return shown


def _firing(firing: Any) -> dict[str, Any]:
    return {
        name: value.timestamp() if isinstance(value, datetime) else value
        for name, value in firing._asdict().items()
    }


_SCHEDULE: Final = "/schedules/{name}"

ENDPOINTS: Final = (
    Endpoint("GET", "/schedules", list_schedules, "All schedules, by name", "ScheduleList"),
    Endpoint(
        "GET",
        f"{_SCHEDULE}/next",
        next_times,
        "The next planned times of a schedule",
        "Times",
        query=(Parameter("count", INTEGER, "how many (5)"),),
    ),
    Endpoint("POST", f"{_SCHEDULE}/pause", pause, "Have a schedule start nothing", "Schedule"),
    Endpoint("POST", f"{_SCHEDULE}/resume", resume, "Have a paused schedule continue", "Schedule"),
    Endpoint("POST", f"{_SCHEDULE}/trigger", trigger, "Start a run of a schedule now", "RunId"),
    Endpoint("DELETE", _SCHEDULE, delete, "Delete a schedule; its runs stay", "Deleted"),
    Endpoint("GET", _SCHEDULE, show, "A schedule, with its newest runs", "Schedule"),
    Endpoint(
        "GET", "/workers", workers, "Who executes runs, and which runs no worker can continue", "Workers"
    ),
    Endpoint("GET", "/runs/{run_id}/children", children, "The runs that a run has started", "RunPage"),
)
