"""The ids of the runs that keep threads: one for each thread and namespace, which people can read.

    langgraph:customer-7                      thread "customer-7"
    langgraph:customer-7|child:6f2c0d1e…      what a graph inside of it has saved, in its namespace
    langgraph:a%2Fb                           thread "a/b"

A thread may have any id, and a run may not. So what isn't a letter, a digit or one of a few signs is written as its
UTF-8 bytes; and of what is too long, a digest takes the place of the end.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

GRAPH: Final = "langgraph"
"""The graph that the heads of threads name."""

_SIGNS: Final = frozenset("-_.:@+=,~")
_LONGEST_THREAD: Final = 100
_LONGEST_NAMESPACE: Final = 88
_DIGEST: Final = 32
"""How many characters of a digest take the place of the end of a long text."""


class ThreadName:
    """A namespace of a thread, and the run that keeps it."""

    __slots__ = ("namespace", "run_id", "thread_id")

    def __init__(self, thread_id: str, namespace: str) -> None:
        self.thread_id = thread_id
        self.namespace = namespace
        self.run_id = run_id_of(thread_id, namespace)


def run_id_of(thread_id: str, namespace: str = "") -> str:
    """The id of the run that keeps a namespace of a thread."""
    run_id = f"{GRAPH}:{_written(thread_id, _LONGEST_THREAD)}"
    if not namespace:
        return run_id
    # In namespaces a bar separates the levels. In threads it is written in another way, so it ends their ids.
    return f"{run_id}|{_written(namespace, _LONGEST_NAMESPACE, also='|')}"


def tag_of(thread_id: str) -> str:
    """The tag that the runs of a thread have, whatever their namespaces."""
    return f"thread:{_written(thread_id, _LONGEST_THREAD)}"


def _written(text: str, longest: int, also: str = "") -> str:
    written = "".join(
        char if (char.isalnum() and char.isprintable()) or char in _SIGNS or char in also else _escaped(char)
        for char in text
    )
    if len(written) <= longest:
        return written
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    # No other text is written with this sign.
    return f"{written[: longest - _DIGEST - 1]}*{digest}"


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
