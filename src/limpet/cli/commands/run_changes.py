"""`runs fork`, `rollback`, `cancel`, `export`, `import`, `delete`: change stored runs, or copy them.

None of these runs a node. Only `fork` and `rollback` need the code of the run's graph.
"""

from __future__ import annotations

from argparse import Namespace

from limpet import Runs
from limpet.cli.commands.run import read_changes, suggest_next
from limpet.cli.exit_codes import OK
from limpet.cli.output import Output
from limpet.cli.project import command_line, find_runs, find_store, graph_named
from limpet.journal.store import CANCELLED


def fork(args: Namespace, output: Output) -> int:
    """Create a run that starts where another one was."""
    store = find_store(args, must_exist=True)
    graph = graph_named(args, Runs(store).get(args.run).graph)
    update = read_changes(args, graph, output)
    forked = Runs(store, graph).fork(args.run, args.step, update, new_run_id=args.id)
    return _done({"run_id": forked, "forked_from": args.run}, forked, args, output)


def rollback(args: Namespace, output: Output) -> int:
    """Set a run back to a step."""
    _runs_with_graph(args).rollback(args.run, args.step)
    return _done({"run_id": args.run, "step": args.step}, f"rolled back to step {args.step}", args, output)


def cancel(args: Namespace, output: Output) -> int:
    """Stop a run before its next node."""
    runs = find_runs(args)
    runs.cancel(args.run)
    status = runs.get(args.run).status
    text = "cancelled"
    if status != CANCELLED:
        text = "cancellation requested; the process that holds the run stops before the next node"
    return _done({"run_id": args.run, "status": status}, text, None, output)


def export(args: Namespace, output: Output) -> int:
    """Write a run to one file."""
    find_runs(args).export(args.run, args.file)
    return _done({"run_id": args.run, "file": args.file}, f"written to {args.file}", None, output)


def import_(args: Namespace, output: Output) -> int:
    """Put an exported run into the store."""
    runs = find_runs(args, must_exist=False)
    run_id = runs.import_(args.file, args.id)
    if output.json:
        output.result({"run_id": run_id})
        return OK
    output.text(run_id)
    suggest_next(runs.get(run_id).info, args, output)
    return OK


def delete(args: Namespace, output: Output) -> int:
    """Delete a run and its journal, after a confirmation."""
    runs = find_runs(args)
    info = runs.get(args.run).info
    question = f"Delete run {info.run_id} of {info.graph} ({info.status})?"
    if not args.yes and not output.confirm(question, f"deletes run {info.run_id} permanently"):
        output.say("not deleted")
        return OK
    runs.delete(args.run)
    return _done({"run_id": args.run, "deleted": True}, "deleted", None, output)


def _runs_with_graph(args: Namespace) -> Runs:
    """The runs, with the graph of the one that the command is about."""
    store = find_store(args, must_exist=True)
    return Runs(store, graph_named(args, Runs(store).get(args.run).graph))


def _done(data: dict[str, object], text: str, resumable: Namespace | None, output: Output) -> int:
    if output.json:
        output.result(data)
        return OK
    output.message(text)
    if resumable is not None:
        output.hint("Resume it with:", command_line("resume", resumable, str(data["run_id"])))
    return OK
