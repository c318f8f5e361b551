"""`store info`, `migrate`, `verify`, `flatten`, `prune`: look after a store."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import NamedTuple

from limpet import RunInfo, Runs
from limpet.cli.exit_codes import FAILED, OK
from limpet.cli.output import Output
from limpet.cli.project import find_run, find_runs, find_store
from limpet.defaults import RETENTION_HOURS
from limpet.durations import seconds_in_text
from limpet.engine.leases.limits.document import read_limit
from limpet.engine.operations.run_info import LISTED_STATUSES
from limpet.engine.schedules.schedule import read_schedule
from limpet.errors import DamagedDocument, KeyMissing, RunNotFound, UnsupportedFormat, UsageError
from limpet.graphs.names import LIMITS, SCHEDULES
from limpet.journal.optional_calls import FindsDamagedDocuments, provides
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import DAMAGED, ENDED, STATUSES, Store
from limpet.stores.migrations import sql_of
from limpet.stores.retention import Expired, Retention, delete_expired, find_expired

MAX_LISTED = 50
"""How many runs are listed before they are deleted."""

DEFAULT_AGE = f"{RETENTION_HOURS:g}h"


def info(args: Namespace, output: Output) -> int:
    """What a store is, what it can do, and how many runs it has."""
    store = find_store(args, must_exist=True)
    heads = store.list(RunFilter())
    by_status = Counter(head.status for head in heads)
    by_graph = Counter(head.graph for head in heads)
    abilities = store.abilities._asdict()
    if output.json:
        counts = {"runs": len(heads), "by_status": by_status, "by_graph": by_graph}
        output.result({"store": str(store), **abilities, **counts})
        return OK
    output.facts({"store": str(store), **{name: str(value).lower() for name, value in abilities.items()}})
    output.table(
        ("status", "runs"),
        [(status, str(by_status[status])) for status in LISTED_STATUSES if by_status[status]],
        "no runs",
    )
    if by_graph:
        output.table(("graph", "runs"), [(name, str(count)) for name, count in by_graph.most_common()])
    return OK


def migrate(args: Namespace, output: Output) -> int:
    """Bring the schema up to date, which opening a store does; or print the SQL of all migrations."""
    if args.show:
        kind = (args.store or "sqlite").partition(":")[0].partition("+")[0].replace("postgresql", "postgres")
        if kind not in ("sqlite", "postgres"):
            raise UsageError(f"a {kind} store has no SQL schema; only sqlite and postgresql have one")
        if output.json:
            output.result({"sql": sql_of(kind)})
        else:
            output.text(sql_of(kind))
        return OK
    store = find_store(args)
    # The first call of a store opens it, and opening migrates.
    store.list(RunFilter(limit=1))
    if output.json:
        output.result({"store": str(store), "current": True})
    else:
        output.message(f"{store} is up to date")
    return OK


def verify(args: Namespace, output: Output) -> int:
    """Look for damage: to one run; or to all, to limits and to schedules. The exit code is 1 if there is any."""
    damaged: list[DamagedDocument] = []
    if args.run:
        runs = find_run(args, output)
        reports = [_checked(runs, args.run, None)]
    else:
        reports = []
        store = find_store(args, must_exist=True)
        runs = Runs(store)
        listed = runs.list()
        for number, info in enumerate(listed, 1):
            output.progress(f"{number} of {len(listed)}")
            reports.append(_checked(runs, info.run_id, info))
        damaged = _damaged_documents(store)
    output.progress("")
    found = [each for each in reports if each is not None]
    if output.json:
        output.result(
            [
                {
                    "run_id": each.run_id,
                    "ok": each.verdict == "ok",
                    "report": each.report,
                    "remarks": list(each.remarks),
                }
                for each in found
            ]
            + [
                {
                    "run_id": None,
                    "document": damage.name,
                    "ok": False,
                    "report": damage.message,
                    "remarks": [],
                }
                for damage in damaged
            ]
        )
    elif args.run:
        for each in found:
            output.message(each.report)
    else:
        _list_checked(found, damaged, output)
    is_sound = all(each.verdict == "ok" for each in found) and not damaged
    return OK if is_sound else FAILED


class _Checked(NamedTuple):
    """A run that was verified: "ok", "damaged" or "key missing", and the report."""

    run_id: str
    verdict: str
    report: str
    remarks: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """What a table shows: the whole report but its heading, unless there is nothing but remarks."""
        if self.verdict == "ok":
            return "; ".join(self.remarks)
        lines = [line.strip() for line in self.report.splitlines()]
        return "; ".join(lines[1:] or lines)


def _list_checked(found: list[_Checked], damaged: list[DamagedDocument], output: Output) -> None:
    output.table(
        ("run", "status", "what"),
        [(each.run_id, each.verdict, each.shown) for each in found],
        "no runs",
    )
    if damaged:
        rows = [(damage.name, DAMAGED, damage.reason) for damage in damaged]
        output.table(("document", "status", "what"), rows)


def _checked(runs: Runs, run_id: str, listed: RunInfo | None) -> _Checked | None:
    """The outcome for one run; None for a `listed` one that was deleted meanwhile."""
    try:
        report = runs.verify(run_id)
    except KeyMissing as problem:
        return _Checked(run_id, "key missing", problem.message)
    except RunNotFound:
        if listed is None:
            raise
        # The id of a run whose head file is damaged can be lost, too.
        return _Checked(run_id, DAMAGED, listed.problem or "") if listed.status == DAMAGED else None
    return _Checked(run_id, "ok" if report.ok else DAMAGED, str(report), report.remarks)


def _damaged_documents(store: Store) -> list[DamagedDocument]:
    """The documents that the store can't read, and limits and schedules that it can, but that make no sense."""
    if not store.abilities.takes_part:
        return []
    found: list[DamagedDocument] = []
    if provides(store, FindsDamagedDocuments):
        found += store.damaged_documents()
    for document in (*store.list_documents(LIMITS), *store.list_documents(SCHEDULES)):
        try:
            if document.name.startswith(LIMITS):
                read_limit(document.name.removeprefix(LIMITS), document.body, document.version)
            else:
                read_schedule(document)
        except DamagedDocument as damage:
            found.append(damage)
        except UnsupportedFormat:
            continue  # it is intact, and of a newer version
    return sorted(found, key=lambda damage: damage.name)


def flatten(args: Namespace, output: Output) -> int:
    """Write the runs as plain tables, or add what is new to such a file."""
    written = find_runs(args).flatten(args.file)
    if output.json:
        output.result({"file": args.file, **written._asdict()})
    else:
        added = f"{written.steps} steps and {written.values} values added"
        output.message(f"{args.file}: {written.runs} runs new or changed, {added}")
    return OK


def prune(args: Namespace, output: Output) -> int:
    """Delete old runs, or list which would be deleted."""
    statuses = tuple(args.status or ENDED)
    unknown = [status for status in statuses if status not in STATUSES]
    if unknown:
        raise UsageError(f"--status must be one of {', '.join(STATUSES)}, not {unknown[0]!r}")
    older = args.older
    if older is None and args.newest is None:
        older = DEFAULT_AGE
    if isinstance(older, str) and seconds_in_text(older) is None:
        raise UsageError(f"--older takes a length of time such as 90s, 30m, 12h or 7d, not {older!r}")
    policy = Retention(**dict.fromkeys(statuses, older), newest=args.newest)
    store = find_store(args, must_exist=True)
    going = find_expired(store, policy)
    if going and not args.dry_run:
        if not output.json:
            _list_expired(going[:MAX_LISTED], output)
        if len(going) > MAX_LISTED:
            output.say(f"and {len(going) - MAX_LISTED} more; --dry-run lists them all")
        count = _counted(len(going))
        if not args.yes and not output.confirm(f"Delete {count}?", f"deletes {count} permanently"):
            output.say("not deleted")
            return OK
        going = delete_expired(store, going)
    if output.json:
        output.result({"deleted": not args.dry_run, "runs": [each._asdict() for each in going]})
        return OK
    if args.dry_run or not going:
        _list_expired(going, output)
    if going:
        output.say(f"{'would delete' if args.dry_run else 'deleted'} {_counted(len(going))}")
    return OK


def _list_expired(going: list[Expired], output: Output) -> None:
    rows = [(each.run_id, each.graph, each.status, output.time(each.updated), each.reason) for each in going]
    columns = ("run", "graph", "status", output.time_heading("updated"), "why")
    output.table(columns, rows, "no runs to delete", left_out_first=("graph",))


def _counted(runs: int) -> str:
    return f"{runs} run{'s' if runs != 1 else ''}"
