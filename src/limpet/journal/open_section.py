"""A section that is open: which branches there are, what each starts from, and how far each has come.

Branches that start from a copy of the state cost nothing to store until they change something: what they
start from is in the journal already. So are the items of a map that goes over a list in the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from limpet.journal.encoding.copies import detached_value

if TYPE_CHECKING:
    from limpet.journal.progress import Progress

Key = str | int
"""What tells the branches of a section apart: the node that a branch starts at, or the number of an item."""


class OpenSection:
    """The branches that are under way, or done, between a node and its fan-in; or the graph that a node runs.

    `source` is the node that it follows, or that runs the graph. What an opening is, as data:

        source, branches            parallel edges: the nodes that the branches start at
        source, each, entry, item,  a map: what a branch is called and where it starts, the key of its item, and
          over or items             the key that the items come from, or the items
        source, each, entry, states a map over a graph: the states that each item's starts with, by number
        source, inside, entry,      a node that runs a graph: the same, by the node's name
          states, kept              and those of its keys that are as they are outside, where they are reduced
        source, layer, tasks        a layer of a workflow: its number, and the tasks; each starts with nothing

    `step` is the step that it was opened after: with the branch's name it makes ids that no other branch has.
    What the tasks of a layer came to is taken over into the state when all are done; then it is `folded`. `later` are
    entries that were put into the state's dicts from outside meanwhile: they are newer than what the tasks put there.
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
        "own",
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
        self.own = "states" in opening or self.layer is not None
        self.inside: bool = opening.get("inside", False)
        self.kept: list[str] = opening.get("kept", [])
        self.items: list[Any] = list(state[self.over]) if self.over is not None else opening.get("items", [])
        self.children: dict[Key, Progress] = {}

    @property
    def only(self) -> Progress | None:
        """The one branch, if there is no other and it isn't done."""
        if len(self.children) != 1:
            return None
        child = next(iter(self.children.values()))
        return None if child.done else child

    def label(self, key: Key) -> str:
        """What a branch is called."""
        return key if isinstance(key, str) else f"{self.each}[{key}]"

    def places(self, opening: dict[str, Any]) -> Iterator[tuple[Key, str, Any]]:
        """The branches of an opening: key, the node it starts at, and its state or what goes over its copy of one."""
        if self.layer is not None:
            for task in opening["tasks"]:
                yield task, task, {}
        elif self.own:
            for key, state in opening["states"]:
                yield key, str(self.entry), state
        elif self.item is not None:
            for number, item in enumerate(self.items):
                yield number, str(self.entry), {self.item: item}
        else:
            for name in opening["branches"]:
                yield name, name, {}

    def to_data(self) -> dict[str, Any]:
        """The opening, to be stored again. The states of graphs are stored with their progress."""
        data: dict[str, Any] = {"source": self.source, "step": self.step}
        if self.layer is not None:
            more = {"folded": self.folded, "later": self.later}
            stored = {key: value for key, value in more.items() if value}
            return {**data, "layer": self.layer, "tasks": list(self.children), **stored}
        if self.own:
            kind = {"inside": True, "kept": self.kept} if self.inside else {"each": self.each}
            states = [[key, child.start or {}] for key, child in self.children.items()]
            return {**data, **kind, "entry": self.entry, "states": states}
        if self.each is None:
            return {**data, "branches": list(self.children)}
        data |= {"each": self.each, "entry": self.entry}
        items = {"items": self.items} if self.over is None else {"over": self.over}
        return {**data, "item": self.item, **items}

    def take_over(self, state: dict[str, Any], tasks: Iterable[Progress]) -> None:
        """Add what tasks came to to a state: to its lists at their ends, and to its dicts, where `later` stays
        newer.
        """
        for task in tasks:
            for key, value in task.state.items():
                if type(value) is list:
                    state[key].extend(value)
                else:
                    state[key].update(value)
        for merges in self.later:
            for key, entries in merges.items():
                state[key].update(detached_value(entries))

    def keep(self, keys: Iterable[str], state: dict[str, Any]) -> None:
        """These keys of the state are about to change: branches that have begun keep what they started from."""
        changing = list(keys)
        if self.over in changing:
            self.items, self.over = detached_value(self.items), None
        for child in self.children.values():
            if child.base is None or child.start is not None:
                continue
            inherited = [key for key in changing if key not in child.changed]
            if child.section is not None:
                child.section.keep(inherited, child.state)
            for key in inherited:
                child.changed[key] = None
                if key in state:
                    dict.__setitem__(child.state, key, detached_value(state[key]))
