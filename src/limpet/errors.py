"""Every error that Limpet raises, in five families.

Definition (the graph is wrong), usage (a call is wrong), store (what keeps the run failed), run (the
run itself failed, paused or was cancelled) and conflict (somebody else advances the run). Each has a
stable `code`, and carries what it speaks of as attributes, so that a program need not parse the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class LimpetError(Exception):
    """The root of all of them: `except LimpetError` catches whatever the library raises."""

    code = "limpet"


class DefinitionError(LimpetError):
    """The graph can't be compiled. `mistakes` lists everything that is wrong with it at once."""

    code = "definition"

    def __init__(self, mistakes: str | Iterable[str], graph: str | None = None, kind: str = "graph") -> None:
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        self.graph = graph
        where = f"{kind} {graph!r}: " if graph else ""
        if len(self.mistakes) == 1:
            super().__init__(where + self.mistakes[0])
        else:
            lines = "".join(f"\n  - {mistake}" for mistake in self.mistakes)
            super().__init__(f"{where}{len(self.mistakes)} mistakes:{lines}")


class WorkflowChanged(DefinitionError):
    """The tasks of a workflow aren't those that a run was saved with. Nothing was run, and nothing changed."""

    code = "workflow-changed"

    def __init__(self, run_id: str, workflow: str, account: str, place: str = "") -> None:
        self.run_id, self.account = run_id, account
        where = f" (at {place!r})" if place else ""
        super().__init__(
            f"workflow {workflow!r}{where} has changed since run {run_id!r} was saved with it:\n{account}\n"
            'Put back what is missing, or compile(on_mismatch="warn") to go on with what is kept; '
            f"plan_resume({run_id!r}) shows what would happen"
        )


class UnknownName(DefinitionError):
    """A store or an observer was named that nobody registered. `known` lists what there is."""

    code = "unknown-name"

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        scheme = name.removesuffix("://")
        adding = (
            f"register_{kind}({name!r}, …)" if scheme == name else f"register_{kind}_scheme({scheme!r}, …)"
        )
        super().__init__(
            f"unknown {kind} {name!r}; registered: {', '.join(self.known) or 'none'}. "
            f"Pass an object, or add yours with {adding}"
        )


class DeclarationError(DefinitionError):
    """A file that declares a graph is wrong. `mistakes` has all that is, each with its place.

    `file` is the file, and `places` are the lines and columns of the mistakes, from 1.
    """

    code = "declaration"

    def __init__(self, file: str, mistakes: Iterable[tuple[int, int, str]]) -> None:
        found = list(mistakes)
        self.file, self.places = file, [(line, column) for line, column, _ in found]
        super().__init__([f"{file}:{line}:{column}: {text}" for line, column, text in found])


class UsageError(LimpetError):
    """A call can't be carried out as it was made. Nothing was changed or saved."""

    code = "usage"


class UnstorableValue(UsageError):
    """A value can't be stored exactly, so it is refused. `path` leads to it: `messages[3].sender`."""

    code = "unstorable"

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"the value at {path or 'the top'} can't be stored: {reason}")


class AnswerRefused(UsageError):
    """The answer doesn't fit its question. The run stays paused and the question open."""

    code = "answer-refused"

    def __init__(self, question_id: str, reason: str) -> None:
        self.question_id, self.reason = question_id, reason
        super().__init__(f"question {question_id!r} refused the answer: {reason}; it is still open")


class TemplateError(UsageError):
    """A template or condition of a declared graph can't be worked out. `template` is its text, `node` whose it is.

    `place` is where it is in the file, and `key` what is missing, if that is the trouble.
    """

    code = "template"

    def __init__(
        self, node: str, template: str, reason: str, place: str = "", key: str | None = None
    ) -> None:
        self.node, self.template, self.reason, self.place, self.key = node, template, reason, place, key
        where = f"{place}: " if place else ""
        super().__init__(f"{where}{node}: {template!r}: {reason}")


class StoreError(LimpetError):
    """The store couldn't do what was asked. What had been acknowledged before is still there."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store can't be reached, opened or written to. The message says what to start or mend."""

    code = "store-unavailable"


class TooLarge(StoreUnavailable):
    """A record is larger than the store can take. Trying again won't help: keep less in the state, or elsewhere."""

    code = "too-large"


class KeyMissing(StoreUnavailable):
    """What is stored was encrypted with a key that isn't given, or not under its id. The message names the id."""

    code = "key-missing"


class RunNotFound(StoreError):
    """No run has this id in this store. It never did, was deleted, or has expired."""

    code = "run-not-found"

    def __init__(self, run_id: str, detail: str = "") -> None:
        self.run_id = run_id
        super().__init__(f"no run {run_id!r} in this store" + (f": {detail}" if detail else ""))


class DamagedRecord(StoreError):
    """A stored record isn't what was written: `run_id` and `sequence` name it. It is never returned as data."""

    code = "damaged"

    def __init__(self, run_id: str, sequence: int, reason: str) -> None:
        self.run_id, self.sequence, self.reason = run_id, sequence, reason
        super().__init__(
            f"record {sequence} of run {run_id!r} is damaged: {reason}. "
            "Earlier steps can be read with state_at(), or forked"
        )


class UnsupportedFormat(StoreError):
    """A record or file is whole, but of a format that this Limpet can't read: a newer one's, most likely."""

    code = "unsupported-format"


class CheckpointError(StoreError):
    """A checkpoint file can't be used. `path` names it, `reason` says why."""

    code = "checkpoint"

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"checkpoint file {path!r}: {reason}")


class CheckpointNotFound(CheckpointError):
    """There is no checkpoint file at `path`."""

    code = "checkpoint-not-found"


class DamagedCheckpoint(CheckpointError):
    """A checkpoint file isn't what was written, or none at all. It is never returned as data."""

    code = "checkpoint-damaged"


class ForbiddenType(CheckpointError):
    """A checkpoint file names a class or function that isn't allowed; nothing of it was run. `type` is the name."""

    code = "forbidden-type"

    def __init__(self, path: str, type: str, reason: str) -> None:
        self.type = type
        super().__init__(path, reason)


class Conflict(LimpetError):
    """Somebody else advances this run, or did since you looked. Nothing was overwritten.

    `holder` says who holds the lease and `until` (store time, seconds) when it runs out, where known.
    """

    code = "conflict"

    def __init__(
        self, run_id: str, reason: str, holder: str | None = None, until: float | None = None
    ) -> None:
        self.run_id, self.reason, self.holder, self.until = run_id, reason, holder, until
        super().__init__(f"run {run_id!r}: {reason}")


class RunExists(Conflict):
    """A run with this id exists already: `resume` it, or start with another id."""

    code = "run-exists"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, "a run with this id exists already; resume it, or choose another id")


class RunError(LimpetError):
    """The run came to a stop. What it had saved stays in the store. `run_id` names it."""

    code = "run"

    def __init__(self, message: str, run_id: str | None = None) -> None:
        self.run_id = run_id
        super().__init__(message)


class ExecutionError(RunError):
    """A run failed: `node`, the last good `state`, the `path` of nodes up to here, and the `cause`."""

    code = "execution"

    def __init__(
        self,
        reason: str,
        *,
        run_id: str | None = None,
        node: str | None = None,
        state: Mapping[str, Any] | None = None,
        path: Iterable[str] = (),
        cause: BaseException | None = None,
        way_out: str = "",
    ) -> None:
        self.reason, self.node, self.state, self.path = reason, node, state, list(path)
        self.cause = self.__cause__ = cause
        trail = " → ".join(self.path[-6:])
        more = "… → " if len(self.path) > 6 else ""
        super().__init__(
            f"node {node!r} of run {run_id!r}: {reason}"
            + (f" (path: {more}{trail})" if trail else "")
            + (f". {way_out}" if way_out else ""),
            run_id,
        )


class NodeTimeout(RunError):
    """A node took longer than its `timeout`."""

    code = "timeout"


class RunQuarantined(RunError):
    """A run took its process down too often without getting any further, so it counts as failed.

    Supervisors leave it alone from then on; `resume` tries it again.
    """

    code = "set-aside"


class DeadlinePassed(RunError):
    """Nobody answered a `pause(deadline=…)` in time. Raised in the node that asked, which may catch it."""

    code = "deadline-passed"


class ActionFailed(RunError):
    """An action of a declared graph didn't do what it was asked to. `action` is its name, `reason` says why."""

    code = "action-failed"

    def __init__(self, action: str, reason: str) -> None:
        self.action, self.reason = action, reason
        super().__init__(f"{action}: {reason}")


class RunPaused(RunError):
    """The run waits for somebody. `questions` are what it asked; `resume` with the answer goes on."""

    code = "paused"

    def __init__(
        self, run_id: str, reason: str, questions: Iterable[Any] = (), node: str | None = None
    ) -> None:
        self.questions, self.node = list(questions), node
        super().__init__(f"run {run_id!r} is paused: {reason}", run_id)


class RunCancelled(RunError):
    """The run was cancelled between two nodes. What it had saved can be resumed."""

    code = "cancelled"


class AlreadyCompleted(RunError):
    """The run is complete: there is nothing to resume. `fork` it to go on from one of its steps."""

    code = "already-completed"


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The end of a message about a name that isn't known: the nearest one that is, if there is one near."""
    from difflib import get_close_matches

    near = get_close_matches(str(given), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
