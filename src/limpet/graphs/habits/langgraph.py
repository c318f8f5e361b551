"""What those who come from LangGraph try first: it is recognised, and refused with what to use here instead.

LangGraph isn't imported for that: its objects are known by their modules and names. Nothing that would have another
meaning here, or none, is accepted in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.errors import UsageError

THREAD_KEYS: Final = {
    "thread_id": "give run_id=… instead: it names the run",
    "checkpoint_id": "give checkpoint=… to invoke() or stream() instead: it names a step of the history() of a run",
    "checkpoint_ns": "leave it out: a graph in a node is part of its run, and of its history()",
}
"""The keys of `config["configurable"]` that mean something to LangGraph itself. Any others are the user's."""

KEYWORDS: Final = {
    "stream_mode": "stream() gives an event with the state after each node, and what nodes emit()",
    "subgraphs": "the events of graphs in nodes are among those of stream()",
    "durability": "each step is saved before the next begins; the level of the store says what a save survives",
    "interrupt_before": "give it to compile()",
    "interrupt_after": "give it to compile()",
    "output_keys": "the state that execute() returns has all keys",
    "context": "give config=…, which nodes read with ctx.config, or declare resources",
    "debug": "detailed=True of stream() gives an event for each call of a node",
    "print_mode": 'give observer="log" or "progress" to the graph',
    "version": "there is one kind of events: docs/reference/events.md lists them",
}
"""What LangGraph's `invoke` and `stream` take, by name, and what to do here."""

METHODS: Final = {
    "get_state": "graph.state_at(run_id) is the newest state, and graph.get(run_id).info says what the run asks",
    "get_state_history": "graph.history(run_id) lists the steps, and graph.state_at(run_id, step) has their states",
    "update_state": "graph.resume(run_id, update={…}) merges into the state, and graph.fork(run_id, step, update) "
    "makes a new run of an earlier step",
    "bulk_update_state": "graph.resume(run_id, update={…}) merges into the state",
    "stream_events": "graph.stream(…) gives events, and graph.get(run_id).events() those of a run elsewhere",
    "batch": "graph.start(…) hands each input to the workers; Runs(store).list() has them all",
    "with_config": "give config=… to the call",
    "get_graph": 'graph.draw("mermaid"), "svg" or "text" draws the graph',
    "get_subgraphs": "a graph in a node is part of its run: graph.history(run_id) has its steps",
    "set_conditional_entry_point": "add_conditional_edges(START, …)",
    "add_sequence": "add_edge() for each pair of nodes",
    "checkpointer": "the store that it was compiled with keeps its runs",
}
"""Methods that LangGraph's graphs have, and what does the same here. The async ones begin with an `a`."""

STORE_INSTEAD: Final = 'give store=…, such as "sqlite:///runs.db", which keeps the runs of this graph'
"""What to do in place of giving a checkpointer of LangGraph."""

_CHECKPOINTER = ("langgraph.checkpoint.base", "BaseCheckpointSaver")


def method_advice(name: str) -> str:
    """What to use in place of a method that LangGraph's graphs have; "" for a name that they don't."""
    return METHODS.get(name) or METHODS.get(name.removeprefix("a"), "")


def refuse_keywords(call: str, given: Iterable[str]) -> None:
    """Raise `TypeError` for arguments that a call doesn't take."""
    for name in given:
        unknown = f"{call}() got an unexpected keyword argument {name!r}"
        advice = KEYWORDS.get(name)
        raise TypeError(f"{unknown}: {advice}" if advice else unknown)


def refuse_thread_id(config: Any) -> None:
    """Raise `UsageError` for a config that names a thread: a run is named by its id."""
    keys = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(keys, Mapping):
        return
    for name, advice in THREAD_KEYS.items():
        if name in keys:
            refused = UsageError(f'config["configurable"] has {name!r}, which isn\'t read here')
            raise refused.with_advice(advice)


def refuse_command(value: Any, call: str) -> None:
    """Raise `UsageError` for a `Command` of LangGraph as an input or an answer."""
    if is_of_langgraph(value, "Command"):
        given = UsageError(f"{call} got a Command of LangGraph, which means nothing here")
        raise given.with_advice("resume(run_id, answer) answers what a run asks", "resume")


def refuse_returned(value: Any) -> None:
    """Raise `UsageError` for what a node of LangGraph may return to say which nodes come next."""
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    if is_of_langgraph(first, "Command"):
        raise UsageError(
            "a node returned a Command of LangGraph; return Goto(target, update), and declare goto=[…] at the node"
        )
    refuse_send(first)


def refuse_chosen(chosen: Any) -> None:
    """Raise `UsageError` for what a condition of LangGraph may return besides one target."""
    if isinstance(chosen, list):
        for each in chosen:
            refuse_send(each)
        raise UsageError(
            f"a condition gives one target, not {type(chosen).__name__}; to run several nodes, declare them with "
            "add_parallel_edge() or add_map()"
        )
    refuse_send(chosen)


def refuse_send(value: Any) -> None:
    """Raise `UsageError` for a `Send` of LangGraph."""
    if is_of_langgraph(value, "Send"):
        raise UsageError(
            "a Send of LangGraph means nothing here; add_map() runs a node for each item of a list"
        )


def explain_interrupt(error: BaseException) -> None:
    """Add to the error of LangGraph's `interrupt()` what asks a question here."""
    kind = type(error)
    outside = kind is RuntimeError and "outside of a runnable context" in str(error)
    if (outside or is_of_langgraph(error, "GraphInterrupt")) and not getattr(error, "__notes__", ()):
        error.add_note(
            "interrupt() is LangGraph's: pause(prompt) of limpet asks, and resume(run_id, answer) answers"
        )


def is_checkpointer(value: Any) -> bool:
    """Whether this is a checkpointer of LangGraph."""
    return any((kind.__module__, kind.__name__) == _CHECKPOINTER for kind in type(value).__mro__)


def is_of_langgraph(value: Any, name: str) -> bool:
    """Whether this is an object of LangGraph's class of this name."""
    kind = type(value)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == "langgraph"
