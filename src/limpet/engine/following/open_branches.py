"""What events need to know of the records before theirs: the names of open branches, and what is asked there.

It is a small part of a `Progress`, without states, so that following a run costs as much as what changes in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from limpet.journal.open_parallel_section import Key


class OpenBranch:
    """The run itself, or a branch: what it asks, as data by id, and its own open branches.

    `layers` has the layer of each open task of a data flow; it is None for other branches.
    """

    __slots__ = ("children", "each", "is_open", "layer", "layers", "questions")

    def __init__(self) -> None:
        self.questions: dict[str, dict[str, Any]] = {}
        self.children: dict[Key, OpenBranch] = {}
        self.is_open = False
        self.each: str | None = None
        self.layer: int | None = None
        self.layers: dict[str, int] | None = None

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to know: no branch is open, and nothing is asked."""
        return not (self.is_open or self.questions)

    def open_section(self, opening: Mapping[str, Any]) -> None:
        """Branches begin here, as described by `opening` (see `OpenSection`)."""
        self.is_open = True
        self.each = opening.get("each")
        self.layer = opening.get("layer")
        self.children = {}
        self.layers = None
        if "flow" in opening:
            self.layers = dict(opening["flow"].get("layers", {}))

    def complete(self) -> None:
        """A node completed: its branches and questions are closed."""
        self.is_open = False
        self.children = {}
        self.questions = {}
        self.layers = None

    def complete_layer(self) -> None:
        """A layer of a data flow is done: its tasks are closed, and those of later layers stay open."""
        assert self.layers is not None
        assert self.layer is not None
        for name in [name for name, layer in self.layers.items() if layer <= self.layer]:
            del self.layers[name]
            self.children.pop(name, None)
        self.layer += 1

    def layer_of(self, task: Key) -> int | None:
        """The layer of an open task."""
        if self.layers is None:
            return self.layer
        return self.layers.get(str(task), self.layer)

    def ask(self, questions: Iterable[dict[str, Any]]) -> None:
        """These are asked, and no others."""
        self.questions = {str(question["id"]): question for question in questions}

    def close(self, question_ids: Iterable[str]) -> None:
        """These questions, here or in branches, were answered or withdrawn."""
        for question_id in question_ids:
            self.questions.pop(question_id, None)
        for child in self.children.values():
            child.close(question_ids)

    def all_questions(self) -> Iterator[dict[str, Any]]:
        """What is asked here and in branches."""
        yield from self.questions.values()
        for child in self.children.values():
            yield from child.all_questions()

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Be what a snapshot says: its fields, without the state."""
        self.complete()
        self.ask(fields.get("questions", ()))
        if "section" not in fields:
            return
        opening, branches = fields["section"]
        self.open_section(opening)
        for key, inner, _, _ in branches:
            self.child(key).restore(inner)

    def child(self, key: Key) -> OpenBranch:
        """The branch with this key."""
        return self.children.setdefault(key, OpenBranch())

    def at(self, path: Sequence[Key]) -> OpenBranch:
        """The branch that a path leads to."""
        branch = self
        for key in path:
            branch = branch.child(key)
        return branch

    def is_task(self, path: Sequence[Key]) -> bool:
        """Whether a path leads to a task of a workflow."""
        return bool(path) and self.at(path[:-1]).layer is not None

    def name(self, path: Sequence[Key]) -> str:
        """The name of the branch that a path leads to, as `Progress.path_name` has it."""
        names = []
        branch = self
        in_task = False
        for key in path:
            if not in_task:
                names.append(key if isinstance(key, str) else f"{branch.each}[{key}]")
            in_task = branch.is_open and branch.layer is not None
            branch = branch.child(key)
        return "/".join(names)
