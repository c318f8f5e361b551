"""`store info`, `migrate`, `verify`, `prune`: look after a store."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter

from limpet.cli.exit_codes import FAILED, OK
from limpet.cli.output import Output
from limpet.cli.project import client_of, store_of
from limpet.cli.values import moment
from limpet.defaults import RETENTION_HOURS
from limpet.errors import UsageError
from limpet.journal.store import ENDED, STATUSES, RunFilter
from limpet.journal.verify import verify as verify_run
from limpet.stores.migrations import sql_of
from limpet.stores.retention import Retention, expired, let_go

DEFAULT_AGE = f"{RETENTION_HOURS:g}h"


def info(given: Namespace, output: Output) -> int:
    """What a store is, what it can do, and what is in it."""
    store = store_of(given, there=True)
    heads = store.list(RunFilter())
    by_status = Counter(head.status for head in heads)
    by_graph = Counter(head.graph for head in heads)
    abilities = store.abilities._asdict()
    if output.json:
        counts = {"runs": len(heads), "by_status": by_status, "by_graph": by_graph}
        output.result({"store": repr(store), **abilities, **counts})
        return OK
    output.facts({"store": repr(store), **{name: str(value).lower() for name, value in abilities.items()}})
    output.table(
        ("status", "runs"),
        [(status, str(by_status[status])) for status in STATUSES if by_status[status]],
        "no runs",
    )
    if by_graph:
        output.table(("graph", "runs"), [(name, str(count)) for name, count in by_graph.most_common()])
    return OK


def migrate(given: Namespace, output: Output) -> int:
    """Bring the schema up to date, which opening a store does; or print the SQL of all steps to it."""
    if given.show:
        kind = (given.store or "sqlite").partition(":")[0].partition("+")[0].replace("postgresql", "postgres")
        if kind not in ("sqlite", "postgres"):
            raise UsageError(f"a store of the kind {kind!r} has no schema in SQL; sqlite and postgresql have")
        output.result({"sql": sql_of(kind)}) if output.json else output.text(sql_of(kind))
        return OK
    store = store_of(given)
    store.list(RunFilter(limit=1))
    output.result({"store": repr(store), "current": True}) if output.json else output.text(
        f"{store!r} is up to date"
    )
    return OK


def verify(given: Namespace, output: Output) -> int:
    """Look for damage. The exit code is 1 if there is any."""
    client = client_of(given)
    runs = [client.head(given.run)] if given.run else client.store.list(RunFilter())
    damaged = 0
    found = []
    for number, head in enumerate(runs, 1):
        output.progress(f"{number} of {len(runs)}")
        report = verify_run(client.store, head.run_id)
        damaged += not report.ok
        found.append({"run_id": head.run_id, "ok": report.ok, "report": str(report)})
    output.progress("")
    if output.json:
        output.result(found)
    else:
        output.table(
            ("run", "status", "what"),
            [
                (each["run_id"], "ok" if each["ok"] else "damaged", "" if each["ok"] else each["report"])
                for each in found
            ],
            "no runs",
        )
    return FAILED if damaged else OK


def prune(given: Namespace, output: Output) -> int:
    """Delete old runs, or say which would go."""
    statuses = tuple(given.status or ENDED)
    unknown = [status for status in statuses if status not in STATUSES]
    if unknown:
        raise UsageError(f"--status is one of {', '.join(STATUSES)}, not {unknown[0]!r}")
    older = given.older or (None if given.newest is not None else DEFAULT_AGE)
    policy = Retention(**dict.fromkeys(statuses, older), newest=given.newest)
    store = store_of(given, there=True)
    going = expired(store, policy)
    if not given.dry_run:
        going = let_go(store, going)
    if output.json:
        output.result({"deleted": not given.dry_run, "runs": [each._asdict() for each in going]})
        return OK
    rows = [(each.run_id, each.graph, each.status, moment(each.updated), each.reason) for each in going]
    output.table(("run", "graph", "status", "updated (UTC)", "why"), rows, "nothing is to go")
    if rows:
        done = "would be" if given.dry_run else "was" if len(rows) == 1 else "were"
        output.say(f"{len(rows)} run{'s' if len(rows) != 1 else ''} {done} deleted")
    return OK
