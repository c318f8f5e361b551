"""A connection that is never waited for without limit.

A network can stop to deliver without telling either side: a firewall forgets a connection, a cable is pulled, a
machine is frozen. Then the driver would wait for ever. So every wait of the driver (its generators yield what they
wait for) is done here, and ends after `limit` seconds in which not a byte arrived or could be sent. The connection is
then closed and counts as broken: what was under way may have been carried out, or not.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

from limpet.stores.sockets import reset_when_closed

Outcome = TypeVar("Outcome")


class Silence(psycopg.OperationalError):
    """Nothing was heard from the server for too long."""


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of the driver that is closed after `limit` seconds of silence in the middle of a call."""

    limit = 10.0

    def wait(self, gen: PQGen[Outcome], *_: Any, **__: Any) -> Outcome:
        """What the generator returns, once the server has answered. Raises `Silence`.

        An interrupt (Ctrl-C) closes the connection, too: the answer would be read as that to the next call. The
        driver would ask the server to cancel the call and wait for that: seconds, where nothing is delivered.
        """
        try:
            wanted = next(gen)
            server = self.pgconn.socket
            while True:
                ready = ready_within(server, wanted, self.limit)
                if not ready:
                    self.abandon()
                    raise Silence(f"no answer in {self.limit:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        except (
            psycopg.Error,
            UnicodeEncodeError,
        ):  # a text without a UTF-8 form is found before anything is sent
            raise
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close the connection now, without delivering what the system has not sent yet."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as server:
            reset_when_closed(server)
        self.close()


if hasattr(select, "poll"):

    def ready_within(file: int, wanted: Wait, seconds: float) -> Ready | int:
        """For what of `wanted` the socket is ready, waiting this many seconds at most; 0 if for nothing."""
        poll = select.poll()
        poll.register(file, _EVENTS[wanted])
        found = poll.poll(seconds * 1000)
        if not found:
            return 0
        event = found[0][1]
        ready = 0
        # An error, or the end of the connection, is found by reading or writing, whichever was wanted.
        if event & ~select.POLLOUT:
            ready |= wanted & Ready.R
        if event & ~select.POLLIN:
            ready |= wanted & Ready.W
        return ready

    _EVENTS = {
        Wait.R: select.POLLIN,
        Wait.W: select.POLLOUT,
        Wait.RW: select.POLLIN | select.POLLOUT,
    }

else:

    def ready_within(file: int, wanted: Wait, seconds: float) -> Ready | int:
        """For what of `wanted` the socket is ready, waiting this many seconds at most; 0 if for nothing."""
        files = [file]
        reading = files if wanted & Wait.R else []
        writing = files if wanted & Wait.W else []
        readable, writable, _ = select.select(reading, writing, [], seconds)
        return (Ready.R if readable else 0) | (Ready.W if writable else 0)
