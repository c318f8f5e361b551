"""What a node has saved in the middle of its call: the result of a `once()`, and a post that it takes.

Both are called with the journal lock, by the thread of the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import TYPE_CHECKING, Any

from limpet.engine.leases.inbox_checks import arrived_posts, read_inbox
from limpet.engine.loop.driver_commands import PostsArrived
from limpet.engine.loop.taking_in import take_in
from limpet.engine.node_context.call_scope import Scope
from limpet.engine.node_context.questions import CallAbandoned, PostAwaited
from limpet.errors import StoreUnavailable
from limpet.journal.inbox import Posted
from limpet.journal.waits import RECEIVE, PostWait

if TYPE_CHECKING:
    from limpet.engine.sessions.session import Session


def keep_result(session: Session, scope: Scope, key: str, value: Any) -> None:
    """Save a result of `once`. Raises why it can't be saved."""
    assert session.writer is not None
    session.writer.add_memo(session.progress, scope.path, key, value, time())
    _save(session)


def take_letter(session: Session, scope: Scope, wait: PostWait) -> None:
    """Save that a node receives the oldest post that it can wait for, or that none came until its deadline.

    Raises `PostAwaited` if none has come and there is still time, and why it can't be saved.
    """
    assert session.writer is not None
    root = session.progress
    is_over = wait.deadline is not None and wait.deadline <= scope.services.store_clock()
    if wait.box not in root.mailbox:
        _look_into_inbox(session, is_last=is_over)
    has_none = wait.box not in root.mailbox
    if has_none and not is_over:
        raise PostAwaited(wait)
    session.writer.add_move(root, {RECEIVE: [list(scope.path), wait.box, wait.key, has_none]}, time())
    _save(session)


def _look_into_inbox(session: Session, *, is_last: bool) -> None:
    """Take in what was posted to the run since its last commit, so that a node needn't be called again for it.

    If the store can't be reached, the next commit finds out, and waits for the store if it is to. But the last look
    says that no message has come. So it waits itself, or raises why the store can't be reached.
    """
    context = session.lifecycle.context
    store = session.compiled.need_client("receive").store
    posts: Sequence[Posted] = ()
    try:
        head = store.head(session.id)
        if head.posted > head.taken:
            posts = read_inbox(store, session.id)
    except StoreUnavailable as problem:
        if is_last and not context.tolerates(problem):
            posts = _posts_when_reachable(session)
    if not posts:
        return
    take_in(context, posts)
    if context.cancel_requested:
        session.stop.ask()
        raise CallAbandoned
    if context.has_woken:
        # Branches that wait can continue. The loop may be waiting for nodes, and has to know.
        session.stop.notice_posts()


def _posts_when_reachable(session: Session) -> Sequence[Posted]:
    """What waits for the run, as soon as the store can be reached, if `on_save_error` says to wait for it."""
    waits = session.compiled.on_save_error == "wait"
    store = session.compiled.need_client("receive").store
    found = arrived_posts(store, session.id, lambda: waits and not session.stop.asked)
    if isinstance(found, PostsArrived):
        return found.posts
    if session.stop.asked:
        raise CallAbandoned
    raise found


def _save(session: Session) -> None:
    """Commit what is recorded. Raises why that was refused, unless the run tolerates it."""
    assert session.writer is not None
    refusal = session.write(session.writer.commit(ignores_posts=True))
    context = session.lifecycle.context
    if refusal is not None and not context.tolerates(refusal):
        if session.stop.asked and isinstance(refusal, StoreUnavailable):
            # The run waited for its store until it was asked to stop. That isn't a failure of the node.
            raise CallAbandoned
        raise refusal
    context.save_error = refusal
