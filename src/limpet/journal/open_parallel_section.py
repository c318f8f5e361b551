"""An open section: which branches it has, what each starts from, and the progress of each.

A branch that starts from a copy of the state costs no bytes until it changes something: the state it
starts from is in the journal already. So are the items of a map over a list in the state.

A workflow that runs as data flow has one open section from its first task to its last (`OpenFlow`). Tasks are added
to it when they can begin. When all tasks of a layer are done, what they returned is folded into the state and they
leave the section; tasks of later layers stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from limpet.journal.encoding.codec import detached_value
from limpet.journal.waits import DONE

if TYPE_CHECKING:
    from limpet.journal.delta import Delta
    from limpet.journal.progress import Progress

Key = str | int
"""What identifies a branch within its section: the node that the branch starts at, or the number of an item."""


OUTSIDE = ""
"""Stands for what no task of the flow has shared: it was in the state before the flow began."""

BEGIN = "begin"
"""In a change of a flow: the tasks that begin, by name, each with its layer."""
SKIP = "skip"
"""The tasks that are skipped, by name, each with its record."""
ADD = "dag"
"""The tasks that were added or have more dependencies now, by name, each as data."""
REFUSE = "refused"
"""The decisions that can't be applied, by the task that decided: they are added to its decisions."""
MERGE = "merged"
"""The tasks whose shared values all tasks to come see: which task shared them makes no difference any longer."""


Dag = Mapping[str, Mapping[str, Any]]
Place = tuple[int, ...]
"""By what tasks are ordered: as they are declared, and after those the ones that were added, in the order of the
tasks that added them. In which order tasks were added at the same time makes no difference."""


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
        source, layer, tasks, flow  a workflow that runs as data flow: the layer that is done next, the tasks that
                                    have begun, and what `OpenFlow` keeps

    `own_state` means that each branch has a state of its own rather than a copy of the run's. `step` is the step
    after which the section was opened: together with a branch's name it makes ids that no other branch has. What
    the tasks of a layer return is folded into the state when all are done; then it is `folded`. `later` is what was
    added to the state from outside meanwhile: entries that were merged into its dicts are newer than what the tasks
    return, and in a data flow `layer` is the one that was to be done next. `flow` is None unless this is a data flow.
    """

    __slots__ = (
        "children",
        "each",
        "entry",
        "flow",
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
        self.later: list[dict[str, Any]] = opening.get("later", [])
        self.flow: OpenFlow | None = None
        if "flow" in opening:
            self.flow = OpenFlow(opening["flow"], state)
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
        children = list(self.children.values())
        if self.flow is not None:
            children = [child for child in children if not child.done]
        if len(children) != 1:
            return None
        return None if children[0].done else children[0]

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
            if self.flow is not None:
                data["flow"] = self.flow.to_data()
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

    def layer_of(self, task: Key) -> int:
        """The layer of a task in this section."""
        assert self.layer is not None
        if self.flow is None:
            return self.layer
        return self.flow.layers[str(task)]

    def fold_layer(self, state: dict[str, Any]) -> None:
        """All tasks of the layer are done: add what they returned to the state, in the order of the tasks."""
        self.folded = True
        if self.flow is None:
            self._fold(state, self.children.values())
            return
        done = []
        for name, task in self.flow.in_order(self.children, state["dag"]):
            if self.flow.layers[name] == self.layer:
                done.append(task)
                self.flow.note_shared(name, task.state)
        self._fold(state, done)

    def fold_done(self, state: dict[str, Any]) -> None:
        """Add what the finished tasks returned to a state, although other tasks aren't done."""
        if self.flow is None:
            self._fold(state, [child for child in self.children.values() if child.done])
        else:
            self._fold(state, [task for _, task in self.flow.in_order(self.children, state["dag"])])

    def next_layer(self) -> None:
        """The layer of a data flow is folded: its tasks leave the section, and the next layer is to be done."""
        assert self.flow is not None
        assert self.layer is not None
        for name in [name for name, layer in self.flow.layers.items() if layer <= self.layer]:
            del self.flow.layers[name]
            del self.children[name]
        self.layer += 1
        self.folded = False

    def note_addition(self, change: Delta) -> None:
        """Something is added to the state from outside, while tasks run."""
        added: dict[str, Any] = detached_value({**change.merges, **change.appends})
        if self.flow is not None:
            added["layer"] = self.layer
        self.later.append(added)

    def merge_shared(self, names: Iterable[str]) -> None:
        """All tasks to come see what these tasks of a data flow have shared, in this order: keep it once."""
        flow = self.flow
        assert flow is not None
        for name in names:
            shared = flow.shared.pop(name)
            # Messages from outside that came before keep their place. Other values are newer than those of tasks.
            for added in self.later:
                if "messages" in added and added.get("layer", 0) <= shared["layer"]:
                    flow.add_outside({"messages": added.pop("messages")})
            flow.add_outside(shared)

    def drop_task(self, name: Key) -> None:
        """A task is no longer one of the workflow's, or starts over: forget it."""
        self.children.pop(name, None)
        if self.flow is not None:
            self.flow.forget(str(name))

    def _fold(self, state: dict[str, Any], tasks: Iterable[Progress]) -> None:
        """Add what tasks returned to a state: items to its lists, entries to its dicts. `later` stays newer."""
        for task in tasks:
            for key, value in task.state.items():
                if type(value) is list:
                    state[key].extend(value)
                else:
                    state[key].update(value)
        for added in self.later:
            for key, entries in added.items():
                if type(entries) is dict:
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


def places_of(dag: Dag) -> dict[str, Place]:
    """The place of each task."""
    places: dict[str, Place] = {}
    added: dict[str, int] = {}
    for name, data in dag.items():
        added_by = data.get("added_by")
        if added_by in places:
            places[name] = (1, *places[added_by], added.get(added_by, 0))
            added[added_by] = added.get(added_by, 0) + 1
        else:
            places[name] = (0, len(places))
    return places


class OpenFlow:
    """What the section of a data flow knows besides its branches.

    `layers` has the layer of each task in the section. `shared` has, for each folded task that shared anything, its
    `context` and `messages`: a task sees only what the tasks that it depends on have shared.
    """

    __slots__ = ("_places", "layers", "shared")

    def __init__(self, opening: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.layers: dict[str, int] = dict(opening.get("layers", ()))
        self.shared: dict[str, dict[str, Any]] = dict(opening.get("shared", ()))
        self._places: dict[str, Place] = {}
        if "shared" not in opening and (state["context"] or state["messages"]):
            self.shared[OUTSIDE] = {"context": dict(state["context"]), "messages": list(state["messages"])}

    def to_data(self) -> dict[str, Any]:
        """What a snapshot has of it."""
        return {"layers": self.layers, "shared": self.shared}

    def in_order(self, children: Mapping[Any, Progress], dag: Dag) -> list[tuple[str, Progress]]:
        """The tasks that are done, by layer and then in the order of declaration."""
        done = [(str(name), child) for name, child in children.items() if child.done]
        if len(done) > 1:
            places = self.places(dag)
            done.sort(key=lambda task: (self.layers[task[0]], places[task[0]]))
        return done

    def places(self, dag: Dag) -> Mapping[str, Place]:
        """The place of each task in the order of declaration; see `Place`."""
        if len(self._places) != len(dag):  # tasks are only ever added
            # Of a copy: tasks ask for it in their threads, while the loop may add one.
            self._places = places_of(dict(dag))
        return self._places

    def add_outside(self, shared: Mapping[str, Any]) -> None:
        """All tasks to come see these values: keep them without their origin."""
        merged = self.shared.get(OUTSIDE, {})
        self.shared[OUTSIDE] = {
            "context": {**merged.get("context", {}), **shared.get("context", {})},
            "messages": [*merged.get("messages", ()), *shared.get("messages", ())],
        }

    def forget(self, name: str) -> None:
        """A task is no longer one of the workflow's, or starts over."""
        self.layers.pop(name, None)
        self.shared.pop(name, None)
        self._places = {}

    def note_shared(self, name: str, returned: Mapping[str, Any]) -> None:
        """A task is folded: keep what it has shared."""
        shared = {key: returned[key] for key in ("context", "messages") if returned.get(key)}
        if shared:
            self.shared[name] = {**shared, "layer": self.layers[name]}


def advance(progress: Progress, change: Mapping[str, Any]) -> None:
    """Tasks of a data flow are done: tasks were added by them, and others begin or are skipped."""
    section = progress.section
    if section is None or section.flow is None:
        raise ValueError("no data flow is open")
    new = type(progress)
    if ADD in change:
        progress.state["dag"].update(change[ADD])
    for name, decisions in change.get(REFUSE, {}).items():
        returned = section.children[name].state
        dict.__setitem__(returned, "decisions", [*returned.get("decisions", ()), *decisions])
    section.merge_shared(change.get(MERGE, ()))
    for name, layer in change.get(BEGIN, {}).items():
        section.flow.layers[name] = layer
        section.children[name] = new(progress.run_id, "", "", name, {}, start={})
    for name, record in change.get(SKIP, {}).items():
        section.flow.layers[name] = record["layer"]
        section.children[name] = new(progress.run_id, "", "", DONE, {"tasks": {name: record}})


def states_with_tasks(progress: Progress) -> list[Mapping[str, Any]]:
    """The state, and what the finished tasks of a data flow returned that isn't folded into it yet."""
    if progress.section is None or progress.section.flow is None:
        return [progress.state]
    done = [child.state for child in list(progress.section.children.values()) if child.done]
    return [progress.state, *done]


# The shapes of what is stored: see `record_shapes.py`, which relies on these


def is_change(value: Any) -> bool:
    """Whether this is what `advance` takes."""
    if type(value) is not dict:
        return False
    for key, part in value.items():
        if key == MERGE:
            if type(part) is not list or not all(type(name) is str for name in part):
                return False
        elif key not in _CHANGES or type(part) is not dict or not _all(_CHANGES[key], part):
            return False
    return True


def is_flow(value: Any) -> bool:
    """Whether this is what a snapshot has of an `OpenFlow`."""
    if type(value) is not dict or not value.keys() <= {"layers", "shared"}:
        return False
    layers = value.get("layers", {})
    shared = value.get("shared", {})
    if type(layers) is not dict or type(shared) is not dict:
        return False
    return _all(_is_count, layers) and _all(is_addition, shared)


def is_addition(value: Any) -> bool:
    """Whether this is what a task has shared, or what was added to the state from outside."""
    if type(value) is not dict:
        return False
    return all(
        _is_count(part) if key == "layer" else type(key) is str and type(part) in (dict, list)
        for key, part in value.items()
    )


def _all(check: Callable[[Any], bool], parts: dict[Any, Any]) -> bool:
    return all(type(name) is str and check(part) for name, part in parts.items())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_record(value: Any) -> bool:
    return _is_task(value) and _is_count(value.get("layer"))


def _is_task(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str for key in value)


_CHANGES: dict[str, Callable[[Any], bool]] = {
    BEGIN: _is_count,
    SKIP: _is_record,
    ADD: _is_task,
    REFUSE: lambda decisions: type(decisions) is list and all(map(_is_task, decisions)),
}
