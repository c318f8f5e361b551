"""Routes about schedules and workers: what is due, which workers live, and which runs none of them can continue."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from limpet.engine.leases.lease_client import client_for
from limpet.engine.schedules.schedule import find_schedule
from limpet.engine.schedules.schedule_info import ScheduleInfo, with_run_statuses
from limpet.frontends.values import shown_value, shown_values, without_large
from limpet.server.endpoint import (
    FLAG,
    INTEGER,
    OBJECT,
    TEXT,
    TEXTS,
    ApiRequest,
    Endpoint,
    Parameter,
    Service,
    checked_for_urls,
)
from limpet.server.routes.graphs import known_graph


def list_schedules(request: ApiRequest) -> dict[str, Any]:
    """All schedules, by name. In place of a large input or config, it has its size."""
    service = request.service
    listed = {each.name: _facts(service, each) for each in service.schedules.list()}
    values = {(name, part): facts[part] for name, facts in listed.items() for part in ("input", "config")}
    _, large = without_large(values)
    for (name, part), size in large.items():
        listed[name][part] = None
        listed[name][f"{part}_size"] = size
    return {"schedules": list(listed.values())}


def show(request: ApiRequest) -> dict[str, Any]:
    """One schedule, with the statuses of its newest runs."""
    service = request.service
    return _facts(service, service.schedules.get(request.path["name"]))


def add(request: ApiRequest) -> dict[str, Any]:
    """Have runs of a graph start at planned times. The same schedule twice is one."""
    values = {name: value for name, value in request.values.items() if value is not None}
    service = request.service
    graph = known_graph(service, values.pop("graph"))
    name = values.pop("name")
    checked_for_urls(name)
    return _facts(service, service.schedules.add(name, graph, **values))


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
        "workers": shown_value(found),
        "unserved": shown_value([lane._asdict() for lane in runs.unserved()]),
    }


def _facts(service: Service, schedule: ScheduleInfo) -> dict[str, Any]:
    info = with_run_statuses(client_for(service.store), schedule)
    facts = _with_seconds(info._asdict())
    facts["recent"] = [_with_seconds(each._asdict()) for each in info.recent]
    secrets = _secrets(service, info)
    for name in ("input", "config"):
        facts[name] = shown_value(facts[name], secrets)
    return shown_values(facts, ())


def _secrets(service: Service, info: ScheduleInfo) -> frozenset[str]:
    """The secret keys of a schedule, which are masked in `info` already, but not inside of instances of classes."""
    known = service.known_secrets(info.graph)
    found = find_schedule(service.store, info.name)
    if found is None:  # it was deleted meanwhile
        return known
    return known.union(found[0].plan.start.secrets)


def _with_seconds(facts: dict[str, Any]) -> dict[str, Any]:
    """The same with times as seconds since the epoch."""
    return {
        name: value.timestamp() if isinstance(value, datetime) else value for name, value in facts.items()
    }


_SCHEDULE: Final = "/schedules/{name}"

ENDPOINTS: Final = (
    Endpoint("GET", "/schedules", list_schedules, "All schedules, by name", "ScheduleList"),
    Endpoint(
        "POST",
        "/schedules",
        add,
        "Have runs of a graph start at planned times; the same schedule twice is one",
        "Schedule",
        body=(
            Parameter("name", TEXT, "its name", True),
            Parameter("graph", TEXT, "the graph whose runs it starts", True),
            Parameter("cron", TEXT, "the planned times as a cron expression"),
            Parameter("every", TEXT, "the time between two runs, such as 15m"),
            Parameter("timezone", TEXT, "the time zone of the cron expression (UTC)"),
            Parameter("input", OBJECT, "the first values of the state of its runs"),
            Parameter("config", OBJECT, "what their nodes get as config"),
            Parameter("tags", TEXTS, "their tags"),
            Parameter("queue", TEXT, "the queue that they wait in"),
            Parameter("priority", INTEGER, "workers take runs of a higher one first"),
            Parameter("overlap", TEXT, "skip, queue, allow or cancel_old, while an earlier run hasn't ended"),
            Parameter("catch_up", TEXT, "none, last or all of the times that were missed"),
            Parameter("starts", TEXT, "no run before then"),
            Parameter("ends", TEXT, "no run after then"),
            Parameter("paused", FLAG, "start nothing until it is resumed"),
            Parameter("replace", FLAG, "replace a schedule of this name that has other values"),
        ),
    ),
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
)
