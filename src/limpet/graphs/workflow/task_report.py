"""What a task says besides its result: messages, decisions, context, and changes to what is still to be done.

A change is a decision too. It takes effect when the layer is done, and is stored with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.errors import UsageError
from limpet.graphs.workflow.state import TaskResult

ADD_TASK: Final = "add_task"
SKIP_TASKS: Final = "skip_tasks"
SKIP_LAYERS: Final = "skip_layers"
ANSWER: Final = "answer"
DECISION: Final = "decision"
REFUSED: Final = "refused"

_TAKES: Final = ("name", "run", "depends_on", "optional", "arguments", "before", "may_fail")


class TaskReport:
    """What one call has said so far. It counts when the call is over, and completes."""

    __slots__ = ("by", "context", "decisions", "messages", "tasks")

    def __init__(self, by: str) -> None:
        self.by = by
        self.messages: list[Any] = []
        self.decisions: list[dict[str, Any]] = []
        self.context: dict[str, Any] = {}
        self.tasks: dict[str, Any] = {}
        """The tasks that are to be added, by name."""

    def message(self, message: Any) -> None:
        """Add a message."""
        self.messages.append(message)

    def decide(self, decision: Any, details: Mapping[str, Any]) -> None:
        """Add a decision: a text, or a dict. Raises `UsageError` for anything else."""
        if isinstance(decision, Mapping):
            data = {**decision, **details}
        elif isinstance(decision, str):
            data = {"decision": decision, **details}
        else:
            raise UsageError(f"a decision is a str or a dict, not {type(decision).__name__}")
        _check_keys("a decision", data)
        self.decisions.append({**data, "kind": DECISION, "by": self.by})

    def share(self, values: Mapping[str, Any]) -> None:
        """Merge values into the context. Raises `UsageError` unless they are a dict by name."""
        if not isinstance(values, Mapping):
            raise UsageError(f"context is a dict to be merged, not {type(values).__name__}")
        _check_keys("the context", values)
        self.context.update(values)

    def answered(self, question_id: str, prompt: str, answer: Any) -> None:
        """Somebody has answered a question; an answer that is secret is given as a mask."""
        told = {"kind": ANSWER, "by": self.by, "question": question_id, "prompt": prompt, "answer": answer}
        self.decisions.append(told)

    def add_task(self, task: Mapping[str, Any]) -> None:
        """Decide that there is one more task."""
        decision = {**task, "kind": ADD_TASK, "by": self.by}
        self.decisions.append(decision)
        self.tasks[task["name"]] = decision

    def skip(self, tasks: Iterable[str], reason: str) -> None:
        """Decide that tasks aren't to run."""
        named = list(tasks)
        self.decisions.append({"kind": SKIP_TASKS, "by": self.by, "tasks": named, "reason": reason})

    def skip_layers(self, count: int, reason: str) -> None:
        """Decide that the next layers aren't to run."""
        if type(count) is not int or count < 1:
            raise UsageError(f"skip_layers() takes a whole number from 1, not {count!r}")
        self.decisions.append({"kind": SKIP_LAYERS, "by": self.by, "layers": count, "reason": reason})

    def take(self, result: TaskResult) -> None:
        """Add what was returned, but for changes to what is to be done: whether they can be is for others to say."""
        for kind in ("messages", "decisions", "skip", "add_tasks"):
            given = getattr(result, kind)
            if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
                raise UsageError(f"{kind} of a TaskResult is a list, not {type(given).__name__}")
        self.messages += result.messages
        for decision in result.decisions:
            self.decide(decision, {})
        self.share(result.context)

    def besides_answers(self) -> dict[str, Any]:
        """All of it but what people have answered, which they may be asked anywhere."""
        said = self.update()
        said["decisions"] = [each for each in self.decisions if each["kind"] != ANSWER]
        return said

    def update(self) -> dict[str, Any]:
        """All of it as an update of the state; what there is none of is left out."""
        said: dict[str, Any] = {
            "messages": self.messages, "decisions": self.decisions, "context": self.context
        }  # fmt: skip
        return {key: value.copy() for key, value in said.items() if value}


def task_to_add(given: Any) -> dict[str, Any]:
    """What `add_task` was told, as data. Raises `UsageError` for what it doesn't take."""
    if not isinstance(given, Mapping):
        raise UsageError(f"a task to be added is described by a dict, not {type(given).__name__}")
    unknown = [key for key in given if key not in _TAKES]
    if unknown or not isinstance(given.get("name"), str):
        takes = ", ".join(_TAKES)
        has = ", ".join(map(repr, given)) or "nothing"
        raise UsageError(
            f"a task to be added is described by {takes}, with a name that is a str, not by {has}"
        )
    return {key: value for key, value in given.items() if value}


def _check_keys(what: str, data: Mapping[Any, Any]) -> None:
    for key in data:
        if type(key) is not str:
            raise UsageError(f"{what} has strs as keys, not {type(key).__name__}: {key!r}")
