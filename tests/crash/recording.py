"""What the nodes of the crash suites record, so that the crash kit can compare it.

Every call records the effect `start` with its idempotency key, every fan-in the effect `join` with what it got, and
what happens inside of a `once` is the effect `charge`.
"""

from __future__ import annotations

import os
from typing import Any

from limpet import Event, once
from limpet.testing import effects


def begin(ctx: Any) -> None:
    """A node's body begins."""
    effects.record("start", ctx.idempotency_key)


def join(*results: object) -> None:
    """A fan-in has these results."""
    effects.record("join", " ".join(map(str, results)))


def pay(ctx: Any, key: str, amount: Any) -> Any:
    """Something that must not happen again once its result is saved. When it is, the effect `paid` is recorded."""
    receipt = once(key, charge, ctx, key, amount)
    effects.record("paid", f"{ctx.idempotency_key} {key}")
    return receipt


def charge(ctx: Any, key: str, amount: Any) -> tuple[str, Any]:
    effects.record("charge", f"{ctx.idempotency_key} {key}")
    return "receipt", amount


def note_save(event: Event) -> None:
    """An observer that has the log of the kit know what was acknowledged to it, as the kit's streams do."""
    if event.type != "checkpoint.save" or not event.data["node"]:
        return
    note: dict[str, Any] = {"note": "event", "node": None}
    if event.data["node"] == "after_layer":
        note["checkpoint"] = f"{event.data['run_id']}@{event.data['step']}"
    else:
        names = [event.data.get("branch"), event.data["node"]]
        note["node"] = "/".join(filter(None, names))
    effects.append(os.environ[effects.FILE], note)
