"""Pieces that LangGraph's `EncryptedSerializer` makes: what it encrypts twice isn't the same twice.

So the pieces of values that didn't change would differ from those before. Here the piece that was made of the same
bytes before is used again, as long as it is known. What is remembered of the bytes is a digest.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from limpet.integrations.langgraph.values import Dump, Piece, Typed, dump_with

KEPT_BYTES: Final = 32 * 1024 * 1024
"""How large the remembered pieces are, together."""


class SealedPieces:
    """Makes pieces, with any serializer, and remembers those that are encrypted."""

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
