"""A process that uses one graph as its orders say: `actor.py GRAPH FOLDER [settings of compile as JSON]`.

An order is a JSON line: the method to call, its arguments and, with `at`, the file to wait for, so that several
actors begin at the same moment. The answer is a JSON line: what the call returned, or what it raised.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
import time
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from limpet import StateGraph


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    settings = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    graph: StateGraph = importlib.import_module(name).build(folder)
    graph.compile(**{"store": str(folder / "runs.db"), "preserve": True, **settings})
    say({"ready": os.getpid()})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            say({"returned": obey(graph, **order)})
        except Exception as error:
            say({"raised": type(error).__name__, "text": str(error), **about(error)})


def obey(graph: StateGraph, do: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a method of the graph, or do one of the few other things that a test needs of a process."""
    if "at" in kwargs:
        wait_for(Path(kwargs.pop("at")))
    if do == "limit_files":
        resource.setrlimit(resource.RLIMIT_FSIZE, (args[0], resource.RLIM_INFINITY))
        return None
    outcome = getattr(graph, do)(*args, **kwargs)
    return plain(asyncio.run(outcome) if asyncio.iscoroutine(outcome) else outcome)


def about(error: Exception) -> dict[str, Any]:
    """What an error carries, and what it was caused by."""
    cause = error.__cause__
    told = {name: plain(value) for name, value in vars(error).items() if name != "cause"}
    return {**told, "cause": None if cause is None else [type(cause).__name__, str(cause)]}


def plain(value: Any) -> Any:
    """A value that JSON can show."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def wait_for(file: Path) -> None:
    """Look for a file, as often as possible, until it is there."""
    deadline = time.monotonic() + 60
    name = str(file)
    while not os.path.exists(name):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} never came")


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
