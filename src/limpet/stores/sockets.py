"""Closing a connection so that nothing more is delivered over it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

_LINGER_NOT_AT_ALL = struct.pack("ii", 1, 0)


def reset_when_closed(connection: socket.socket) -> None:
    """Have a socket closed by a reset, which its peer gets.

    Otherwise the system would keep on trying, and may deliver a call long after it was given up.
    """
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)
