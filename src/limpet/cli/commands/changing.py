"""`runs fork`, `rollback`, `cancel`, `export`, `import`, `delete`: change what runs will do, or where they are."""

from __future__ import annotations

import sys
from argparse import Namespace

from limpet.cli.exit_codes import OK, USAGE
from limpet.cli.output import Output
from limpet.cli.project import client_of, command, graph_of
from limpet.cli.targets import OnStore
from limpet.cli.values import read_pairs
from limpet.engine.operations.cancel import cancel as cancel_run
from limpet.engine.operations.export import export_run, import_run
from limpet.engine.operations.fork import fork as fork_run
from limpet.engine.operations.rollback import rollback as roll_back_run
from limpet.engine.sessions.session import CompiledGraph


def fork(given: Namespace, output: Output) -> int:
    """A new run that begins where another stood."""
    update = read_pairs(given.set, "--set")
    made = fork_run(_compiled(given), given.run, given.step, update, given.id, ())
    return _done({"run_id": made, "forked_from": given.run}, made, given, output)


def rollback(given: Namespace, output: Output) -> int:
    """Set a run back to a step."""
    roll_back_run(_compiled(given), given.run, given.step)
    return _done({"run_id": given.run, "step": given.step}, f"back at step {given.step}", given, output)


def cancel(given: Namespace, output: Output) -> int:
    """Stop a run before its next node."""
    client = client_of(given)
    cancel_run(client, given.run)
    status = client.head(given.run).status
    said = "cancelled" if status == "cancelled" else "asked to stop; its holder stops before the next node"
    return _done({"run_id": given.run, "status": status}, said, None, output)


def export(given: Namespace, output: Output) -> int:
    """Write a run to one file."""
    export_run(client_of(given), given.run, given.file)
    return _done({"run_id": given.run, "file": given.file}, f"written to {given.file}", None, output)


def import_(given: Namespace, output: Output) -> int:
    """Put an exported run into the store."""
    run_id = import_run(client_of(given, there=False), given.file, given.id)
    given.run = run_id
    return _done({"run_id": run_id}, run_id, given, output)


def delete(given: Namespace, output: Output) -> int:
    """Remove a run and its journal, if that is really meant."""
    client = client_of(given)
    head = client.head(given.run)
    if not given.yes:
        if not sys.stdin.isatty():
            output.say(f"run {given.run} would be gone for good: say --yes", "failed")
            return USAGE
        reply = input(f"Delete run {given.run} of {head.graph} ({head.status})? [y/N] ")
        if reply.strip().lower() not in ("y", "yes"):
            output.say("kept")
            return OK
    client.store.delete(given.run)
    return _done({"run_id": given.run, "deleted": True}, "deleted", None, output)


def _compiled(given: Namespace) -> CompiledGraph:
    client = client_of(given)
    return OnStore(graph_of(given, client.head(given.run).graph), client.store).compiled()


def _done(data: dict[str, object], said: str, going_on: Namespace | None, output: Output) -> int:
    if output.json:
        output.result(data)
        return OK
    output.text(said)
    if going_on is not None:
        output.hint("Go on with:", command("resume", going_on, str(data["run_id"])))
    return OK
