"""Forty steps that add 20 kB each, which nothing makes less, and a log, elsewhere, of what began and what was saved.

With a file "stop-after", the process is killed when this many steps were reported as saved. With a file
"fill-at", the step of that number fills the disk to its last byte with a file "filler", the first time.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Annotated, Any

from effects import die, effect

from limpet import Event, StateGraph, append

STEPS = 40


def page(number: int) -> str:
    return b64encode(Random(number).randbytes(20_000)).decode()


def build(folder: Path) -> StateGraph:
    log = Path((folder / "log-folder").read_text())
    fill_at, stop_after = folder / "fill-at", folder / "stop-after"
    last = stop_after.read_text() if stop_after.exists() else ""

    def grow(ctx: Any) -> dict[str, Any]:
        effect(log, "start", ctx.step)
        if fill_at.exists() and str(ctx.step) == fill_at.read_text():
            fill_at.unlink()
            fill_disk(folder / "filler")
        return {"step": ctx.step, "pages": [page(ctx.step)]}

    def acknowledged(event: Event) -> None:
        if event.type == "checkpoint.save":
            effect(log, "ack", event.data["step"])
            if str(event.data["step"]) == last:
                die()

    schema = {"step": int, "pages": Annotated[list, append]}
    graph = StateGraph(schema, name="filling", observer=acknowledged).add_node("grow", run=grow)
    graph.add_edge("grow", "grow", lambda state: state["step"] < STEPS)
    return graph.set_entry_point("grow").set_finish_point("grow")


def fill_disk(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
