"""`runs list`, `show`, `history`, `state`, `diff`, `watch`: look at runs. None of it needs the code of a graph."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from limpet.cli.commands.run import what_next
from limpet.cli.exit_codes import BY_STATUS, OK
from limpet.cli.output import Output
from limpet.cli.project import client_of, command
from limpet.cli.values import moment
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.process_identity import describe_holder, is_dead
from limpet.engine.operations import run_info as records
from limpet.engine.operations import stored_state
from limpet.engine.operations.run_info import RunInfo, run_info
from limpet.engine.operations.stored_state import Difference
from limpet.errors import DamagedRecord, RunNotFound, UsageError
from limpet.graphs.plan import END
from limpet.graphs.secrets import masked
from limpet.journal.progress import Progress
from limpet.journal.store import RUNNING


def list_runs(given: Namespace, output: Output) -> int:
    """The runs in the store."""
    client = client_of(given)
    listed = records.list_runs(client, given.status, given.of, given.tag, given.limit)
    found = [_at_present(client, info) for info in listed]
    if output.json:
        output.result([_facts(info) for info in found])
        return OK
    columns = ("run", "graph", "status", "step", "at", "updated (UTC)", "")
    rows = [
        (info.run_id, info.graph, info.status, info.step, _place(info), moment(info.updated), _gist(info))
        for info in found
    ]
    output.table(
        columns, rows, "no runs" + (" that fit" if given.status or given.of or given.tag else " yet")
    )
    return OK


def show(given: Namespace, output: Output) -> int:
    """All that is known of one run."""
    client = client_of(given)
    info = _at_present(client, run_info(client.head(given.run)))
    if output.json:
        output.result(_facts(info))
        return OK
    facts = {
        "run": info.run_id, "graph": info.graph, "status": info.status, "step": info.step, "at": _place(info),
        "why": info.reason, "created": f"{moment(info.created)} UTC", "updated": f"{moment(info.updated)} UTC",
        "tags": ", ".join(info.tags), "forked from": info.parent,
        "held by": _holder(info) if info.holder else None,
        "error": (info.error or {}).get("traceback") or (info.error or {}).get("message"),
    }  # fmt: skip
    output.facts(facts)
    what_next(info, given, output)
    return OK


def history(given: Namespace, output: Output) -> int:
    """The steps of a run."""
    found = stored_state.checkpoints(client_of(given), given.run)
    rows = [(each.step, each.node, moment(each.timestamp), each.next) for each in found]
    if output.json:
        keys = ("step", "node", "at", "next")
        output.result(
            [
                dict(zip(keys, (each.step, each.node, each.timestamp, each.next), strict=True))
                for each in found
            ]
        )
    else:
        output.table(("step", "node", "at (UTC)", "next"), rows, "no steps are stored")
        if found:
            newest = str(found[-1].step)
            output.hint("What the state was then:", command("runs state", given, given.run, "--step", newest))
    return OK


def state(given: Namespace, output: Output) -> int:
    """The state of a run."""
    progress = stored_state.progress_of(client_of(given), given.run, given.step)
    found = masked(dict(progress.so_far()), () if given.reveal else _secrets(progress))
    if given.key is not None:
        if given.key not in found:
            raise UsageError(
                f"the state has no key {given.key!r}; it has {', '.join(map(repr, found)) or 'none'}"
            )
        value = found[given.key]
        if output.json or not isinstance(value, str):
            output.result(value)
        else:
            output.text(value)
    elif output.json:
        output.result(found)
    else:
        output.facts(
            {key: repr(value) if value in (None, "", [], {}, ()) else value for key, value in found.items()}
        )
    return OK


def diff(given: Namespace, output: Output) -> int:
    """What changed between two steps."""
    client = client_of(given)
    hidden = () if given.reveal else _secrets(stored_state.progress_of(client, given.run, None))
    parts = stored_state.difference(client, given.run, given.a, given.b, frozenset())
    found = Difference(*(masked(dict(part), hidden) for part in parts))
    if output.json:
        output.result(found._asdict())
        return OK
    rows: list[tuple[str, str, Any, Any]] = [
        *(("+", key, None, value) for key, value in found.added.items()),
        *(("-", key, value, None) for key, value in found.removed.items()),
        *(("~", key, old, new) for key, (old, new) in found.changed.items()),
    ]
    output.table(("", "key", f"after step {given.a}", f"after step {given.b}"), rows, "nothing is different")
    return OK


def watch(given: Namespace, output: Output) -> int:
    """Follow a run until it stops; each change is shown once."""
    client, seen, holder = client_of(given), None, None
    while True:
        head = client.head(given.run)
        info = run_info(head)
        now = (head.sequence, info.status, _holder(info))
        if now != seen:
            _tell(_at_present(client, info), holder != now[2], output)
            if info.status == RUNNING and info.holder and is_dead(info.holder) and not output.json:
                what_next(info, given, output)
            seen, holder = now, now[2]
        if info.status != RUNNING:
            if not output.json:
                what_next(info, given, output)
            return BY_STATUS[info.status]
        time.sleep(max(0.05, given.every))


def _tell(info: RunInfo, held: bool, output: Output) -> None:
    """A line of a run that is followed; who has it is said where that is new."""
    if output.json:
        output.result({"run_id": info.run_id, "status": info.status, "step": info.step, "at": info.node})
        return
    what = f"step {info.step}" + (f", at {_place(info)}" if _place(info) else "")
    if info.status == RUNNING and held:
        what += f"; held by {_holder(info)}" if info.holder else "; nobody has it"
    elif info.status == "failed" and info.reason:
        what += f": {info.reason}"
    output.event(time.strftime("%H:%M:%S"), info.status, what)


def _at_present(client: LeaseClient, info: RunInfo) -> RunInfo:
    """What is known of a run, with where it is now if it runs; as of its last stop where that can't be read."""
    if info.status != RUNNING:
        return info
    try:
        progress = stored_state.progress_of(client, info.run_id, None)
    except (DamagedRecord, RunNotFound):
        return info
    return info._replace(step=progress.step, node=progress.place(), reason=None, questions=[])


def _holder(info: RunInfo) -> str:
    return describe_holder(info.holder) + (", which is gone" if info.holder and is_dead(info.holder) else "")


def _secrets(progress: Progress) -> list[str]:
    """The keys that the graph of a run has marked as secret, as they were when it began."""
    return [str(key) for key in progress.meta.get("secrets", ())]


def _place(info: RunInfo) -> str | None:
    return None if info.node == END else info.node


def _gist(info: RunInfo) -> str:
    if info.status == RUNNING and info.holder and is_dead(info.holder):
        return "its process is gone"
    if info.status == RUNNING and info.holder is None:
        return "nobody has it"
    if info.questions:
        return f"asks: {info.questions[0].prompt}"
    return info.reason or ""


def _facts(info: RunInfo) -> dict[str, Any]:
    return {**info._asdict(), "questions": [question._asdict() for question in info.questions]}
