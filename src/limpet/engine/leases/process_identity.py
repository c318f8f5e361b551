"""Who holds a lease: a name for this process that another one can check.

It says the host, its boot, the process and when that process started, so that a process of the same host
can tell for sure that the holder is gone (a number that was given out again isn't mistaken for it). Where
the system doesn't tell, nobody is declared dead and the lease has to run out.
"""

from __future__ import annotations

import os
from functools import lru_cache

_SEPARATOR = "|"


def this_process() -> str:
    """The name of this process as a lease holder."""
    return _name(os.getpid())


def is_dead(holder: str) -> bool:
    """Whether the holder is certainly gone: a process of this host and boot that no longer runs."""
    host, boot, space, pid, began = _parts(holder)
    if not boot or not began or (host, boot, space) != _place():
        return False
    if not pid.isdigit():
        return False
    start = _start_of(int(pid))
    return start is not None and start != began


def describe_holder(holder: str | None) -> str:
    """The holder in words."""
    if not holder:
        return "nobody"
    host, _, _, pid, _ = _parts(holder)
    if not pid:
        return holder
    here = " (this process; run.close() lets go of it)" if holder == this_process() else ""
    return f"process {pid} on {host}{here}"


@lru_cache(maxsize=1)
def _name(pid: int) -> str:
    """Keyed by the process, so that a forked child finds its own name."""
    return _SEPARATOR.join([*_place(), str(pid), _start_of(pid) or ""])


def _place() -> tuple[str, str, str]:
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return host.replace(_SEPARATOR, "_"), _boot(), _process_space()


def _parts(holder: str) -> tuple[str, str, str, str, str]:
    parts = holder.split(_SEPARATOR)
    if len(parts) != 5:
        return holder, "", "", "", ""
    return parts[0], parts[1], parts[2], parts[3], parts[4]


@lru_cache(maxsize=1)
def _boot() -> str:
    return _first_line("/proc/sys/kernel/random/boot_id")


def _process_space() -> str:
    """Process numbers mean something only within one of these: two containers may share a host name."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since boot; empty if it has ended, None if that can't be told."""
    line = _first_line(f"/proc/{pid}/stat")
    fields = line.rpartition(")")[2].split()
    if len(fields) >= 20:
        return "" if fields[0] in ("Z", "X") else fields[19]
    return "" if _has_ended(pid) else None


def _has_ended(pid: int) -> bool:
    """Whether the system says for certain that there is no such process."""
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
