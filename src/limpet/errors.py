"""Every error that Limpet raises, in five families.

Definition (the graph is wrong), usage (a call is wrong), store (the store that keeps the run failed), run (the run
itself failed, paused or was cancelled) and conflict (another process advances the run). Each error has a stable
`code`, and carries what it is about as attributes, so that a program need not parse the text.

An error that knows a way out has it as `advice`, apart from its `message`. The text of the error is both. The advice
is for readers of Python; other interfaces show the message and their own way to do the `next_operation`.

Some are built-in errors as well, so that code which expects those catches them: `DefinitionError` and `UsageError`
are a `ValueError`, `RunNotFound` is a `LookupError`, `CheckpointNotFound` is a `FileNotFoundError`. So an
`except ValueError` around anything that may raise an error of ours needs an `except LimpetError: raise` before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from errno import ENOENT
from typing import Any, Literal, Self, TypeVar

Operation = Literal[
    "",
    "answer",
    "cancel",
    "delete",
    "export",
    "fork",
    "history",
    "replace",
    "result",
    "resume",
    "retry",
    "rollback",
    "send",
    "verify",
    "wait",
    "watch",
    "work",
]
"""What can be done with a run or a schedule, as far as errors advise it."""

Error = TypeVar("Error", bound="LimpetError")

SHOWN_PATH = 6
"""How many of the last nodes on a run's path an error message shows."""


class LimpetError(Exception):
    """The base of all errors here: `except LimpetError` catches everything that the library raises."""

    code = "limpet"

    advice: str = ""
    """What to do next, for a reader of Python: the calls that help."""

    next_operation: Operation = ""
    """What the advice is to do with the run, where it is one operation."""

    @property
    def message(self) -> str:
        """What happened and where, without the advice."""
        # Not that of the next class: an `OSError` would put its number and file name around the text.
        return Exception.__str__(self)

    def with_advice(self, advice: str, next_operation: Operation = "") -> Self:
        """This error, after giving it the advice that its text ends with."""
        self.advice = advice
        self.next_operation = next_operation
        return self

    def __str__(self) -> str:
        if self.advice:
            return f"{self.message}; {self.advice}"
        return self.message

    def __reduce__(self) -> Any:
        # By default an error is copied by calling its class with its text, and most classes here take more than that.
        return _restored, (type(self), self.args, self.__dict__)


class DefinitionError(LimpetError, ValueError):
    """The graph can't be compiled. `mistakes` lists everything that is wrong with it, so fix them all at once."""

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
    """The tasks of a workflow aren't those that a run was saved with. Nothing was run, and nothing changed.

    Put back the tasks that are missing, or compile with `on_mismatch="warn"` to resume the run with those that are
    left. `account` lists the differences, and `plan_resume(run_id)` shows what a resume would do.
    """

    code = "workflow-changed"

    def __init__(self, run_id: str, workflow: str, account: str, place: str = "") -> None:
        self.run_id = run_id
        self.account = account
        where = f" (at {place!r})" if place else ""
        super().__init__(
            f"workflow {workflow!r}{where} has changed since run {run_id!r} was saved with it:\n{account}\n"
            "Put back what is missing"
        )
        self.advice = (
            'compile(on_mismatch="warn") resumes the run with what is left, and '
            f"plan_resume({run_id!r}) shows what would happen"
        )


class UnknownName(DefinitionError):
    """No store or observer is registered under this name. Register one, or pass an object. `known` lists all."""

    code = "unknown-name"

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = sorted(known)
        if name.endswith("://"):
            adding = f"register_{kind}_scheme({name.removesuffix('://')!r}, …)"
        else:
            adding = f"register_{kind}({name!r}, …)"
        ending = "://" if name.endswith("://") else ""
        alike = [each.removesuffix(ending) for each in self.known if each.endswith(ending)]
        near = did_you_mean(name.removesuffix(ending), alike, ending)
        listed = f"{'; registered' if not near else ' Registered'}: {', '.join(self.known) or 'none'}"
        super().__init__(f"unknown {kind} {name!r}{near}{listed}")
        self.advice = f"pass an object, or add yours with {adding}"


class DeclarationError(DefinitionError):
    """A file that declares a graph is wrong. `mistakes` has all mistakes, each with its place.

    `file` is the file, and `places` are the lines and columns of the mistakes, from 1.
    """

    code = "declaration"

    def __init__(self, file: str, mistakes: Iterable[tuple[int, int, str]]) -> None:
        found = list(mistakes)
        self.file = file
        self.places = [(line, column) for line, column, _ in found]
        super().__init__([f"{file}:{line}:{column}: {text}" for line, column, text in found])


class UsageError(LimpetError, ValueError):
    """A call can't be carried out as it was made. Nothing was changed or saved. The message says how to call it."""

    code = "usage"


class UnknownKey(UsageError, KeyError):
    """The state has no value under this `key`: it is misspelt, or nothing has set it yet. It is a `KeyError`, too.

    The same for `results` of a workflow that have no task of this name.
    """

    code = "unknown-key"

    def __init__(
        self, key: object, present: Iterable[str], declared: Iterable[str] = (), reason: str = ""
    ) -> None:
        self.key = key
        known = list(dict.fromkeys([*present, *declared]))
        if reason:
            super().__init__(reason)
        elif key in known:
            super().__init__(f"the state has no {key!r} yet: the schema names it, and nothing has set it")
        else:
            super().__init__(f"the state has no {key!r}{did_you_mean(key, known)}")


class InvalidValue(UsageError):
    """A value doesn't fit the class that describes the state, its `schema`. Nothing of what it came with counts.

    `field` is the key that it is for, and `reason` why it doesn't fit. If a node returned it, the `ExecutionError`
    around this names the node.
    """

    code = "invalid-value"

    def __init__(self, what: str, schema: str, field: str, reason: str) -> None:
        self.schema = schema
        self.field = field
        self.reason = reason
        super().__init__(f"{what} doesn't fit {schema}: {reason}")


class WrongGraph(UsageError):
    """A graph was asked about a run of another graph, whose name is `graph`. A graph's calls reach its own runs only.

    `Runs(store)` reaches the runs of all graphs.
    """

    code = "wrong-graph"

    def __init__(self, run_id: str, graph: str, asked: str) -> None:
        self.run_id = run_id
        self.graph = graph
        self.asked = asked
        super().__init__(f"run {run_id!r} belongs to graph {graph!r}, not to {asked!r}")
        self.advice = f"ask graph {graph!r} for it; Runs(store) reaches the runs of all graphs"


class ForeignRun(UsageError):
    """The run is a thread of another library, `kind`, which keeps its checkpoints here. Limpet doesn't execute it.

    It is listed, shown, exported, verified and deleted like other runs; that library does all the rest with it.
    """

    code = "foreign-run"

    def __init__(self, run_id: str, kind: str, library: str) -> None:
        self.run_id = run_id
        self.kind = kind
        super().__init__(
            f"run {run_id!r} is a thread of {library}, whose checkpoints are kept here, and no run of Limpet"
        )
        self.advice = (
            f"use {library} for it: invoke, get_state and update_state of its graph, with its thread_id"
        )


class UnstorableValue(UsageError):
    """A value can't be stored exactly, so it is refused. `path` leads to it: `messages[3].sender`.

    Convert it, register its type with `register_type`, or keep it out of the state.
    """

    code = "unstorable"

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the value at {path or 'the top'} can't be stored: {reason}")


class AnswerRefused(UsageError):
    """The answer doesn't fit its question. The run stays paused and the question open: answer it again."""

    code = "answer-refused"

    def __init__(self, question_id: str, reason: str) -> None:
        self.question_id = question_id
        self.reason = reason
        super().__init__(f"question {question_id!r} refused the answer: {reason}; it is still open")


class AlreadyAnswered(UsageError):
    """The answer is for a question that isn't open any more: it was answered, or its time has passed.

    Nothing has changed, and the answer counts for no other question. `questions` are the ids of those that it was
    for, as far as they are known.
    """

    code = "already-answered"

    def __init__(self, run_id: str, questions: Sequence[str], now_open: str) -> None:
        self.run_id = run_id
        self.questions = list(questions)
        named = "what that checkpoint asked"
        if self.questions:
            named = f"question {', '.join(map(repr, self.questions))}"
        super().__init__(f"run {run_id!r} no longer waits for an answer to {named}; open: {now_open}")


class TemplateError(UsageError):
    """A template or condition of a declared graph can't be evaluated. `template` is its text, `node` its node.

    `place` is where it is in the file, and `key` the missing key, if one is missing.
    """

    code = "template"

    def __init__(
        self, node: str, template: str, reason: str, place: str = "", key: str | None = None
    ) -> None:
        self.node = node
        self.template = template
        self.reason = reason
        self.place = place
        self.key = key
        where = f"{place}: " if place else ""
        super().__init__(f"{where}{node}: {template!r}: {reason}")


class StoreError(LimpetError):
    """The store couldn't do what was asked. Everything that it had acknowledged before is safe."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store can't be reached, opened or written to. The message says what to start or repair."""

    code = "store-unavailable"


class TooLarge(StoreUnavailable):
    """A record is larger than the store can take. Trying again won't help: keep less in the state, or elsewhere."""

    code = "too-large"


class KeyMissing(StoreUnavailable):
    """The stored data was encrypted with a key that you didn't give, or gave under another id.

    The message names the id. Open the store with that key, among the old keys if it was replaced.
    """

    code = "key-missing"


class RunNotFound(StoreError, LookupError):
    """No run has this id in this store: it never existed, was deleted, or has expired. Check the id and the store."""

    code = "run-not-found"

    def __init__(self, run_id: str, detail: str = "") -> None:
        self.run_id = run_id
        message = f"no run {run_id!r} in this store"
        if detail:
            message += f": {detail}"
        super().__init__(message)


class ScheduleNotFound(StoreError, LookupError):
    """No schedule has this name in this store. `Schedules(store).list()` has those that there are."""

    code = "schedule-not-found"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        super().__init__(f"no schedule {name!r} in this store{did_you_mean(name, known)}")


class ScheduleEnded(UsageError):
    """A schedule that is added has its end in the past, so that it has no time left."""

    code = "schedule-ended"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"schedule {name!r} has no time left: its end is in the past")


class LimitNotFound(StoreError, LookupError):
    """No limit has this name in this store. `Limits(store).list()` has those that there are."""

    code = "limit-not-found"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        super().__init__(f"no limit {name!r} in this store{did_you_mean(name, known)}")


class DamagedRecord(StoreError):
    """A stored record isn't what was written: `run_id` and `sequence` name it. It is never returned as data.

    `verify(run_id)` shows the damage. Earlier steps can be read with `state_at`, and forked.
    """

    code = "damaged"

    def __init__(self, run_id: str, sequence: int, reason: str) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.reason = reason
        # Number 0 is the head of the run. Without it, it isn't known which record is the newest.
        what = f"record {sequence}" if sequence else "the head"
        super().__init__(f"{what} of run {run_id!r} is damaged: {reason}")
        steps = "earlier steps" if sequence else "steps whose records are intact"
        self.advice = f"{steps} can be read with state_at(), or forked"
        self.next_operation = "verify"


class DamagedDocument(StoreError):
    """A stored document, such as that of a limit or a schedule, isn't what was written. It is never returned as data.

    `name` names it, `reason` says what is wrong. `version` is the one at which the store replaces or deletes it.
    """

    code = "damaged-document"

    def __init__(self, name: str, version: int, reason: str) -> None:
        self.name = name
        self.version = version
        self.reason = reason
        super().__init__(f"the document {name!r} is damaged: {reason}")


class UnsupportedFormat(StoreError):
    """A record or file is intact, but this Limpet can't read its format. A newer Limpet most likely can."""

    code = "unsupported-format"


class CheckpointError(StoreError):
    """A checkpoint file can't be used. `path` names it, `reason` says why."""

    code = "checkpoint"

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"checkpoint file {path!r}: {reason}")


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """No checkpoint file exists at `path`."""

    code = "checkpoint-not-found"
    errno = ENOENT
    strerror = "No such file or directory"

    @property
    def filename(self) -> str:
        """The path, as any `FileNotFoundError` has it."""
        return self.path


class DamagedCheckpoint(CheckpointError, ValueError):
    """A file isn't a checkpoint, or isn't what was written. It is never returned as data."""

    code = "checkpoint-damaged"


class ForbiddenType(CheckpointError):
    """A checkpoint file names a class or function that isn't allowed. None of it was run. `type` is the name.

    If you trust the class, allow it with `register_type`.
    """

    code = "forbidden-type"

    def __init__(self, path: str, type: str, reason: str) -> None:
        self.type = type
        super().__init__(path, reason)


class Conflict(LimpetError):
    """Another process advances this run, or has advanced it since you read it. Nothing was overwritten.

    `holder` names the process that holds the lease and `until` (store time, seconds) when the lease expires, where
    known. `resume(…, wait=seconds)` waits for it.
    """

    code = "conflict"

    def __init__(
        self, run_id: str, reason: str, holder: str | None = None, until: float | None = None
    ) -> None:
        self.run_id = run_id
        self.reason = reason
        self.holder = holder
        self.until = until
        super().__init__(f"run {run_id!r}: {reason}")


class RunExists(Conflict):
    """A run with this id already exists: `resume` it, or start with another id."""

    code = "run-exists"

    def __init__(self, run_id: str, why: str = "", instead: str = "resume it") -> None:
        reason = "a run with this id already exists"
        if why:
            reason = f"{reason}, and {why}"
        super().__init__(run_id, f"{reason}; {instead}, or choose another id")


class RunError(LimpetError):
    """The run stopped. Everything that it had saved stays in the store. `run_id` names it."""

    code = "run"

    def __init__(self, message: str, run_id: str | None = None) -> None:
        self.run_id = run_id
        super().__init__(message)


class ExecutionError(RunError):
    """A run failed: `node`, the last good `state`, the `path` of nodes up to here, and the `cause`.

    `node` is None where the run as a whole failed, rather than one of its nodes.

    With a store, `resume(run_id)` runs the node that failed again.
    """

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
    ) -> None:
        self.reason = reason
        self.node = node or None
        self.state = state
        self.path = list(path)
        self.cause = cause
        self.__cause__ = cause
        message = f"run {run_id!r}: {reason}"
        if self.node:
            message = f"node {self.node!r} of {message}"
        if self.path:
            earlier = "… → " if len(self.path) > SHOWN_PATH else ""
            message += f" (path: {earlier}{' → '.join(self.path[-SHOWN_PATH:])})"
        super().__init__(message, run_id)


class NodeTimeout(RunError):
    """A node took longer than its `timeout`. Give it more time, or a `retry`."""

    code = "timeout"


class ResourceFailed(RunError):
    """A resource that a node takes couldn't be opened, or couldn't be closed. `resource` is its name.

    `__cause__` is what its factory raised. A `retry` of the node opens it again.
    """

    code = "resource-failed"

    def __init__(self, resource: str, problem: str) -> None:
        self.resource = resource
        super().__init__(f"resource {resource!r} {problem}")


class RunQuarantined(RunError):
    """The process of a run crashed too often without any progress of the run, so the run counts as failed.

    Supervisors skip it from now on. Find out what the node does to its process; then `resume(run_id)` runs it again.
    """

    code = "quarantined"


class DeadlinePassed(ExecutionError):
    """A run reached its `deadline` before it ended; or what a node waited for didn't come until its own `deadline`.

    The first fails the run, wherever it is: `resume(run_id, deadline=…)` continues it with a new deadline. The second
    is raised by `pause(deadline=…)` or `receive(deadline=…)` in the node, which may catch it.
    """

    code = "deadline-passed"

    def __init__(
        self,
        reason: str,
        run_id: str | None = None,
        *,
        node: str | None = None,
        state: Mapping[str, Any] | None = None,
        path: Iterable[str] = (),
    ) -> None:
        super().__init__(reason, run_id=run_id, node=node, state=state, path=path)
        self.args = (reason,)


class ActionFailed(RunError):
    """An action of a declared graph failed. `action` is its name, `reason` says why."""

    code = "action-failed"

    def __init__(self, action: str, reason: str) -> None:
        self.action = action
        self.reason = reason
        super().__init__(f"{action}: {reason}")


class RunPaused(RunError):
    """The run waits for an answer or an approval: `resume(run_id, answer)` gives it.

    `questions` are the open questions, and `node` is where the run waits.
    """

    code = "paused"

    def __init__(
        self, run_id: str, reason: str, questions: Iterable[Any] = (), node: str | None = None
    ) -> None:
        self.questions = list(questions)
        self.node = node
        super().__init__(f"run {run_id!r} is {self.code}: {reason}", run_id)


class RunWaiting(RunPaused):
    """The run waits for a message that hasn't been sent: `send(run_id, name, value)` sends it. Or for a child run.

    `waits` says for which, and `node` where. A worker then continues the run, or `resume(run_id)`. Of a child run
    that was executed here, this says that the child itself waits, for an answer or a message.
    """

    code = "waiting"

    def __init__(self, run_id: str, reason: str, waits: Iterable[Any] = (), node: str | None = None) -> None:
        super().__init__(run_id, reason, (), node)
        self.waits = list(waits)


class ChildFailed(RunError):
    """A child run gives no result: it failed, was cancelled, or was deleted. Raised by `ctx.join()`.

    `child` is its id, `status` how it ended, and `reason` why. Retry the child, and then its parent, which joins it
    again.
    """

    code = "child-failed"

    def __init__(self, child: str, status: str, reason: str, run_id: str) -> None:
        self.child = child
        self.status = status
        self.reason = reason
        super().__init__(f"child run {child!r} {reason}", run_id)


class RunCancelled(RunError):
    """The run was cancelled. `resume(run_id)` continues it here, and `retry(run_id)` in a worker."""

    code = "cancelled"


class AlreadyCompleted(RunError):
    """The run is complete, so it can't be resumed. `fork` it to run it again from one of its steps."""

    code = "already-completed"


def _restored(kind: type[Error], args: tuple[Any, ...], attributes: dict[str, Any]) -> Error:
    """A copy of an error, in this process or in another one."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    error.__cause__ = attributes.get("cause")
    return error


def did_you_mean(given: object, known: Iterable[str], ending: str = "") -> str:
    """The end of a message about an unknown name: the known name that is most like it, if one is.

    `ending` is added to that name. It isn't compared, because it is the same for all.
    """
    from difflib import get_close_matches

    near = get_close_matches(str(given), list(known), n=1)
    return f"; did you mean {near[0] + ending!r}?" if near else ""
