"""The log of what supervisors do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def log() -> Logger:
    """The logger `limpet.supervisor`. `logging` is imported late: few programs supervise."""
    from logging import getLogger

    return getLogger("limpet.supervisor")
