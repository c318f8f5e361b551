"""What a run has beside its journal: what is posted to it, and its output. How each is written and read.

This is the file to open for a new kind of post: give it a name, a function that makes it, and a case in
`engine/loop/taking_in.py`, which is where a run takes posts in. A kind that nodes wait for is a *letter*: it needs
only a name in `LETTERS`, and a function in `engine/node_context` that waits for it, as `messages.py` does.

The key of a post says what it is about. A store takes each key once, so that a post which is sent again, after a
crash or a broken connection, counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.errors import DamagedRecord, UsageError
from limpet.journal.encoding.codec import decode, decode_for_viewing, encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.store import Post
from limpet.journal.waits import CHILD_RUN, MESSAGE

CANCEL = "cancel"
"""A request to cancel the run."""
ANSWER = "answer"
"""The answer to one question."""
LETTERS = (MESSAGE,)
"""The kinds that nodes wait for, and that wait for nodes: see `waits.deliver`. The end of a child run isn't one: it
wakes the nodes that wait for it, and they look at the child, which knows how it ended. Nor is a slot: the node asks
for it again."""


class Posted(NamedTuple):
    """A post as it was sent: its number in the inbox, its kind, and what it brings."""

    number: int
    kind: str
    data: Mapping[str, Any]


class NewPost(NamedTuple):
    """A post to send: its key, and its bytes for the store."""

    key: str
    body: bytes


def cancel_post(run_id: str, request: str) -> NewPost:
    """A request to cancel a run. Each has an id, as a run can be resumed and cancelled again."""
    return _new_post(run_id, f"{CANCEL}:{request}", {"kind": CANCEL})


def answer_post(
    run_id: str, question: str, answer: Any, at: float, number: int = 1, by: str | None = None
) -> NewPost:
    """The answer to a question, given at this time by the store's clock. Only the first one that fits counts.

    `number` is for an answer after others that had no effect, `by` says who gave it. Raises `UnstorableValue`.
    """
    encode(answer, "answer")
    data = {"kind": ANSWER, "question": question, "answer": answer, "at": at}
    if by is not None:
        data["by"] = by
    kind = ANSWER
    if number > 1:
        kind = f"{ANSWER}.{number}"
    return _new_post(run_id, f"{kind}:{question}", data)


def letter_post(run_id: str, kind: str, name: str, value: Any, at: float, key: str) -> NewPost:
    """What nodes wait for by this kind and name, sent at this time by the store's clock.

    A store takes each key once for each kind and name. Raises `UnstorableValue`.
    """
    encode(value, kind)
    data = {"kind": kind, "name": name, "value": value, "at": at}
    return _new_post(run_id, f"{kind}:{name}\n{key}", data)


def child_end_post(run_id: str, child: str, mark: str) -> NewPost:
    """A child run is about to end. Whether it has is for the parent to see: its process may crash in between.

    `mark` distinguishes one end of the child from another: it may be retried, and end again.
    """
    return _new_post(run_id, f"{CHILD_RUN}:{child}\n{mark}", {"kind": CHILD_RUN, "name": child})


def call_again_post(run_id: str, child: str, mark: str) -> NewPost:
    """The nodes that wait for a child run are to be called again, although it hasn't ended.

    `mark` distinguishes one such request from another.
    """
    data = {"kind": CHILD_RUN, "name": child, "again": True}
    return _new_post(run_id, f"{CHILD_RUN}:{child}\nagain {mark}", data)


def is_cancel(key: str) -> bool:
    """Whether a key is that of a request to cancel."""
    return key.partition(":")[0] == CANCEL


def is_answer_to(question: str, key: str) -> bool:
    """Whether a key is that of an answer to this question."""
    kind, _, name = key.partition(":")
    return name == question and kind.partition(".")[0] == ANSWER


def read_post(run_id: str, post: Post) -> Posted:
    """A post, decoded. Raises `DamagedRecord` if it isn't what was sent, `UsageError` for an unknown class."""
    if post.key == CANCEL:  # what a store of an older version had instead of posts
        return Posted(post.number, CANCEL, {})
    try:
        data = decode(Envelope(run_id).open(0, post.body))
        return Posted(post.number, str(data["kind"]), data)
    except UsageError:
        raise
    except (TypeError, LookupError, ValueError) as problem:
        what = f"post {post.number}, {post.key!r}, can't be read: {problem}"
        raise DamagedRecord(run_id, 0, what) from problem


def _new_post(run_id: str, key: str, data: Mapping[str, Any]) -> NewPost:
    return NewPost(key, _enclosed(run_id, encode(dict(data))))


class OutputItem(NamedTuple):
    """What a node of a run emitted, and when. `place` says in which step, attempt and call, and where in the run.

    Of the kind `progress`, `data` says how far the node was.
    """

    node: str
    at: float
    data: Any
    place: Mapping[str, Any] = {}
    kind: str = "output"


def output_body(run_id: str, item: OutputItem) -> bytes:
    """The bytes of an item of output for the store. Raises `UnstorableValue`."""
    return _enclosed(run_id, encode(list(item), "output"))


def read_output(run_id: str, body: bytes) -> OutputItem:
    """An item of output, to be looked at. Raises `DamagedRecord` or ValueError if it isn't what was emitted."""
    node, at, data, *more = decode_for_viewing(Envelope(run_id).open(0, body))
    if not more:  # as an older version wrote it
        return OutputItem(str(node), float(at), data)
    place, kind = more
    return OutputItem(str(node), float(at), data, dict(place), str(kind))


def _enclosed(run_id: str, data: bytes) -> bytes:
    # It has no number before the store has it, so its envelope has none.
    return Envelope(run_id).close(0, data)
