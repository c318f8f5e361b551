"""The scripts that the Redis store has the server run, each of which happens whole or not at all.

The Lua is in `stores/redis/lua`, one file a script. A line `-- include other.lua` stands for the text of that
file. This module says what each script takes; all of them get three keys:

- `KEYS[1]`: a hash, the head of the run.
- `KEYS[2]`: a list, its journal.
- `KEYS[3]`: the index, sorted sets of run ids. `KEYS[3]` itself has all runs and `KEYS[3]:<status>` those of a
  status, by creation. Each lane has two more (`lane_set` in `index.lua`). One has its runs that are due, by the time
  from which a worker may claim them (the later of `due` and the end of the lease). From that time on, as soon as a
  worker looks, they are in the other one instead, the most urgent first. So runs are found without looking at any
  other run. `KEYS[3]:lanes` has the lanes that have such sets.
  `KEYS[3]:graph:<graph>`, `KEYS[3]:tag:<tag>` and the like (`places` in `index.lua`) are what lists are read from.

Beside the journal a run has what was posted to it (`post.lua` says how) and what it emitted, a list. Documents have
keys of their own: see `posts_and_documents.py`.

In the head, a value that may be missing is "" if it is missing, else "=…". `sum` is a checksum of all
fields but `sequence` and `last`, so that a commit that only adds records need not compute it; `sequence` is checked
by the length of the journal and by `dropped`, the number of records that were deleted. `last` is the token of the
last call that changed the run: a call that is repeated, because its answer did not arrive, finds its own token and
changes nothing.

A script checks before it writes: whatever can be wrong is found before the first change. The answers are 0 where
the run doesn't exist, `{1, …}` (or 1) for what was done, and `{2, now, length, head}` for a run that can't be
changed this way; `store.py` then finds out why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from string import Template
from typing import NamedTuple

from limpet.defaults import QUEUE
from limpet.errors import UsageError
from limpet.journal.store import Commit, Lane, NewRun
from limpet.stores.redis.head_fields import (
    CANCEL_BODY,
    CHECKSUMMED_BEFORE,
    CHECKSUMMED_FIELDS,
    CHECKSUMMED_IN_FORMAT_3,
    FIELDS,
    FORMAT,
    FOUND_FIELDS,
    OLDER_FIELDS,
)

RECORDS_PER_COMMAND = 1000
"""Records that one command of a script takes: Lua's stack is bounded."""

LARGEST_NUMBER = 2**53
"""Lua's numbers are floats: above this they can't tell every whole number from the next."""

_LUA = Path(__file__).parent / "lua"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_VALUES = {
    "FIELDS": _quoted(FIELDS),
    "FOUND_FIELDS": _quoted(FOUND_FIELDS),
    "OLDER_FIELDS": _quoted(OLDER_FIELDS),
    "CHECKSUMMED_FIELDS": len(CHECKSUMMED_FIELDS),
    "CHECKSUMMED_IN_FORMAT_1": CHECKSUMMED_BEFORE[b"1"],
    "CHECKSUMMED_IN_FORMAT_2": CHECKSUMMED_BEFORE[b"2"],
    "CHECKSUMMED_IN_FORMAT_3": CHECKSUMMED_IN_FORMAT_3,
    "FORMAT": f"'{FORMAT.decode()}'",
    "DEFAULT_QUEUE": f"'{QUEUE}'",
    "CANCEL_BODY": "'" + "".join(f"\\{byte:03}" for byte in CANCEL_BODY) + "'",
    "RECORDS_PER_COMMAND": RECORDS_PER_COMMAND,
}


class Script(NamedTuple):
    """A script: its text, and the SHA-1 of it, by which the server knows it once it was loaded."""

    text: str
    sha: bytes


def _script(name: str) -> Script:
    text = Template(_with_includes(name)).substitute(_VALUES)
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest().encode())


def _with_includes(name: str) -> str:
    text = (_LUA / f"{name}.lua").read_text("utf-8")
    return re.sub(r"^-- include (\w+)\.lua$", lambda line: _with_includes(line[1]), text, flags=re.MULTILINE)


CREATE = _script("create")
"""Takes what `create_arguments` gives. Answers `{1, lease_until}`, or 0 if the run exists."""

APPEND = _script("append")
"""Takes what `append_arguments` gives. Answers 1."""

READ = _script("read")
"""Takes the first and last number (see `number`) and "1" or "0": whether records are wanted, or only the head.

Answers `{1, first, length, head, records}`; without records if there are none.
"""

READ_HEADS = _script("read_heads")
"""Takes runs …; for an empty run id. Answers for each `{length, head}`, 0 if it is missing, -1 if it isn't ours."""

CLAIM = _script("claim")
"""Takes token, clock, holder, ttl, instead_of or "". Answers `{1, fence, lease_until, crashes}`."""

CLAIM_READY = _script("claim_ready")
"""Takes token, clock, holder, ttl, and for each run its id and fence; for an empty run id.

Answers for each `{fence, lease_until, crashes}`, or 0 if it isn't claimed.
"""

RENEW = _script("renew")
"""Takes fence, clock, ttl. Answers `{1, 1}` if posts wait, else `{1, 0}`; 0 if the lease is no longer valid."""

RELEASE = _script("release")
"""Takes fence, keep_for. Answers 1, or 0 if there was nothing to release."""

POST = _script("post")
"""Takes token, clock, key, body. Answers `{1, "posted"}`, `{1, "known"}` or `{1, "completed"}`."""

INBOX = _script("inbox")
"""Takes nothing. Answers `{1, taken, posts}`, each post as "<bytes of the key>:<key><body>"."""

ADD_OUTPUT = _script("add_output")
"""Takes token, clock, fence, keep, items …. Answers `{1, newest}`."""

OUTPUT = _script("output")
"""Takes the number after which items are wanted, limit or "", run. Answers `{1, first, items}`."""

CHANGE_DOCUMENT = _script("change_document")
"""Takes name, version, "1" to delete it, due time (see `optional_time`), body; with the keys of documents.

Answers `{1, version}`, or 0 if the document has another version.
"""

LIST_DOCUMENTS = _script("list_documents")
"""Takes clock, prefix, "1" for those that are due, limit or ""; with the keys of documents.

Answers `{name, value, …}`.
"""

PRUNE = _script("prune")
"""Takes the number of the first record to keep. Answers `{1, count}`."""

DELETE = _script("delete")
"""Takes clock, run, all statuses. Answers 1."""

EXPIRE = _script("expire")
"""Takes clock, older_than, statuses …; for an empty run id. Answers `{1, count}`."""

ARE_VALID = _script("are_valid")
"""Takes clock, and for each lease run and fence; for an empty run id. Answers for each 1 or 0."""

LANES = _script("lanes")
"""Takes clock; for an empty run id. Answers the lanes, each as `lane_of` takes it.

If first runs of earlier versions have to be listed by `INDEX_OLDER`, it answers 0; 1 if it has to be called again.
"""

READY = _script("ready")
"""Takes clock, limit, and for each lane queue, graph and plan; for an empty run id.

Answers `{{run, "", length, head}, …}`.
"""

REMOVE_FROM_INDEX = _script("remove_from_index")
"""Takes run, names of sets …. Answers 1, or 0 if the run exists."""

INDEX_OLDER = _script("index_older")
"""Takes clock, runs …; for an empty run id. Answers 1."""

ALL = (
    CREATE,
    APPEND,
    READ,
    READ_HEADS,
    CLAIM,
    CLAIM_READY,
    RENEW,
    RELEASE,
    POST,
    INBOX,
    ADD_OUTPUT,
    OUTPUT,
    CHANGE_DOCUMENT,
    LIST_DOCUMENTS,
    PRUNE,
    DELETE,
    EXPIRE,
    ARE_VALID,
    LANES,
    READY,
    REMOVE_FROM_INDEX,
    INDEX_OLDER,
)


def create_arguments(run: NewRun, token: bytes, clock: bytes, keep_for: bytes) -> tuple[bytes, ...]:
    """What `CREATE` takes.

    `token` is the name of this call alone. `clock` is "+0" for the server's time, or the time. `keep_for` is how many
    seconds the run is kept after it has ended, "" without limit.
    """
    return (
        token,
        clock,
        seconds(run.ttl),
        keep_for,
        text(run.run_id),
        text(run.graph),
        text(run.status),
        optional_text(run.holder),
        json.dumps(run.tags).encode(),
        optional_text(run.parent),
        run.note,
        optional_time(run.due),
        b"%d" % run.priority,
        *map(text, run.labels),
        text(run.queue),
        *run.records,
    )


def append_arguments(commit: Commit, token: bytes, clock: bytes, keep_for: bytes) -> tuple[bytes, ...]:
    """What `APPEND` takes: the place of the commit, then "" or what changes in the head, then the records."""
    fence = b"%d" % commit.fence
    expected = b"%d" % commit.expected
    ignores_posts = flag(commit.ignores_posts)
    # The short way in `append.lua`, where the head stays as it is.
    if commit.only_adds_records and 0 < len(commit.records) <= RECORDS_PER_COMMAND:
        return (token, fence, expected, ignores_posts, clock, b"", *commit.records)
    return (
        token,
        fence,
        expected,
        ignores_posts,
        clock,
        b"head",
        number(commit.takes),
        b"%d" % commit.snapshot,
        optional_text(commit.status),
        b"" if commit.note is None else b"=" + commit.note,
        flag(commit.purge),
        keep_for,
        optional_time(commit.due),
        *map(optional_text, commit.labels or _UNCHANGED_LABELS),
        *commit.records,
    )


def flag(value: bool) -> bytes:
    """Yes or no, as the scripts take it."""
    return b"%d" % value


def text(value: str) -> bytes:
    """A text as the scripts take it. Raises `UsageError` for one that has no UTF-8 form."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{value!r} isn't text that Redis can keep: {error.reason}") from error


def optional_text(value: str | None) -> bytes:
    """A text that may be missing, as the scripts take it."""
    return b"" if value is None else b"=" + value.encode()


def seconds(value: float) -> bytes:
    """A time span as the scripts take it."""
    return b"%r" % float(value)


def optional_time(moment: float | None) -> bytes:
    """A time that may be missing, as the scripts take it."""
    return b"" if moment is None else b"=%r" % float(moment)


def number(value: int | None) -> bytes:
    """A sequence number that may be missing, as the scripts take it: the nearest one that they can handle."""
    return b"" if value is None else b"%d" % min(max(value, 0), LARGEST_NUMBER)


def texts(values: Sequence[str]) -> list[bytes]:
    """Each of the texts once, as the scripts take them."""
    return [text(value) for value in dict.fromkeys(values)]


def lane_of(data: bytes) -> Lane:
    """The lane that a script named, as "<bytes of the queue>:<queue><bytes of the graph>:<graph><plan>"."""
    queue, rest = _counted(data)
    graph, plan = _counted(rest)
    return Lane(queue.decode(), graph.decode(), plan.decode())


def _counted(data: bytes) -> tuple[bytes, bytes]:
    size, _, rest = data.partition(b":")
    return rest[: int(size)], rest[int(size) :]


def run_id_of(data: bytes) -> str:
    """A run id that a script answered. Another program may have put any bytes there."""
    return data.decode(errors="replace")


_UNCHANGED_LABELS = (None, None, None, None)
