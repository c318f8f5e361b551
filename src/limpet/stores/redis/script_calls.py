"""Having the server run scripts, for all parts of the Redis store: the keys they get, and what their errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from limpet.errors import DamagedRecord, RunNotFound
from limpet.journal.store import RunHead
from limpet.stores.redis.connections import Connections
from limpet.stores.redis.head_fields import head_of
from limpet.stores.redis.scripts import READ_HEADS, Script, text

HEADS_PER_CALL = 256
"""Heads that are read together at most: meanwhile the server answers no other call."""

Command = tuple[Any, ...]


class ScriptCalls:
    """Calls to the scripts of a store whose keys all begin with `prefix`."""

    def __init__(self, connections: Connections, prefix: bytes) -> None:
        self.connections = connections
        self.prefix = prefix
        self.index = prefix + b"runs"

    def command(self, script: Script, run_id: str, *arguments: bytes) -> Command:
        """A call of a script about a run."""
        key = text(run_id)
        run = self.prefix + b"run:" + key
        journal = self.prefix + b"journal:" + key
        return (b"EVALSHA", script.sha, b"3", run, journal, self.index, *arguments)

    def run(self, script: Script, run_id: str, *arguments: bytes) -> Any:
        """The answer of one script about a run. Raises what the server refused it for."""
        return self.one(run_id, self.command(script, run_id, *arguments))

    def one(self, run_id: str, command: Command, on_repeat: Callable[[], object] | None = None) -> Any:
        """The answer to one command about a run. Raises what the server refused it for."""
        (reply,) = self.connections.call([command], on_repeat)
        if isinstance(reply, Exception):
            raise self.explained(run_id, reply) from reply
        return reply

    def all(self, commands: Sequence[Command]) -> Sequence[Any]:
        """The answers to all commands. Raises the first error among them."""
        if not commands and not self.connections.closed:
            return []
        replies = self.connections.call(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise self.connections.explained(reply) from reply
        return replies

    def any(self, commands: Sequence[Command]) -> Sequence[Any]:
        """The answers to commands that are independent of each other, None for one that failed.

        Raises the error of the first one if all of them failed.
        """
        if not commands and not self.connections.closed:
            return []
        replies = self.connections.call(commands)
        failed = [reply for reply in replies if isinstance(reply, Exception)]
        if len(failed) == len(replies):
            raise self.connections.explained(failed[0]) from failed[0]
        return [None if isinstance(reply, Exception) else reply for reply in replies]

    def heads(self, run_ids: Sequence[str]) -> Iterator[RunHead | DamagedRecord | None]:
        """The heads of runs, or why each can't be read; None for one that doesn't exist."""
        for start in range(0, len(run_ids), HEADS_PER_CALL):
            part = run_ids[start : start + HEADS_PER_CALL]
            (replies,) = self.all([self.command(READ_HEADS, "", *map(text, part))])
            for run_id, reply in zip(part, replies, strict=True):
                yield _head_in(run_id, reply)

    def explained(self, run_id: str, error: Exception) -> Exception:
        """The `LimpetError` for a script of a run that failed."""
        if "WRONGTYPE" in str(error):
            return _not_ours(run_id)
        return self.connections.explained(error)


def existing(run_id: str, reply: Any) -> Any:
    """The same answer, of a run that exists. Raises `RunNotFound`."""
    if reply == 0:
        raise RunNotFound(run_id)
    return reply


def undamaged(run_id: str, reply: Any) -> Any:
    """The same answer, of a script that fails only if the run is missing or damaged."""
    reply = existing(run_id, reply)
    if reply != 1 and reply[0] == 2:
        head_of(run_id, reply[3], reply[2])
        raise changed_while_read(run_id)
    return reply


def _head_in(run_id: str, reply: Any) -> RunHead | DamagedRecord | None:
    if reply == 0:
        return None
    if reply == -1:
        return _not_ours(run_id)
    length, found = reply
    try:
        return head_of(run_id, found, length)
    except DamagedRecord as damage:
        return damage


def _not_ours(run_id: str) -> DamagedRecord:
    return DamagedRecord(run_id, 0, "its keys in Redis belong to another program")


def changed_while_read(run_id: str) -> DamagedRecord:
    """The error for a run whose head is not the one that a script has seen."""
    return DamagedRecord(run_id, 0, "its head in Redis changed while it was read")
