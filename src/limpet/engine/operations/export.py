"""Carry runs from one store to another by way of a file. `journal/export.py` has the file's format."""

from __future__ import annotations

import os
from pathlib import Path
from time import time

from limpet.engine.leases.inbox_checks import read_inbox
from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.taking_in import sent_letter
from limpet.engine.sessions.compiled_graph import check_own
from limpet.engine.sessions.start import check_id
from limpet.errors import DamagedRecord
from limpet.graphs.names import checked_name
from limpet.graphs.plan import Plan
from limpet.graphs.workflow.stored_shape import check_workflows
from limpet.journal.export import ExportedRun, read_new_run
from limpet.journal.inbox import LETTERS
from limpet.journal.reader import ViewedTail, read_progress
from limpet.journal.records import move_record
from limpet.journal.store import RUNNING, Labels, Tail
from limpet.journal.verify import whole_tail
from limpet.journal.waits import DELIVER, addressed
from limpet.journal.writer import summary
from limpet.stores.atomic_files import explain, replace_file


def export_run(client: LeaseClient, run_id: str, path: str | os.PathLike[str]) -> None:
    """Write a run to a file, whole or not at all. Raises `Conflict` while another process advances the run."""
    target = Path(path)
    data = exported_run(client, run_id).to_bytes()
    try:
        replace_file(target, data)
    except OSError as error:
        raise explain(error, target) from error


@releases_if_interrupted
def exported_run(client: LeaseClient, run_id: str) -> ExportedRun:
    """A run as a file has it. Raises `Conflict` while another process advances the run."""
    tail = _read_at_rest(client, run_id)
    exported = ExportedRun.from_tail(tail)
    if tail.head.posted > tail.head.taken and exported.records:
        exported = exported.with_record(_taken_in(client, exported))
    return exported


def _taken_in(client: LeaseClient, exported: ExportedRun) -> bytes:
    """A record of the messages that wait in the run's inbox, as if it had taken them in; it stays as it is.

    Answers and requests to cancel are for the run in this store, and aren't exported.
    """
    progress = read_progress(ViewedTail(exported.head(), 1, exported.records))
    posts = read_inbox(client.store, exported.run_id, known_only=True)
    letters = [sent_letter(post) for post in posts if post.kind in LETTERS]
    return move_record(progress, {DELIVER: addressed(progress, letters)}, time())


def import_run(
    client: LeaseClient, path: str | os.PathLike[str], run_id: str | None, plan: Plan | None = None
) -> str:
    """Create the run that a file holds, with all its records at once or not at all; return its id.

    Raises `WrongGraph` if a plan is given and the run isn't of its graph, `StoreError` for a file that isn't an
    exported run, and `DamagedRecord` for one with a record that couldn't be read later.
    """
    source = Path(path)
    try:
        data = source.read_bytes()
    except OSError as error:
        raise explain(error, source, "read") from error
    exported = ExportedRun.from_bytes(data, str(source))
    if plan is not None:
        check_own(plan, exported.run_id, exported.graph)
    return create_exported(client, exported, exported.run_id if run_id is None else run_id)


def create_exported(client: LeaseClient, exported: ExportedRun, run_id: str) -> str:
    """Create an exported run under an id, which is returned. Raises as `import_run` does."""
    checked_name("queue", exported.queue)
    run = exported.to_new_run(check_id(run_id))
    progress = read_new_run(run)
    if progress is not None:
        check_workflows(progress)
        labels = Labels(plan=progress.fingerprint)
        if progress.status != RUNNING or progress.all_waits():
            labels = summary(progress).labels
        run = run._replace(labels=labels)
    client.store.create(run)
    return run_id


def _read_at_rest(client: LeaseClient, run_id: str) -> Tail:
    """All records of a run, read while no process advances it: none can, if its head is damaged."""
    try:
        status = client.head(run_id).status
    except DamagedRecord as damage:
        if damage.sequence:
            raise
        return whole_tail(client.store, run_id)
    if status != RUNNING:
        tail = client.store.read(run_id, first=1)
        # It may have been resumed between the two reads. Then it is read again, under a lease.
        if tail.head.status != RUNNING:
            return tail
    with client.holding(run_id) as held:
        return held.read(first=1)
