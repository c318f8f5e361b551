"""`limits list`, `show`, `set`, `delete`: limits over all workers."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from typing import Any

from limpet import LimitInfo, Limits
from limpet.cli.exit_codes import OK
from limpet.cli.output import Output
from limpet.cli.project import command_line, find_store, project_graphs
from limpet.errors import DamagedDocument, LimitNotFound, LimpetError, UsageError, did_you_mean
from limpet.limits import SlotHolder, SlotWaiter

SHOWN_WAITING = 20
"""How many of those that wait `show` lists."""

NONE = "none"
"""What is typed for a value that doesn't limit."""


def list_limits(args: Namespace, output: Output) -> int:
    """The limits, how much of them is used, how many wait, and where the values come from."""
    found = _limits(args).list()
    if output.json:
        output.result([_data(info) for info in found])
        return OK
    output.table(
        ("limit", "concurrency", "rate", "waiting", "queues", "values"),
        [
            (
                info.name,
                _concurrency(info),
                _rate(info),
                str(info.waiting),
                " ".join(info.queues),
                _sources(info),
            )
            for info in found
        ],
        "no limits",
    )
    return OK


def show(args: Namespace, output: Output) -> int:
    """One limit: what holds its slots, and what waits first."""
    limits = _limits(args)
    info = limits.get(args.name)
    waiting = limits.waiting(args.name)
    first = waiting[:SHOWN_WAITING]
    if output.json:
        output.result({**_data(info), "first_in_line": [each._asdict() for each in first]})
        return OK
    output.facts(
        {
            "limit": info.name,
            "concurrency": _concurrency(info),
            "rate": _rate(info),
            "queues": " ".join(info.queues),
            "values": _sources(info),
            "waiting": _waiting(waiting),
        }
    )
    if info.held:
        rows = [(*_whose(each), each.state, output.time(each.since)) for each in info.held]
        output.table(("run", "step/node", "slot", output.time_heading("since")), rows)
    if waiting:
        rows = [(*_whose(each), "waits", "") for each in first]
        if len(waiting) > len(first):
            rows.append((f"… and {len(waiting) - len(first):,} more", "", "", ""))
        output.table(("run", "step/node", "slot", ""), rows)
    return OK


def set_limit(args: Namespace, output: Output) -> int:
    """Set values of a limit, or go back to those of the code."""
    given: dict[str, Any] = {}
    if args.concurrency is not None:
        given["concurrency"] = _whole_number(args.concurrency)
    if args.rate is not None:
        given["rate"] = _or_none(args.rate)
    if args.queue:
        given["queues"] = _queues(args.queue)
    if not given and not args.reset:
        raise UsageError("give what to set: --concurrency, --rate or --queue; or --reset")
    limits = _limits(args, must_exist=not given)
    known = [each.name for each in limits.list()]
    is_new = args.name not in known and not _is_damaged(limits, args.name)
    info = limits.reset(args.name) if args.reset else None
    if given:
        info = limits.set(args.name, **given)
    assert info is not None
    if output.json:
        output.result(_data(info))
    else:
        values = f"concurrency {_concurrency(info)}, rate {_rate(info)}"
        if info.queues:
            values += f", queues {' '.join(info.queues)}"
        output.message(f"{info.name}: {values} ({_sources(info)})")
        if is_new:
            _say_if_unknown(args, output, info.name, known)
        if info.concurrency is None and info.rate is None:
            output.say(f"{info.name} limits nothing, as it has neither a concurrency nor a rate")
        output.hint("what uses it:", command_line("limits show", args, info.name))
    return OK


def delete(args: Namespace, output: Output) -> int:
    """Delete a limit."""
    _limits(args).delete(args.name)
    if output.json:
        output.result({"deleted": args.name})
    else:
        output.message(
            f"deleted the limit {args.name}: nothing is limited by it, until a program that declares it starts"
        )
    return OK


def _is_damaged(limits: Limits, name: str) -> bool:
    """Whether there is a limit of this name that can't be read: lists leave it out."""
    try:
        with suppress(LimitNotFound):
            limits.get(name)
    except DamagedDocument:
        return True
    return False


def _say_if_unknown(args: Namespace, output: Output, name: str, stored: list[str]) -> None:
    """Say that no program has declared a limit, unless a graph of the project does: its name may be misspelt."""
    declared: list[str] = []
    with suppress(LimpetError):  # the code can't be loaded
        for graph in project_graphs(args):
            compiled = graph.compiled()
            declared += [
                limit.name for limit in (*compiled.limits, *compiled.queue_limits, *compiled.plan.limits)
            ]
    if name not in declared:
        near = did_you_mean(name, [*stored, *declared])
        output.say(f"{name} is a new limit, which no program has declared so far{near}")


def _limits(args: Namespace, must_exist: bool = True) -> Limits:
    return Limits(find_store(args, must_exist=must_exist))


def _data(info: LimitInfo) -> dict[str, Any]:
    return {
        **info._asdict(),
        "queues": list(info.queues),
        "held": [each._asdict() for each in info.held],
        "sources": {
            name: info.source(name) for name in ("concurrency", "rate", "queues") if info.source(name)
        },
    }


def _whose(each: SlotHolder | SlotWaiter) -> tuple[str, str]:
    """The run and the call, in two columns; or which run it is for."""
    if each.run_id:
        return each.run_id, each.call
    return f"(next run of {each.graph} in queue {each.queue})", ""


def _waiting(line: list[SlotWaiter]) -> str:
    """How many wait. The queued runs of a graph and queue have one place together, so they count as one."""
    if all(each.run_id for each in line):
        return str(len(line))
    return f"{len(line)} (all queued runs of a graph and queue are one)"


def _concurrency(info: LimitInfo) -> str:
    if info.concurrency is None:
        return NONE
    return f"{len(info.held)}/{info.concurrency}"


def _rate(info: LimitInfo) -> str:
    if info.rate is None:
        return NONE
    return f"{info.begun} of {info.rate}"


def _sources(info: LimitInfo) -> str:
    """Where the values come from, in a few words."""
    names = ("concurrency", "rate", "queues")
    was_set = [name for name in names if info.source(name) == "set"]
    if not was_set:
        return "code" if info.declared else NONE
    if not info.declared:
        return "set"
    return f"code; set: {', '.join(was_set)}"


def _or_none(text: str) -> str | None:
    return None if text.lower() == NONE else text


def _queues(named: list[str]) -> list[str]:
    if NONE not in map(str.lower, named):
        return named
    if len(named) > 1:
        raise UsageError(f"--queue takes names of queues, or {NONE}: not both")
    return []


def _whole_number(text: str) -> int | None:
    if text.lower() == NONE:
        return None
    if not text.isascii() or not text.isdecimal():
        raise UsageError(f"--concurrency takes a whole number of at least 1, or none, not {text!r}")
    return int(text)
