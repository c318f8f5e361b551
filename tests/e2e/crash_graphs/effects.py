"""What nodes do to the world outside: lines in a file, and waiting for others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def effect(folder: Path, *words: object) -> None:
    """Add a line to the file "effects". It is with the kernel when this returns."""
    file = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


def die() -> None:
    """kill -9 of this very process."""
    os.kill(os.getpid(), signal.SIGKILL)


def used_up(file: Path) -> bool:
    """Whether the file was there; it is gone then, so only one process finds it."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def wait_until_there(file: Path, or_used_up: Path | None = None) -> None:
    """Wait until a file exists. Raises `RuntimeError` if the other one comes first."""
    deadline = time.monotonic() + 60
    while not file.exists():
        if or_used_up is not None and used_up(or_used_up):
            raise RuntimeError("told to fail")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} never came")
        time.sleep(0.005)
