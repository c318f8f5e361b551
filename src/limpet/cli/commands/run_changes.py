"""`runs send`, `fork`, `rollback`, `export`, `import`: change a stored run, or copy it.

`many_runs` has what many runs take. None of these runs a node. Only `fork` and `rollback` need the code of the run's
graph.
"""

from __future__ import annotations

import os
from argparse import Namespace

from limpet import Runs
from limpet.cli.commands.run import read_changes
from limpet.cli.exit_codes import OK
from limpet.cli.next_commands import suggest_next
from limpet.cli.output import Output
from limpet.cli.project import (
    Graph,
    command_line,
    complete_run_id,
    find_run,
    find_runs,
    find_store,
    graph_of_stored,
)
from limpet.cli.values import read_value
from limpet.errors import UsageError
from limpet.journal.store import Store
from limpet.journal.waits import MESSAGE


def fork(args: Namespace, output: Output) -> int:
    """Create a run that starts where another one was."""
    store, graph = _store_and_graph(args, output, changes=False)
    update = read_changes(args, graph, output)
    runs = Runs(store, graph)
    forked = runs.fork(args.run, args.step, update, new_run_id=args.id)
    if args.begin:
        runs.retry(forked)
    return _done({"run_id": forked, "forked_from": args.run}, forked, None if args.begin else args, output)


def rollback(args: Namespace, output: Output) -> int:
    """Set a run back to a step."""
    store, graph = _store_and_graph(args, output, changes=True)
    Runs(store, graph).rollback(args.run, args.step)
    return _done({"run_id": args.run, "step": args.step}, f"rolled back to step {args.step}", args, output)


def send(args: Namespace, output: Output) -> int:
    """Send a message to a run."""
    runs = find_run(args, output, changes=True)
    is_new = runs.send(args.run, args.name, read_value(args.value), key=args.key)
    if output.json:
        output.result({"run_id": args.run, "name": args.name, "new": is_new})
        return OK
    if is_new:
        output.message(f"sent {args.name} to run {args.run}")
    else:
        output.message(f"run {args.run} has got {args.name} with the key {args.key} before: nothing was sent")
    info = runs.get(args.run).info
    awaited = [wait.name for wait in info.waits if wait.kind == MESSAGE]
    if awaited and args.name not in awaited:
        output.say(f"now the run waits for {', '.join(awaited)}: {args.name} waits until a node receives it")
    suggest_next(info, args, output)
    return OK


def export(args: Namespace, output: Output) -> int:
    """Write a run to one file."""
    find_run(args, output).export(args.run, args.file)
    return _done({"run_id": args.run, "file": args.file}, f"written to {args.file}", None, output)


def import_(args: Namespace, output: Output) -> int:
    """Put an exported run into the store."""
    if not os.path.exists(args.file):  # before a store is made for it
        raise UsageError(f"there is no file {args.file!r} to import")
    runs = find_runs(args, must_exist=False)
    run_id = runs.import_(args.file, args.id)
    if output.json:
        output.result({"run_id": run_id})
        return OK
    output.text(run_id)
    suggest_next(runs.get(run_id).info, args, output)
    return OK


def _store_and_graph(args: Namespace, output: Output, changes: bool) -> tuple[Store, Graph]:
    """The store, and the graph of the run that the command is about."""
    store = find_store(args, must_exist=True)
    complete_run_id(args, store, output, changes)
    return store, graph_of_stored(args, store)


def _done(data: dict[str, object], text: str, resumable: Namespace | None, output: Output) -> int:
    if output.json:
        output.result(data)
        return OK
    output.message(text)
    if resumable is not None:
        run_id = str(data["run_id"])
        output.hint("Resume it with:", command_line("resume", resumable, run_id))
        output.hint("Or hand it to the workers with:", command_line("runs retry", resumable, run_id))
    return OK
