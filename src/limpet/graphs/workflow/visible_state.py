"""What a task sees of its workflow when that runs as data flow: what the tasks that it comes after have added.

Other tasks may be done as well, or not, depending on how fast they were. If a task could see what they added, a
resumed run could differ from one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from limpet.graphs.workflow.order import ancestors, dependencies_of

if TYPE_CHECKING:
    from limpet.graphs.workflow.flow import Flow, Shared
    from limpet.journal.progress import Progress


def visible_dag(flow: Flow, task: str) -> Mapping[str, Any]:
    """The tasks as one of them sees them: without those that were added by tasks that it doesn't come after."""
    dag = flow.progress.state["dag"]
    if not flow.changes_tasks:
        return dag  # type: ignore[no-any-return]  # the state is a user's dict to mypy
    dag = dict(dag)
    earlier = ancestors(dag, task)
    hidden = {
        name for name, data in dag.items() if data.get("added_by") in dag and data["added_by"] not in earlier
    }
    hidden.discard(task)
    if not hidden:
        return dag
    return {name: _without(data, hidden) for name, data in dag.items() if name not in hidden}


def _without(data: Mapping[str, Any], hidden: Set[str]) -> Mapping[str, Any]:
    """A task's data without dependencies that are hidden."""
    if hidden.isdisjoint(dependencies_of(data)):
        return data
    seen = dict(data)
    for key in ("depends_on", "optional"):
        names = [name for name in data.get(key, ()) if name not in hidden]
        if names:
            seen[key] = names
        else:
            seen.pop(key, None)
    return seen


class VisibleState(Mapping[str, Any]):
    """The state of a workflow as one of its tasks sees it. Each part is found when it is asked for.

    It is read in the threads of tasks, while the loop adds to the state.
    """

    def __init__(self, flow: Flow, task: str) -> None:
        self._flow = flow
        self._task = task

    def __getitem__(self, key: str) -> Any:
        flow = self._flow
        match key:
            case "tasks":
                return _Records(flow.progress, self._task)
            case "context":
                context = dict(flow.before.context)
                for each in [*self._shared(), *flow.later]:
                    context.update(each.context)
                return context
            case "messages":
                # What came from outside is before what tasks of later layers add, as in the state itself.
                parts = sorted([*flow.later, *self._shared()], key=lambda each: each.layer)
                return [message for each in (flow.before, *parts) for message in each.messages]
            case "decisions":
                return [decision for each in (flow.before, *self._shared()) for decision in each.decisions]
            case "dag":
                return visible_dag(flow, self._task)
            case _:
                return flow.progress.state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._flow.progress.state)

    def __len__(self) -> int:
        return len(self._flow.progress.state)

    @property
    def whole(self) -> Mapping[str, Any]:
        """The whole state of the workflow."""
        return self._flow.progress.state

    def as_dict(self) -> dict[str, Any]:
        """All of it, as plain data."""
        data = {key: self[key] for key in self}
        data["tasks"] = dict(data["tasks"])
        return data

    def _shared(self) -> list[Shared]:
        """What the tasks that this one comes after have shared, by layer and then in the order of declaration."""
        # The loop only ever adds to this dict, and `list` copies it in one go.
        shared = list(self._flow.shared.items())
        if not shared:
            return []
        visible = [each for each in shared if self._flow.sees(self._task, each[0])]
        places = self._flow.places
        visible.sort(key=lambda each: (each[1].layer, places[each[0]]))
        return [each for _, each in visible]


class _Records(Mapping[str, Any]):
    """The records of the tasks that a task comes after."""

    def __init__(self, progress: Progress, task: str) -> None:
        self._progress = progress
        self._task = task

    def __getitem__(self, name: str) -> Any:
        # First among the tasks that aren't folded: the loop folds a task before it takes it away from there.
        section = self._progress.section
        assert section is not None
        child = section.children.get(name)
        if child is not None and child.done:
            return child.state["tasks"][name]
        return self._progress.state["tasks"][name]

    def __iter__(self) -> Iterator[str]:
        dag = self._progress.state["dag"]
        seen = ancestors(dag, self._task)
        return iter([name for name in list(dag) if name in seen])

    def __len__(self) -> int:
        return sum(1 for _ in self)
