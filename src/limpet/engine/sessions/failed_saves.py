"""`FailedSaves`: what a run does when it can't be saved, as `on_save_error` says: fail, continue, or wait."""

from __future__ import annotations

from time import sleep, time
from typing import TYPE_CHECKING

from limpet.engine.leases.inbox_checks import arrived_posts
from limpet.errors import Conflict, StoreUnavailable, TooLarge
from limpet.journal.store import RUNNING, Commit, PostsWaiting
from limpet.journal.writer import summary

if TYPE_CHECKING:
    from limpet.engine.sessions.session import Session

FIRST_SAVE_RETRY = 0.05
"""Seconds until a save is tried again the first time, if the run waits for its store."""

LONGEST_SAVE_RETRY = 1.0
"""Seconds, at most, between two tries to save."""

MAX_EAGER_RETRIES = 16
"""Failed saves in a row after which a run that continues unsaved no longer tries with every step."""


class FailedSaves:
    """The saves of one session that failed. `count` is how many did since the last one that succeeded."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.count = 0
        self._last = 0.0

    def skip(self, commit: Commit) -> Exception | None:
        """The last error, if a run that continues unsaved should not try to save now.

        With every try a step waits for a store that can't be reached. A commit that stops the run is always tried.
        """
        if self.count <= MAX_EAGER_RETRIES or commit.status is not None:
            return None
        if time() - self._last > LONGEST_SAVE_RETRY:
            return None
        return self._session.lifecycle.context.save_error

    def handle(self, commit: Commit, refusal: Exception) -> Exception | None:
        """Handle a refused commit as `on_save_error` says. Returns the refusal that remains, or None."""
        session = self._session
        remaining: Exception | None = refusal
        if session.compiled.on_save_error == "wait":
            remaining = self._wait_for_store(commit, refusal)
        if isinstance(remaining, PostsWaiting):
            session.stop.has_posts = False
            waits = session.compiled.on_save_error == "wait"
            store = session.compiled.need_client("save").store
            return arrived_posts(store, session.id, lambda: waits and not session.stop.asked)
        if remaining is not None and session.compiled.on_save_error == "continue":
            return self._continue_unsaved(commit, remaining)
        return remaining

    def _wait_for_store(self, commit: Commit, refusal: Exception | None) -> Exception | None:
        """Try a save again until the store can be reached, or the run is asked to stop."""
        session = self._session
        client = session.compiled.need_client("save")
        pause = FIRST_SAVE_RETRY
        while _may_succeed_later(refusal) and not session.stop.asked:
            if not self.count:
                from logging import getLogger

                log = getLogger("limpet.run")
                log.warning("run %s waits for its store: %s", session.id, refusal)
            self.count += 1
            sleep(pause)
            pause = min(pause * 2, LONGEST_SAVE_RETRY)
            refusal = session.announce_end(commit)
            if refusal is None:
                refusal = client.commit(commit)
            if refusal is None:
                session.acknowledge(commit)
        if isinstance(refusal, Conflict):
            refusal = self._save_the_rest(commit, refusal)
        self.count = 0
        return refusal

    def _continue_unsaved(self, commit: Commit, refusal: Exception) -> Exception | None:
        if isinstance(refusal, Conflict):
            return self._save_the_rest(commit, refusal)
        self.count += 1
        self._last = time()
        return refusal

    def _save_the_rest(self, commit: Commit, conflict: Conflict) -> Exception | None:
        """Find out whether a conflict is with a save of our own, and if so, save what comes after it.

        A save that failed may have been written anyway: the connection broke before the store could answer.
        Then the journal has more records than this process knows, and refuses the next commit. If these are the first
        records of that commit, under our own fence, there is no conflict.
        """
        session = self._session
        writer = session.writer
        client = session.compiled.client
        assert writer is not None
        assert client is not None
        if not self.count:
            return conflict
        try:
            found = client.store.read(commit.run_id, first=commit.expected + 1)
        except Exception:
            return conflict
        written = len(found.records)
        if found.head.fence != commit.fence or not written or found.records != commit.records[:written]:
            return conflict
        self.count = 0
        writer.acknowledge(written)
        # The commit that was written may have been a stop that the loop doesn't know of, so that the head has a
        # status which no longer holds. So this commit always sets the status.
        status = RUNNING
        due: float | None = 0.0
        if commit.status:
            status = commit.status
            due = commit.due
        described = summary(session.progress)
        rest = writer.commit(status, described, commit.purge, due, commit.ignores_posts, commit.takes)
        return session.write(rest)


def _may_succeed_later(refusal: Exception | None) -> bool:
    return isinstance(refusal, StoreUnavailable) and not isinstance(refusal, TooLarge)
