"""The posts of a run in files: an inbox file beside its journal, with a frame for each post.

The head says which file that is, and how many of its frames count. So a post is written and flushed first, and has
happened when the head file is replaced by one that counts it. What a killed writer left behind the last post that
counts is written over by the next one. A commit that takes posts in only changes the head, in its own frame.

All posts stay in the file, since their keys stay known. When most of it are bodies that were taken in, another file
with the keys alone takes its place, as a journal that is rewritten does.

A run of an earlier version has no such file. Its head may have had the signal "cancel", which counts as its first
post.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from limpet.errors import DamagedRecord
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import Post, RunHead
from limpet.stores.atomic_files import replace_end, replace_file
from limpet.stores.files.frames import UnfinishedFrame, checksum_seed, encode_frame, records_in, scan_frames
from limpet.stores.files.run_names import INBOX_SUFFIX, new_token

if TYPE_CHECKING:
    from limpet.stores.files.run_files import RunFiles

MIN_REWRITE_SIZE = 64 * 1024
"""Bytes of an inbox file from which on it is rewritten without bodies that were taken in, if they are most of it."""
FRAME_SIZE_OF_KEYS = 64
"""About how many bytes a post without its body takes."""

EARLIER_REQUEST = Post(1, "cancel", encode({"kind": "cancel"}))
"""What a signal of an earlier version was always for."""


class KnownPosts(NamedTuple):
    """What is known of an inbox file: the keys of its first `posted` posts, which end at byte `end`."""

    token: str
    posted: int
    keys: set[str]
    end: int


def has_key(run: RunFiles, key: str) -> bool:
    """Whether the run was ever posted this key. Raises `DamagedRecord`."""
    return key in _known_posts(run).keys


def add_post(run: RunFiles, head: RunHead, key: str, body: bytes) -> None:
    """Write a post, and then the head that counts it. Raises `TooLarge`, `OSError`."""
    known = _known_posts(run)
    post = Post(head.posted, key, body)
    token = run.place.inbox
    is_wasteful = known.end > MIN_REWRITE_SIZE and known.end > 2 * FRAME_SIZE_OF_KEYS * known.posted
    if not token or (is_wasteful and run.head.posted == run.head.taken):
        end = _write_new_inbox(run, head, post)
    else:
        frame = _frame(run, token, post)
        end = known.end + len(frame)
        replace_end(_path(run, token), frame, known.end, flush=run.flush)
        run.replace_head(head)
    known.keys.add(key)
    run.posts = KnownPosts(run.place.inbox, head.posted, known.keys, end)


def waiting_posts(run: RunFiles) -> list[Post]:
    """The posts that no commit has taken in. Raises `DamagedRecord`."""
    if run.head.posted == run.head.taken:
        return []
    posts, _ = _read(run)
    return posts[run.head.taken :]


def _known_posts(run: RunFiles) -> KnownPosts:
    """What was known before, if it is still so: another process may have posted, or rewritten the file."""
    known = run.posts
    if known is None or (known.token, known.posted) != (run.place.inbox, run.head.posted):
        posts, end = _read(run)
        known = KnownPosts(run.place.inbox, run.head.posted, {post.key for post in posts}, end)
        run.posts = known
    return known


def _read(run: RunFiles) -> tuple[list[Post], int]:
    """The posts that count, and where the last of them ends. Raises `DamagedRecord`."""
    token = run.place.inbox
    posted = run.head.posted
    if not token:
        return [EARLIER_REQUEST][:posted], 0
    posts: list[Post] = []
    end = 0
    reason = "it is missing"
    try:
        data = _path(run, token).read_bytes()
        for frame in scan_frames(data, 0, 1, checksum_seed(run.head.run_id, token)):
            if frame.first > posted:
                break
            key, body = decode(records_in(frame.kind, frame.body(data, 0))[0])
            posts.append(Post(frame.first, key, body))
            end = frame.end
    except UnfinishedFrame:
        pass  # behind those that count, or one of them is missing
    except FileNotFoundError as error:
        reason = f"{error.filename} doesn't exist any more"
    except ValueError as problem:
        reason = str(problem)
    if len(posts) < posted:
        raise DamagedRecord(run.head.run_id, 0, f"its post {len(posts) + 1} can't be read: {reason}")
    return posts, end


def _write_new_inbox(run: RunFiles, head: RunHead, post: Post) -> int:
    """Write an inbox file with all posts, but without the bodies that were taken in; returns its size."""
    earlier, _ = _read(run)
    old = run.place.inbox
    token = new_token()
    taken = [each._replace(body=b"") for each in earlier[: head.taken]]
    posts = (*taken, *earlier[head.taken :], post)
    content = b"".join(_frame(run, token, each) for each in posts)
    replace_file(_path(run, token), content, flush=run.flush)
    run.replace_head(head, inbox=token)
    if old:
        with suppress(OSError):  # if it stays, no head names it, and `expire` removes it
            _path(run, old).unlink()
    return len(content)


def _frame(run: RunFiles, token: str, post: Post) -> bytes:
    seed = checksum_seed(run.head.run_id, token)
    return encode_frame(seed, post.number, [encode([post.key, post.body])], None)


def _path(run: RunFiles, token: str) -> Path:
    return run.directory / f"{run.name}.{token}{INBOX_SUFFIX}"
