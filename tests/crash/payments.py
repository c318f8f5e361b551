"""What the log of a killed run must show of calls of `once`."""

from __future__ import annotations

from typing import Any


def check_payments(notes: list[dict[str, Any]]) -> None:
    """Nothing is paid for again once its result was saved, or `once` had returned."""
    charged: dict[str, str] = {}
    paid: set[str] = set()
    for note in notes:
        if note["note"] == "ack" and note["once"] in charged:
            paid.add(charged[note["once"]])
        elif note["note"] == "effect" and note["name"] == "charge":
            assert note["key"] not in paid, f"{note['key']} was paid for twice"
            charged[note["call"]] = note["key"]
        elif note["note"] == "effect" and note["name"] == "paid":
            paid.add(note["key"])
