"""What others post to a run, and what its nodes emit: rows beside its journal.

A row has the *mark* of the call that added it. So a call that is made again, because its answer did not arrive, finds
out whether it was carried out.
"""

from __future__ import annotations

from collections.abc import Sequence

from limpet.errors import DamagedRecord, RunNotFound, TooLarge
from limpet.journal.store import Output, Post
from limpet.stores.heads import takes_in_nothing
from limpet.stores.postgres.append import LARGEST
from limpet.stores.postgres.connections import Connections
from limpet.stores.postgres.rows import SQL, within_bigint


def post(connections: Connections, mark: int, run_id: str, key: str, body: bytes) -> bool:
    """Post something to a run; False if it was posted this key before."""
    refuse_too_large(f"a post to run {run_id!r}", [body])
    outcome = connections.use(
        lambda cursor, again: cursor.execute(SQL["POST"], (run_id, key, body, mark, again)).fetchone()
    )
    match outcome:
        case ("posted" | "known",):
            return outcome == ("posted",)
        case ("completed",):
            raise takes_in_nothing(run_id)
        case _:
            raise RunNotFound(run_id)


def inbox(connections: Connections, run_id: str) -> list[Post]:
    """The posts that no commit has taken in. Raises `DamagedRecord` if one of them is missing."""
    rows = connections.use(lambda cursor, _: cursor.execute(SQL["INBOX"], (run_id,)).fetchall())
    if not rows:
        raise RunNotFound(run_id)
    posted, taken, first, *_ = rows[0]
    found = [] if first is None else [Post(*row[2:]) for row in rows]
    for number, each in zip(range(taken + 1, posted + 1), [*found, None], strict=False):
        if each is None or each.number != number or each.body is None:
            raise DamagedRecord(run_id, 0, f"its post {number} is missing")
    return found


def add_output(
    connections: Connections, mark: int, run_id: str, fence: int, bodies: Sequence[bytes], keep: int
) -> int | None:
    """Add items to a run's output, and return the number of the newest; None if the run has another fence."""
    refuse_too_large(f"the output of run {run_id!r}", bodies)
    limits = (within_bigint(fence), list(bodies), within_bigint(keep))
    row = connections.use(
        lambda cursor, again: cursor.execute(SQL["ADD_OUTPUT"], (run_id, *limits, mark, again)).fetchone()
    )
    if row is None:
        raise RunNotFound(run_id)
    accepted, newest = row
    return newest if accepted else None


def read_output(connections: Connections, run_id: str, after: int, limit: int | None) -> list[Output]:
    """The items that are numbered above `after`."""
    values = (within_bigint(after), limit, run_id)
    rows = connections.use(lambda cursor, _: cursor.execute(SQL["READ_OUTPUT"], values).fetchall())
    if not rows:
        raise RunNotFound(run_id)
    return [Output(*row) for row in rows if row[0] is not None]


def refuse_too_large(what: str, bodies: Sequence[bytes]) -> None:
    """Raise `TooLarge` for more than the server takes in one call."""
    size = sum(map(len, bodies))
    if size > LARGEST:
        raise TooLarge(f"{what} has {size:,} bytes, which is more than PostgreSQL can take ({LARGEST:,})")
