"""`runs retry`, `cancel`, `delete`: change one run, several, or all that match filters. None of these runs a node."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from limpet import Outcome, Outcomes, Runs
from limpet.cli.commands.run import read_changes
from limpet.cli.exit_codes import FAILED, OK
from limpet.cli.next_commands import worker_command
from limpet.cli.output import Output
from limpet.cli.project import find_store, graph_named, is_place, load_target
from limpet.cli.run_ids import whole_id
from limpet.errors import RunNotFound, UsageError
from limpet.journal.store import CANCELLED, Store

MAX_ROWS = 50
"""Outcomes up to which all are listed; of more, only those that aren't done."""

FILTERS = (
    "status",
    "tag",
    "since",
    "before",
    "created_since",
    "created_before",
    "error",
    "node",
    "parent",
    "queue",
    "unserved",
    "text",
)
"""The options that are filters of the same name. `--of` is the name of the graph."""


class Verb(NamedTuple):
    """A change of runs, in the words that commands use."""

    name: str
    past: str
    always_asks: bool = False


def retry(args: Namespace, output: Output) -> int:
    """Hand runs back to the workers, from where they stopped."""
    _read_graph(args)
    store = find_store(args, must_exist=True)
    ids = _whole_ids(args, store, output)
    runs = Runs(store)
    change: Callable[..., Outcomes] = partial(runs.retry, deadline=args.deadline)
    if args.set:
        graph = graph_named(args, _one_graph(args, ids, runs))
        update = read_changes(args, graph, output)
        change = partial(Runs(store, graph).retry, update=update, deadline=args.deadline)
    if _is_one(args, ids):
        change(ids[0])
        return _one_done(
            {"run_id": ids[0], "status": runs.get(ids[0]).shown_status}, "handed back", args, output
        )
    return _change(Verb("retry", "retried"), change, ids, args, output)


def cancel(args: Namespace, output: Output) -> int:
    """Stop runs before their next nodes."""
    _read_graph(args)
    store = find_store(args, must_exist=True)
    ids = _whole_ids(args, store, output)
    runs = Runs(store)
    if not _is_one(args, ids):
        return _change(Verb("cancel", "cancelled"), runs.cancel, ids, args, output)
    (outcome,) = runs.cancel(ids[0])
    status = runs.get(ids[0]).status
    text = outcome.reason or "cancelled"
    if status != CANCELLED:
        text = "cancellation requested; the process that holds the run stops before the next node"
    return _one_done({"run_id": ids[0], "status": status}, text, None, output)


def delete(args: Namespace, output: Output) -> int:
    """Delete runs and their journals, after a confirmation."""
    _read_graph(args)
    store = find_store(args, must_exist=True)
    ids = _whole_ids(args, store, output)
    runs = Runs(store)
    if not _is_one(args, ids):
        return _change(Verb("delete", "deleted", always_asks=True), runs.delete, ids, args, output)
    info = runs.get(ids[0]).info
    question = f"Delete run {info.run_id} of {info.graph} ({info.shown_status})?"
    if not args.yes and not output.confirm(question, f"deletes run {info.run_id} permanently"):
        output.say("not deleted")
        return OK
    runs.delete(ids[0])
    return _one_done({"run_id": ids[0], "deleted": True}, "deleted", None, output)


def _read_graph(args: Namespace) -> None:
    """Have `--graph` choose runs, unless some are named: then it only says where code is. Raises `UsageError`."""
    if not args.runs:
        read_graph_filter(args)
        return
    for given in args.graph or ():
        if not is_place(given):
            raise UsageError(f"--graph {given!r} chooses runs, and some are named: give either")


def read_graph_filter(args: Namespace) -> None:
    """Have `--graph` mean the runs of one graph, as `--of` does: by its name, or by the place of its code.

    Else `runs delete --graph orders` would delete the runs of all graphs. Raises `UsageError` if several are named.
    """
    names = [args.of] if args.of else []
    places = []
    for given in args.graph or ():
        if is_place(given):
            places.append(given)
            names.append(load_target(given).name)
        else:
            names.append(given)
    if len(set(names)) > 1:
        listed = ", ".join(map(repr, dict.fromkeys(names)))
        raise UsageError(f"name one graph whose runs are meant, not {listed}")
    args.graph = places or None
    args.of = names[0] if names else args.of


def filters_of(args: Namespace) -> dict[str, Any]:
    """The filters among the options of a command line."""
    given = {name: getattr(args, name) for name in FILTERS}
    given["graph"] = args.of
    # Not those that are empty: `--error "$TYPE"` without a TYPE doesn't mean all runs.
    return {name: value for name, value in given.items() if value is not None}


def filter_words(args: Namespace) -> list[str]:
    """The filters as they were typed, for a command to type next."""
    words = []
    for name in ("of", *FILTERS):
        given = getattr(args, name) or ()
        option = f"--{name.replace('_', '-')}"
        if given is True:
            words.append(option)
            continue
        for value in (given,) if isinstance(given, str) else given:
            words += [option, value]
    return words


def _whole_ids(args: Namespace, store: Store, output: Output) -> list[str]:
    """The ids of the runs that were typed. Of several, those that don't exist stay as they are.

    That of a single one is kept for the command that an error names.
    """
    found = []
    for typed in args.runs:
        try:
            run_id = whole_id(store, typed, any_prefix=output.interactive)
        except RunNotFound:
            if len(args.runs) == 1:
                raise
            run_id = typed
        if run_id != typed:
            output.say(f"run {run_id}")
        found.append(run_id)
    if len(found) == 1:
        args.run = found[0]
    return found


def _one_graph(args: Namespace, ids: list[str], runs: Runs) -> str:
    """The name of the graph whose states `--set` changes. Raises `UsageError` unless it is clear which one."""
    if not ids and args.of is None:
        raise UsageError("--set changes states of one graph: give the name of it with --of")
    names = {args.of} if args.of else set()
    for run_id in ids:
        with suppress(RunNotFound):  # that is its outcome
            names.add(runs.get(run_id).graph)
    if not names:
        raise RunNotFound(ids[0])
    if len(names) > 1:
        listed = ", ".join(map(repr, sorted(names)))
        raise UsageError(
            f"--set changes states of one graph, and these runs are of {listed}: name fewer runs"
        )
    return str(names.pop())


def _is_one(args: Namespace, ids: list[str]) -> bool:
    return len(ids) == 1 and not args.dry_run and not filters_of(args) and not args.all


def _change(
    verb: Verb, change: Callable[..., Outcomes], ids: list[str], args: Namespace, output: Output
) -> int:
    filters = filters_of(args)
    if not ids and not filters and not args.all:
        raise UsageError(
            f"which runs? Name them, give a filter such as --status failed, or {verb.name} --all of them"
        )
    change = partial(change, ids or None, all_runs=args.all, limit=args.limit, **filters)
    asks = verb.always_asks or not ids
    if asks and not args.yes and not args.dry_run:
        number = change(dry_run=True, progress=_Progress("looking at", output)).planned
        output.progress("")
        runs = "1 run" if number == 1 else f"{number:,} runs"
        what = f"would {verb.name} {runs}"
        if number and not output.confirm(f"{verb.name.capitalize()} {runs}?", what):
            output.say(f"nothing {verb.past}")
            return OK
    progress = _Progress(f"would {verb.name}:" if args.dry_run else f"{verb.past}:", output)
    outcomes = change(dry_run=args.dry_run, progress=progress)
    output.progress("")
    _show(verb, outcomes, args, output)
    return FAILED if outcomes.failed else OK


class _Progress:
    """How many runs were dealt with, in a line that changes now and then."""

    def __init__(self, what: str, output: Output) -> None:
        self._what = what
        self._output = output
        self._number = 0

    def __call__(self, outcome: Outcome) -> None:
        self._number += 1
        if self._number % 10 == 1:
            self._output.progress(f"{self._what} {self._number:,} {outcome.run_id}")


def _show(verb: Verb, outcomes: Outcomes, args: Namespace, output: Output) -> None:
    numbers = {name: getattr(outcomes, name) for name in ("done", "planned", "skipped", "failed")}
    if output.json:
        output.result({**numbers, "runs": [_facts(each) for each in outcomes]})
        return
    listed = outcomes
    if len(outcomes) > MAX_ROWS:
        listed = Outcomes(each for each in outcomes if each.result in ("skipped", "failed"))
    if listed:
        rows = [
            (each.run_id, each.graph, each.status, _outcome(verb, each), each.reason)
            for each in listed[:MAX_ROWS]
        ]
        status = "status" if args.dry_run else "was"  # an outcome has the status before
        output.table(("run", "graph", status, "outcome", ""), rows, left_out_first=("graph",))
    if len(listed) > MAX_ROWS:
        output.say(f"… and {len(listed) - MAX_ROWS:,} more; --json lists all")
    done = f"{numbers['done']:,} {verb.past}"
    if args.dry_run:
        done = f"{numbers['planned']:,} would be {verb.past}; nothing was changed"
    more = [f"{numbers[name]:,} {name}" for name in ("skipped", "failed") if numbers[name]]
    output.message(", ".join([done, *more]) if outcomes else "no runs match")
    if verb.name == "retry" and outcomes.done:
        output.hint(*worker_command("Workers continue them. If none is running, start one:", args))


def _outcome(verb: Verb, outcome: Outcome) -> str:
    words = {"done": verb.past, "planned": f"would be {verb.past}"}
    return words.get(outcome.result, outcome.result)


def _facts(outcome: Outcome) -> dict[str, Any]:
    """An outcome as data for a program, with the stable code of the error."""
    return {**outcome._asdict(), "error": getattr(outcome.error, "code", None)}


def _one_done(data: dict[str, object], text: str, continued: Namespace | None, output: Output) -> int:
    if output.json:
        output.result(data)
        return OK
    output.message(text)
    if continued is not None:
        output.hint(*worker_command("A worker continues it. If none is running, start one:", continued))
    return OK
