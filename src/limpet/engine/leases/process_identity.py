"""The identity of a lease holder: a name for this process that another process can check.

It holds the host, its boot, the process id and the start time of the process. So a process of the same host knows for
sure when the holder has ended: a process id that the system has reused isn't mistaken for it. Where the system
doesn't report these, no process is declared dead, and its leases have to expire.

A process may have this library twice: reloaded, or in two interpreters. Neither copy knows the leases of the other,
so the name also says which copy it is.
"""

from __future__ import annotations

import os
from functools import lru_cache

from limpet.errors import Conflict
from limpet.stores.lease_clock import boot_id

_SEPARATOR = "|"
_COPY = os.urandom(4).hex()
"""Which copy of the library this is: each import, and each reload, is another."""


def this_process() -> str:
    """The name of this process as a lease holder."""
    return _name(os.getpid())


def is_dead(holder: str) -> bool:
    """Whether the holder has certainly ended: a process of this host and boot that no longer runs."""
    host, boot, namespace, pid, start_time = _parts(holder)
    if not boot or not start_time or (host, boot, namespace) != _place():
        return False
    if not pid.isdigit():
        return False
    start_time_now = _start_time(int(pid))
    return start_time_now is not None and start_time_now != start_time


def describe_holder(holder: str | None) -> str:
    """The holder in words."""
    if not holder:
        return "no process"
    host, _, _, pid, _ = _parts(holder)
    if not pid:
        return holder
    if holder == this_process():
        return f"process {pid} on {host} (this process)"
    if _parts(holder) == _parts(this_process()):
        return f"process {pid} on {host} (this process, by another copy of the library)"
    return f"process {pid} on {host}"


def place_of(holder: str) -> tuple[str, int]:
    """The host and the process id of a holder; 0 if it has another kind of name."""
    host, _, _, pid, _ = _parts(holder)
    return host, int(pid) if pid.isdecimal() else 0


def with_holder_described(conflict: Conflict) -> Conflict:
    """The same conflict, with its holder described in words."""
    if not conflict.holder:
        return conflict
    reason = conflict.reason.replace(conflict.holder, describe_holder(conflict.holder))
    return Conflict(conflict.run_id, reason, conflict.holder, conflict.until)


@lru_cache(maxsize=1)
def _name(pid: int) -> str:
    """Cached by process id, so that a forked child gets a name of its own."""
    return _SEPARATOR.join([*_place(), str(pid), _start_time(pid) or "", _COPY])


def _place() -> tuple[str, str, str]:
    if hasattr(os, "uname"):
        host = os.uname().nodename
    else:
        host = os.environ.get("COMPUTERNAME", "")
    return host.replace(_SEPARATOR, "_"), boot_id(), _pid_namespace()


def _parts(holder: str) -> tuple[str, str, str, str, str]:
    """Host, boot, namespace, process id and start time. The names that earlier versions made end there."""
    parts = holder.split(_SEPARATOR)
    if len(parts) not in (5, 6):
        return holder, "", "", "", ""
    return parts[0], parts[1], parts[2], parts[3], parts[4]


def _pid_namespace() -> str:
    """The namespace in which a process id is unique: two containers may share a host name and a boot."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """When a process started, in ticks since boot; empty if it has ended, None if the system doesn't report it."""
    line = _first_line(f"/proc/{pid}/stat")
    # After the last parenthesis: the name of the program, which comes before, may contain anything.
    fields = line.rpartition(")")[2].split()
    if len(fields) >= 20:
        state = fields[0]
        if state in ("Z", "X"):  # a zombie, or dead
            return ""
        return fields[19]
    if _has_ended(pid):
        return ""
    return None


def _has_ended(pid: int) -> bool:
    """Whether the system reports that no such process exists."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""
