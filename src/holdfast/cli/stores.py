"""`store info`, `migrate`, `verify`, `prune`: look after a store."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from re import fullmatch

from holdfast.cli.exits import FAILED, OK
from holdfast.cli.output import Output
from holdfast.cli.plainly import moment
from holdfast.cli.project import link_of, store_of
from holdfast.engine import records
from holdfast.errors import UsageError
from holdfast.journal.store import ENDED, STATUSES, RunFilter, RunHead, Store

AGES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def info(given: Namespace, output: Output) -> int:
    """What a store is, what it can do, and what is in it."""
    store = store_of(given)
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
        from holdfast.stores.migrations import migrations_of

        for number, sql in enumerate(migrations_of(given.store or ""), 1):
            output.text(f"-- {number}\n{sql.strip()}\n")
        return OK
    store = store_of(given)
    store.list(RunFilter(limit=1))
    output.result({"store": repr(store), "current": True}) if output.json else output.text(
        f"{store!r} is up to date"
    )
    return OK


def verify(given: Namespace, output: Output) -> int:
    """Look for damage. The exit code is 1 if there is any."""
    link = link_of(given)
    runs = [link.head(given.run)] if given.run else link.store.list(RunFilter())
    damaged = 0
    found = []
    for number, head in enumerate(runs, 1):
        if output.live and len(runs) > 1:
            print(f"\r{number} of {len(runs)}", end="", flush=True)
        report = records.verify(link, head.run_id)
        damaged += not report.ok
        found.append({"run_id": head.run_id, "ok": report.ok, "report": str(report)})
    if output.json:
        output.result(found)
    else:
        output.table(
            ("run", "", "what"),
            [
                (each["run_id"], "ok" if each["ok"] else "damaged", "" if each["ok"] else each["report"])
                for each in found
            ],
            "no runs",
        )
    return FAILED if damaged else OK


def prune(given: Namespace, output: Output) -> int:
    """Delete old runs, or say which would go."""
    store, age = store_of(given), _seconds(given.older)
    statuses = tuple(given.status or ENDED)
    unknown = [status for status in statuses if status not in STATUSES]
    if unknown:
        raise UsageError(f"--status is one of {', '.join(STATUSES)}, not {unknown[0]!r}")
    if given.keep is not None and given.keep < 0:
        raise UsageError(f"--keep is a whole number from 0, not {given.keep}")
    going = _old(store, age, statuses, given.keep)
    if not given.dry_run:
        going = [head for head in going if _deleted(store, head)]
    if output.json:
        output.result({"deleted": not given.dry_run, "runs": [head.run_id for head in going]})
        return OK
    rows = [(head.run_id, head.graph, head.status, moment(head.updated)) for head in going]
    output.table(("run", "graph", "status", "updated (UTC)"), rows, "nothing is that old")
    if rows:
        output.say(f"{len(rows)} runs {'would be' if given.dry_run else 'were'} deleted")
    return OK


def _old(store: Store, age: float, statuses: tuple[str, ...], keep: int | None) -> list[RunHead]:
    """The runs that haven't changed for so long, but for the newest of each graph that are kept."""
    import time

    ranks: Counter[str] = Counter()
    found = []
    for head in store.list(RunFilter(statuses=statuses, unclaimed=True)):
        ranks[head.graph] += 1
        if time.time() - head.updated >= age and (keep is None or ranks[head.graph] > keep):
            found.append(head)
    return found


def _deleted(store: Store, head: RunHead) -> bool:
    from holdfast.errors import Conflict, RunNotFound

    try:
        store.delete(head.run_id)
    except (Conflict, RunNotFound):
        return False  # somebody has taken it up, or was quicker
    return True


def _seconds(text: str) -> float:
    found = fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if found is None:
        raise UsageError(f"an age is a number and s, m, h, d or w, such as 24h or 7d, not {text!r}")
    return float(found[1]) * AGES[found[2]]
