"""An open section: which branches it has, what each starts from, and the progress of each.

A branch that starts from a copy of the state costs no bytes until it changes something: the state it
starts from is in the journal already. So are the items of a map over a list in the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from limpet.journal.encoding.codec import detached_value

if TYPE_CHECKING:
    from limpet.journal.progress import Progress

Key = str | int
"""What identifies a branch within its section: the node that the branch starts at, or the number of an item."""


class OpenSection:
    """The branches between a node and its fan-in, or the graph that a node runs.

    `source` is the node that it follows, or that runs the graph. It is made from an *opening*, which is data:

        source, branches            parallel edges: the nodes that the branches start at
        source, each, entry, item,  a map: the name of its branches and the node they start at, the key of the item,
          over or items             and the key that has the items, or the items
        source, each, entry, states a map over a graph: the states that the graphs start with, by item number
        source, inside, entry,      a node that runs a graph: the state it starts with, by the node's name,
          states, kept              and those of its keys that are as they are outside, where they have a reducer
        source, layer, tasks        a layer of a workflow: its number and its tasks; each starts with an empty state

    `own_state` means that each branch has a state of its own rather than a copy of the run's. `step` is the step
    after which the section was opened: together with a branch's name it makes ids that no other branch has. What
    the tasks of a layer return is folded into the state when all are done; then it is `folded`. `later` are entries
    that were merged into the state's dicts from outside meanwhile: they are newer than what the tasks return.
    """

    __slots__ = (
        "children",
        "each",
        "entry",
        "folded",
        "inside",
        "item",
        "items",
        "kept",
        "later",
        "layer",
        "over",
        "own_state",
        "source",
        "step",
    )

    def __init__(self, opening: dict[str, Any], state: dict[str, Any], step: int) -> None:
        self.source: str = opening["source"]
        self.step: int = opening.get("step", step)
        self.each: str | None = opening.get("each")
        self.entry: str | None = opening.get("entry")
        self.item: str | None = opening.get("item")
        self.over: str | None = opening.get("over")
        self.layer: int | None = opening.get("layer")
        self.folded: bool = opening.get("folded", False)
        self.later: list[dict[str, dict[Any, Any]]] = opening.get("later", [])
        self.own_state = "states" in opening or self.layer is not None
        self.inside: bool = opening.get("inside", False)
        self.kept: list[str] = opening.get("kept", [])
        if self.over is not None:
            self.items: list[Any] = list(state[self.over])
        else:
            self.items = opening.get("items", [])
        self.children: dict[Key, Progress] = {}

    @property
    def only_unfinished(self) -> Progress | None:
        """The branch of a section that has a single one, unless that is done."""
        if len(self.children) != 1:
            return None
        child = next(iter(self.children.values()))
        return None if child.done else child

    def label(self, key: Key) -> str:
        """The name of a branch."""
        return key if isinstance(key, str) else f"{self.each}[{key}]"

    def branch_starts(self, opening: dict[str, Any]) -> Iterator[tuple[Key, str, Any]]:
        """For each branch its key, the node it starts at, and its state or what is put over its copy of one."""
        if self.layer is not None:
            for task in opening["tasks"]:
                yield task, task, {}
        elif self.own_state:
            for key, state in opening["states"]:
                yield key, str(self.entry), state
        elif self.item is not None:
            for number, item in enumerate(self.items):
                yield number, str(self.entry), {self.item: item}
        else:
            for name in opening["branches"]:
                yield name, name, {}

    def to_data(self) -> dict[str, Any]:
        """The opening, to be stored in a snapshot. Graphs that have begun are stored with their progress instead."""
        data: dict[str, Any] = {"source": self.source, "step": self.step}
        if self.layer is not None:
            data["layer"] = self.layer
            data["tasks"] = list(self.children)
            if self.folded:
                data["folded"] = True
            if self.later:
                data["later"] = self.later
        elif self.own_state:
            if self.inside:
                data["inside"] = True
                data["kept"] = self.kept
            else:
                data["each"] = self.each
            data["entry"] = self.entry
            data["states"] = [[key, child.start or {}] for key, child in self.children.items()]
        elif self.each is None:
            data["branches"] = list(self.children)
        else:
            data["each"] = self.each
            data["entry"] = self.entry
            data["item"] = self.item
            if self.over is None:
                data["items"] = self.items
            else:
                data["over"] = self.over
        return data

    def fold_into(self, state: dict[str, Any], tasks: Iterable[Progress]) -> None:
        """Add what tasks returned to a state: items to its lists, entries to its dicts. `later` stays newer."""
        for task in tasks:
            for key, value in task.state.items():
                if type(value) is list:
                    state[key].extend(value)
                else:
                    state[key].update(value)
        for merges in self.later:
            for key, entries in merges.items():
                state[key].update(detached_value(entries))

    def keep_inherited(self, keys: Iterable[str], state: dict[str, Any]) -> None:
        """These keys of the state are about to change: branches that have begun keep the values they started from."""
        changing = list(keys)
        if self.over in changing:
            self.items = detached_value(self.items)
            self.over = None
        for child in self.children.values():
            if child.base is None or child.start is not None:
                continue
            inherited = [key for key in changing if key not in child.changed]
            if child.section is not None:
                child.section.keep_inherited(inherited, child.state)
            for key in inherited:
                child.changed[key] = None
                if key in state:
                    dict.__setitem__(child.state, key, detached_value(state[key]))
