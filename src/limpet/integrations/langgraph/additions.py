"""What LangGraph gives a saver, on its way into records. Values are encoded once, however often a record is made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from limpet.integrations.langgraph.thread_state import SavedCheckpoint, TaskWrites, ThreadState
from limpet.integrations.langgraph.values import Dump, Piece, Typed, Value, dump_with, to_pieces
from limpet.journal.threads.records import ThreadRecord

_OWN_FIELDS = frozenset(
    {"v", "ts", "id", "channel_values", "channel_versions", "versions_seen", "updated_channels"}
)


KEPT_BYTES: Final = 32 * 1024 * 1024
"""How large the remembered pieces are, together."""


class SealedPieces:
    """Makes pieces, with any serializer, and remembers those that LangGraph's `EncryptedSerializer` makes.

    What that encrypts twice isn't the same twice: the pieces of values that didn't change would differ from those
    before. So the piece that was made of the same bytes is used again, as long as it is known, by a digest of them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, bytes], Typed] = OrderedDict()
        self._size = 0

    def dump_with(self, serializer: Any) -> Dump:
        """The function that makes a piece of a value."""
        if not isinstance(serializer, EncryptedSerializer):
            return dump_with(serializer)

        def dump(value: Any) -> Piece:
            kind, data = serializer.serde.dumps_typed(value)
            place = (kind, blake2b(data, digest_size=32).digest())
            with self._lock:
                known = self._known.get(place)
                if known is not None:
                    self._known.move_to_end(place)
                    return known
            cipher, sealed = serializer.cipher.encrypt(data)
            return self._remembered(place, Typed(f"{kind}+{cipher}", sealed))

        return dump

    def _remembered(self, place: tuple[str, bytes], piece: Typed) -> Typed:
        with self._lock:
            self._known[place] = piece
            self._size += len(piece.data)
            while self._size > KEPT_BYTES and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._size -= len(oldest.data)
        return piece


_UNALTERABLE: Final = frozenset({str, bytes, int, float, bool, type(None)})


class NewCheckpoint:
    """A checkpoint to be saved. `changed` are the channels that LangGraph says have a new version."""

    def __init__(
        self,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        parent: str | None,
        changed: Collection[str],
        dump: Dump,
        at: float,
    ) -> None:
        self._checkpoint = checkpoint
        self._changed = changed
        self._dump = dump
        self._encoded: dict[str, Value] = {}
        step = metadata.get("step")
        saved = SavedCheckpoint(
            checkpoint["id"],
            parent or None,
            max(step, 0) if type(step) is int else 0,
            str(metadata.get("source", "")),
            at,
        )
        saved.v = checkpoint["v"]
        saved.ts = checkpoint["ts"]
        saved.versions = dict(checkpoint["channel_versions"])
        saved.seen = {node: dict(seen) for node, seen in checkpoint["versions_seen"].items()}
        updated = checkpoint.get("updated_channels")
        saved.updated = None if updated is None else list(updated)
        saved.extra = self._dump({key: value for key, value in checkpoint.items() if key not in _OWN_FIELDS})
        saved.metadata = self._dump(dict(metadata))
        self._saved = saved

    def record(self, state: ThreadState) -> ThreadRecord:
        """The record of it, after those that the state is made of."""
        self._saved.values = {
            channel: self._value(channel, value, state.last)
            for channel, value in self._checkpoint["channel_values"].items()
        }
        return state.checkpoint_record(self._saved)

    def whole(self, state: ThreadState) -> ThreadRecord | None:
        """The same so that no earlier record is needed: of the newest checkpoint only."""
        if state.newest is not None and self._saved.id <= state.newest.id:
            return None
        return state.checkpoint_record(self._saved, whole=True)

    def _value(self, channel: str, value: Any, last: SavedCheckpoint | None) -> Value:
        # What can be altered in place is compared by content, although LangGraph gave it no new version.
        if type(value) in _UNALTERABLE and last is not None and self._is_unchanged(channel, last):
            return last.values[channel]
        known = self._encoded.get(channel)
        if known is None:
            known = self._encoded[channel] = to_pieces(value, self._dump)
        return known

    def _is_unchanged(self, channel: str, last: SavedCheckpoint) -> bool:
        """Whether a channel has the value that it had in the checkpoint before, as its version says.

        Versions are compared along one line only: after a fork, two checkpoints may have the same version of a
        channel with different values. Then the values are compared.
        """
        if self._saved.parent != last.id or channel in self._changed or channel not in last.values:
            return False
        version = self._saved.versions.get(channel)
        known = last.versions.get(channel)
        return version is not None and type(version) is type(known) and version == known


class NewWrites:
    """What a task has written: for each write its index, the channel and the value."""

    def __init__(
        self,
        checkpoint_id: str,
        writes: Sequence[tuple[int, str, Any]],
        task: tuple[str, str],
        dump: Dump,
        at: float,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._at = at
        self._written = TaskWrites(
            *task, [(index, channel, to_pieces(value, dump)) for index, channel, value in writes]
        )

    def record(self, state: ThreadState) -> ThreadRecord:
        """The record of it, after those that the state is made of."""
        return state.writes_record(self._checkpoint_id, self._written, self._at)

    def whole(self, state: ThreadState) -> None:
        """Writes aren't stored whole: they belong to a checkpoint."""
