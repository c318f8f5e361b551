"""Fork a run: a new run that starts from a checkpoint of another one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from limpet.engine.leases.inbox_checks import read_inbox
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.next_node import update_for_branch
from limpet.engine.loop.run_lifecycle import FORK, NEW, next_status
from limpet.engine.loop.taking_in import sent_letter
from limpet.engine.node_context.questions import check_update
from limpet.engine.operations.stored_state import progress_of
from limpet.engine.sessions.compatibility import check_fits
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.resume import merge_update
from limpet.engine.sessions.start import choose_id, new_run, queue_for, run_metadata
from limpet.errors import DamagedRecord
from limpet.journal.inbox import LETTERS, Posted
from limpet.journal.progress import Progress
from limpet.journal.reader import letters_after
from limpet.journal.store import RUNNING
from limpet.journal.verify import salvaged_tail
from limpet.journal.waits import AFTER, BEFORE, Letter, give_back


def fork(
    compiled: CompiledGraph,
    run_id: str,
    step: int | None,
    update: Mapping[str, Any] | None,
    new_run_id: str | None,
    tags: tuple[str, ...],
) -> str:
    """Create a run that starts where another one was after `step`, with `update` merged in; return its id.

    The new run's journal begins with the whole checkpoint, so the new run needs nothing of the old one. Messages that
    were sent to the old run, and not received by then, wait for the new one as well. It has no deadline: that of the
    old one is a promise about the old one. It is in the same queue.
    """
    check_update(update)
    client = compiled.need_client("fork")
    progress = progress_of(client, run_id, step)
    give_back(progress, _later_letters(client, run_id, progress, step))
    check_fits(compiled.plan, progress)
    progress.run_id = choose_id(new_run_id)
    progress.parent = f"{run_id}@{progress.step}"
    progress.meta = run_metadata(compiled.for_run(progress.meta.get("settings")), tags)
    progress.crashes = 0
    progress.deadline = None
    progress.child_of = None
    progress.status = next_status(NEW, FORK)
    progress.reason = f"forked from {progress.parent}"
    forget_stop(progress)
    if update and compiled.plan.layers is not None:
        update = compiled.plan.layers.check_update(update)
    if update:
        merge_update(compiled.plan, update, progress)
        for path, branch in list(progress.branches_under_way()):
            merge_update(*update_for_branch(compiled.plan, progress, path, update), branch)
    client.store.create(new_run(progress, tags, None, client.ttl, queue=_queue_of(compiled, run_id)))
    return progress.run_id


def _queue_of(compiled: CompiledGraph, run_id: str) -> str:
    """The queue of a run; that of its graph, if the run's head is damaged."""
    with suppress(DamagedRecord):
        return compiled.need_client("fork").head(run_id).queue
    return queue_for(compiled, None)


def _later_letters(client: LeaseClient, run_id: str, progress: Progress, step: int | None) -> list[Letter]:
    """The messages that a run has taken in after a step, if one is named, and those that wait in its inbox."""
    found = []
    if step is not None:
        found = letters_after(salvaged_tail(client.store, run_id), step)
    if client.store.abilities.takes_part:
        number = max([progress.letters, *(letter.number for letter in found)])
        posts: list[Posted] = []
        with suppress(DamagedRecord):  # of the head: what the journal has can be forked all the same
            posts = read_inbox(client.store, run_id, known_only=True)
        for post in posts:
            if post.kind in LETTERS:
                number += 1
                letter = sent_letter(post)
                found.append(Letter(letter.box, number, letter.value))
    return found


def forget_stop(progress: Progress) -> None:
    """Start the position again: answers and approvals count only for the run that asked for them."""
    if progress.phase != AFTER:
        progress.phase = BEFORE
    progress.questions = []
    progress.answers = {}
    progress.asked = {}
    progress.memos = {}
    progress.attempts = 0
    progress.error = None
    progress.cleared = False
    progress.timers = {}
    progress.hidden = []
    if progress.section is None:
        return
    for branch in progress.section.children.values():
        if not branch.done:
            branch.status = RUNNING
            branch.reason = None
            forget_stop(branch)
