"""Workers in processes of their own that share a store, and what their common log proves."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import limpet
from e2e.crash_graphs import fleet

FULL = bool(os.environ.get("LIMPET_FULL"))
"""Whether tests take the time that the promises speak of, rather than a part of it."""
PATIENCE = 300.0 if FULL else 100.0

Line = dict[str, Any]


class Fleet:
    """A store, the workers that share it, and the log that their nodes write."""

    def __init__(self, folder: Path, url: str, launch: Callable[..., Any]) -> None:
        self.folder, self.url, self._launch = folder, url, launch
        self.store = limpet.open_store(url)
        self.graphs = fleet.build(folder)
        for graph in self.graphs.values():
            graph.compile(store=self.store)

    def worker(self, **settings: Any) -> Any:
        """Another worker. It may not have begun yet."""
        url = settings.pop("store", self.url)
        return self._launch("worker", self.folder, url, json.dumps({"poll": 0.2, **settings}))

    def start(self, graph: str, run_id: str, **given: Any) -> Any:
        """Queue a run."""
        return self.graphs[graph].start(given, run_id=run_id)

    def let(self, run_id: str, *nodes: str) -> None:
        """Let a node of a gated run go on, when it runs or now."""
        for node in nodes:
            (self.folder / f"{run_id}.{node}").touch()

    @property
    def log(self) -> list[Line]:
        """All that has happened so far, in order."""
        file = self.folder / "log"
        text = file.read_text() if file.exists() else ""
        return [
            json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()
        ]  # the last may be half there

    def lines(self, did: str, **about: Any) -> list[Line]:
        """What has happened of one kind."""
        wanted = {"did": did, **about}
        return [line for line in self.log if all(line.get(key) == value for key, value in wanted.items())]

    def wait(self, condition: Callable[[], Any]) -> Any:
        """Wait until something is so, and give what it is."""
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < deadline, (
                f"it didn't come true in {PATIENCE:g} s; log: {self.log[-20:]}"
            )
            time.sleep(0.02)
        return found


def steps_begun_after_they_were_saved(log: list[Line]) -> list[Line]:
    """Nodes that were called although the journal had had their step by then."""
    saved: set[tuple[str, str]] = set()
    again = []
    for line in log:
        if line["did"] == "checkpoint.save":
            saved.add((line["run"], place(line)))
        elif line["did"] == "begin" and (line["run"], place(line)) in saved:
            again.append(line)
    return again


def place(line: Line) -> str:
    """A node, by the whole way to it. A task of a workflow is a branch of one node."""
    branch, node = line["branch"], str(line["node"])
    return branch if branch.rpartition("/")[2] == node else f"{branch}/{node}".lstrip("/")


def runs_in_two_hands(log: list[Line]) -> list[tuple[Line, Line]]:
    """Nodes that began in one process while another, which lived, was in the middle of one of the same run."""
    finished = {(line["pid"], line["key"]) for line in log if line["did"] == "end"}
    at_work: dict[str, Line] = {}
    both = []
    for line in log:
        if line["did"] == "begin":
            other = at_work.get(line["run"])
            if other is not None and other["pid"] != line["pid"]:
                both.append((other, line))
            if (line["pid"], line["key"]) in finished:
                at_work[line["run"]] = line
        elif line["did"] == "end" and at_work.get(line["run"], line)["key"] == line["key"]:
            at_work.pop(line["run"], None)
    return both


def check_journals(log: list[Line]) -> None:
    """Each fence was one process's, each record was written under one, and by its holder; none under an older one."""
    holders: dict[tuple[str, int], int] = {}
    written: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for line in log:
        if line["did"] == "claim":
            assert holders.setdefault((line["run"], line["fence"]), line["pid"]) == line["pid"], line
        elif line["did"] == "append" and line["last"] >= line["first"]:
            assert holders[line["run"], line["fence"]] == line["pid"], line
            written[line["run"]].append((line["first"], line["last"], line["fence"]))
    for run, parts in written.items():
        for (_, last, fence), (first, _, next_fence) in pairwise(sorted(parts)):
            assert last < first, (run, parts)
            assert fence <= next_fence, (run, parts)
