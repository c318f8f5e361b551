"""What others post to a run, and what its nodes emit, on a Redis server: a hash and a list beside its journal."""

from __future__ import annotations

from collections.abc import Sequence

from limpet.errors import AlreadyCompleted, DamagedRecord
from limpet.journal.store import Output, Post
from limpet.stores.heads import refuse_old_fence
from limpet.stores.redis import scripts
from limpet.stores.redis.head_fields import head_of
from limpet.stores.redis.script_calls import ScriptCalls, changed_while_read, existing, undamaged
from limpet.stores.redis.scripts import number, text


def post(calls: ScriptCalls, token: bytes, clock: bytes, run_id: str, key: str, body: bytes) -> bool:
    """Post something to a run; False if it was posted this key before."""
    reply = undamaged(run_id, calls.run(scripts.POST, run_id, token, clock, text(key), body))
    if reply[1] == b"completed":
        raise AlreadyCompleted(f"run {run_id!r} is complete, and takes in nothing more", run_id)
    return bool(reply[1] == b"posted")


def inbox(calls: ScriptCalls, run_id: str) -> list[Post]:
    """The posts that no commit has taken in. Raises `DamagedRecord` if one of them is missing."""
    _, taken, waiting = undamaged(run_id, calls.run(scripts.INBOX, run_id))
    return [_post(run_id, place, value) for place, value in enumerate(waiting, int(taken) + 1)]


def add_output(
    calls: ScriptCalls, call: tuple[bytes, bytes], run_id: str, fence: int, bodies: Sequence[bytes], keep: int
) -> int:
    """Add items to a run's output, and return the number of the newest. `call` is its token, and the clock."""
    arguments = (*call, b"%d" % fence, number(max(keep, 1)), *bodies)
    reply = existing(run_id, calls.run(scripts.ADD_OUTPUT, run_id, *arguments))
    if reply[0] == 2:
        refuse_old_fence(head_of(run_id, reply[3], reply[2]), fence, float(reply[1]))
        raise changed_while_read(run_id)
    return int(reply[1])


def read_output(calls: ScriptCalls, run_id: str, after: int, limit: int | None) -> list[Output]:
    """The items that are numbered above `after`."""
    arguments = (number(after), number(limit), text(run_id))
    _, first, bodies = existing(run_id, calls.run(scripts.OUTPUT, run_id, *arguments))
    return [Output(place, body) for place, body in enumerate(bodies, int(first))]


def _post(run_id: str, place: int, value: bytes) -> Post:
    """The post that is kept as "<bytes of the key>:<key><body>"."""
    size, _, rest = value.partition(b":")
    try:
        length = int(size)
        return Post(place, rest[:length].decode(), rest[length:])
    except ValueError as error:
        raise DamagedRecord(run_id, 0, f"its post {place} is missing, or isn't what was written") from error
