"""The clock of leases, for stores whose time is that of the computer. It runs on evenly when the time of day is set.

If leases ended by the time of day, setting that forward would make all of them expire, and other processes would
claim the runs of live ones. Setting it back would keep the run of a crashed process from being claimed for as long.
The time since the computer was started can't be set, and all its processes see the same. So leases go by that:

    lease time = time since boot + a constant

The constant is how far the time of day was ahead when a store was first used after the boot. The store keeps it, by
boot, and all processes take it from there: so they agree, and stored lease times still read like times of day. That
matters where another computer, or an earlier version of Limpet, reads them.

Only leases use this clock. When a run is due or a question's deadline passes are promises about the time of day.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from limpet.stores.atomic_files import create_file, make_directory, replace_file

Clock = Callable[[], float]

SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
"""The clock of the system that has the time since boot. A store adds the constant to it by itself: each save asks."""

PLAUSIBLE_CHANGE = 10 * 365 * 86400.0
"""By how many seconds, at most, the time of day is set after a boot."""


@cache
def boot_id() -> str:
    """What the system calls this boot of the computer; empty where it doesn't say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.readline().strip()
    except (OSError, ValueError):
        return ""


@cache
def this_boot() -> str:
    """Identifies this boot and its time since boot, since containers may have one of their own; empty if unknown."""
    boot = boot_id()
    if not boot:
        return ""
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        namespace = ""
    return f"{boot} {namespace}".strip()


def time_since_boot() -> float:
    """Seconds since the computer was started, those during which it was suspended included where the system knows."""
    return time.clock_gettime(SINCE_BOOT)


def ahead_now() -> float:
    """By how many seconds the time of day is ahead of the time since boot."""
    return time.time() - time_since_boot()


def is_plausible(ahead: object) -> bool:
    """Whether a stored constant can be one. Damage may have made it anything."""
    return type(ahead) is float and abs(ahead - ahead_now()) < PLAUSIBLE_CHANGE


def clock_in_directory(directory: Path, clock: Clock, *, flush: bool) -> Clock:
    """The lease time of all processes of this computer that use a directory, which has a file for each boot.

    It is `clock` if the boot can't be identified.
    """
    boot = this_boot()
    if not boot:
        return clock
    ahead = _ahead_in_directory(directory, boot, flush)
    return lambda: time.clock_gettime(SINCE_BOOT) + ahead


def _ahead_in_directory(directory: Path, boot: str, flush: bool) -> float:
    make_directory(directory, flush=flush)
    path = directory / sha256(boot.encode()).hexdigest()[:32]
    with suppress(FileExistsError):  # another process of this boot was first
        create_file(path, repr(ahead_now()).encode(), flush=flush)
    ahead = _read_number(path)
    if not is_plausible(ahead):
        ahead = ahead_now()
        replace_file(path, repr(ahead).encode(), flush=flush)
    return ahead


def own_lease_clock(clock: Clock) -> Clock | None:
    """The clock of leases that goes with a clock which the user gave; None if that is the time of day.

    It is the clock's own `monotonic` where it has one, as `limpet.testing.FakeClock` has.
    """
    if clock is time.time:
        return None
    found: Clock = getattr(clock, "monotonic", clock)
    return found


def _read_number(path: Path) -> float:
    try:
        return float(path.read_bytes())
    except (OSError, ValueError):
        return float("nan")
