"""Answer what a paused run asks, and leave it to a supervisor to resume the run."""

from __future__ import annotations

from time import time

from limpet.durations import patience_of
from limpet.engine.leases.lease_client import LeaseClient, nudge_supervisors
from limpet.engine.loop.run_lifecycle import ANSWER, next_status
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.checkpoint_refs import asked_at, run_and_point
from limpet.engine.sessions.compatibility import check_point
from limpet.engine.sessions.resume import refuse_completed
from limpet.errors import UsageError
from limpet.journal.encoding.codec import encode
from limpet.journal.reader import read_progress_and_weight
from limpet.journal.store import OnSignal
from limpet.journal.waits import EXPIRE, RESUME
from limpet.journal.writer import JournalWriter, summary


def answer(client: LeaseClient, id: str, given: ResumeInput, wait: float | None = None) -> None:
    """Store answers to a run's questions; a supervisor of the store resumes the run. Needs no plan.

    `id` is that of the run, or of its checkpoint: then only what was asked there can be answered. Raises
    `RunNotFound`, `Conflict`, `AnswerRefused`, `AlreadyAnswered`, `UsageError` if the run asks nothing,
    `DamagedRecord`.
    """
    if wait is not None:
        wait = patience_of(wait, "wait")
    run_id, point = run_and_point(client, id)
    with client.holding(run_id, wait) as held:
        tail = held.read()
        refuse_completed(tail.head)
        progress, weight = read_progress_and_weight(tail)
        check_point(progress, point)
        given = given.about(asked_at(client, progress, point))
        if not (progress.open_questions() or given.asked):
            nothing_asked = UsageError(f"run {run_id!r} has no open question")
            raise nothing_asked.with_advice(f"to resume it, call resume({run_id!r})", "resume")
        answers = given.answers_to(progress, held.now())
        overdue = progress.expired_questions(held.now())
        encode(answers, "answers")
        progress.count_crashes(held.crashes)
        writer = JournalWriter(run_id, held.fence, tail.head.sequence, weight)
        writer.add_move(progress, {EXPIRE: overdue, RESUME: answers}, time())
        # Due at once, or when the next timer is: that is when a supervisor finds the run.
        due = progress.due() or 0.0
        status = next_status(tail.head.status, ANSWER)
        held.commit(writer.commit(status, summary(progress), on_signal=OnSignal.CLEAR, due=due))
    nudge_supervisors(client.store)
