"""Scripted answers and messages: a run that asks questions, or waits for messages, reaches its end without a person.

state = run_to_end(graph, {"topic": "kelp"}, answers={"Publish?": in_turn("no", "yes")})
state = run_to_end(chat, messages={"user": ["Hello", "bye"]})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.errors import RunPaused, RunWaiting
from limpet.graph_methods import GraphMethods
from limpet.graphs.state import State, new_id
from limpet.journal.waits import PostWait, Question

S = TypeVar("S", bound=State)

MAX_STOPS = 10_000
"""How often a run may stop before it is considered endless."""


class Unanswered:
    """See `UNANSWERED`."""

    def __repr__(self) -> str:
        return "UNANSWERED"

    def __reduce__(self) -> str:
        return "UNANSWERED"


UNANSWERED = Unanswered()
"""Stands for no answer: the question's deadline passes. Needs a store with a `FakeClock`."""


class Unscripted(AssertionError):
    """A run wanted an answer or a message that the script doesn't have, or never wanted one that it has."""


class InTurn:
    """See `in_turn`."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"in_turn({', '.join(map(repr, self.values))})"


def in_turn(*values: Any) -> InTurn:
    """Answers to a question that is asked several times: the first time, the second time and so on."""
    return InTurn(values)


class OnUse(Protocol):
    """A function that is called when a question gets an answer of the script."""

    def __call__(self, question_id: str, key: str, turn: int) -> None:
        """The question gets the answer of this key; of several answers the one of this turn, from 0."""
        ...


class Script:
    """Answers to the questions of a run, and which of them were used.

    The keys of `answers` are ids of questions, prompts, or nodes (with the branch: `left/review`), looked up in
    this order. A value is the answer, a function of the `Question` that returns it, or `in_turn(…)` of these; for a
    node at which an interrupt stops, it may be a dict that is merged into the state. `used` has the key and turn of
    each question that got its answer in an earlier process; `on_use` is called for each new one.

    `messages` has, by name, those that are sent to the run, in order: one whenever a node waits for that name.
    """

    def __init__(
        self,
        answers: Mapping[str, Any] | None = None,
        used: Mapping[str, tuple[str, int]] | None = None,
        on_use: OnUse | None = None,
        messages: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.answers = dict(answers or {})
        self.messages = dict(messages or {})
        self._used = dict(used or {})
        self._on_use = on_use
        self._sent: dict[str, int] = {}

    @property
    def unused(self) -> list[str]:
        """The keys that no question has used, or not as often as there are answers."""
        last_turns = dict(sorted(self._used.values(), key=lambda each: each[1]))
        unused: list[str] = []
        for key, scripted in self.answers.items():
            last_needed = 0
            if isinstance(scripted, InTurn):
                last_needed = len(scripted.values) - 1
            if key not in last_turns or last_turns[key] < last_needed:
                unused.append(key)
        return unused

    def check_used(self) -> None:
        """Raise `Unscripted` if an answer is unused, or a message that was never waited for."""
        unsent = [name for name, values in self.messages.items() if self._sent.get(name, 0) < len(values)]
        if unsent:
            raise Unscripted(f"the run never waited for these messages, or not as often: {unsent}")
        if self.unused:
            listed = ", ".join(f"{key!r}: {self.answers[key]!r}" for key in self.unused)
            raise Unscripted(f"the run never asked for these answers, or not as often: {listed}")

    def answer(self, question: Question) -> Any:
        """The answer to a question; the same one each time for the same question. Raises `Unscripted`."""
        if question.id not in self._used:
            self._use(question)
        key, turn = self._used[question.id]
        answer = self.answers[key]
        if isinstance(answer, InTurn):
            answer = answer.values[turn]
        if callable(answer) and answer is not UNANSWERED:
            return answer(question)
        return answer

    def update_at(self, node: str | None) -> dict[str, Any] | None:
        """The update that is merged into the state after an interrupt at this node."""
        if node is None or not isinstance(self.answers.get(node), Mapping):
            return None
        self._used[f"interrupt at {node}"] = (node, 0)
        return dict(self.answers[node])

    def send_awaited(self, graph: GraphMethods[Any], run_id: str, waits: Iterable[PostWait]) -> None:
        """Send each node what it waits for. If the script has no more of it, time passes until the deadline.

        Messages have keys, so that one that was sent by an earlier process isn't sent again. Raises `Unscripted`.
        """
        waiting = list(waits)
        sent = [self._send_next(graph, run_id, wait.name) for wait in waiting]
        if not any(sent):
            deadlines = [wait.deadline for wait in waiting if wait.deadline is not None]
            unsent = f"no message {waiting[0].name!r} is scripted any more"
            _skip_to(graph, deadlines, unsent, "a receive() with a deadline, or more messages")

    def _send_next(self, graph: GraphMethods[Any], run_id: str, name: str) -> bool:
        values = self.messages.get(name, ())
        for number in range(self._sent.get(name, 0), len(values)):
            self._sent[name] = number + 1
            if graph.send(run_id, name, values[number], key=f"scripted {number}"):
                return True
        return False

    def _use(self, question: Question) -> None:
        ways = (question.id, question.prompt, question.node)
        key = next((each for each in ways if each in self.answers), None)
        if key is None:
            keys = f"{question.prompt!r}, {question.node!r} (the node) or {question.id!r} (the question)"
            raise Unscripted(
                f"no answer is scripted for {question.prompt!r}: add one to answers, under {keys}"
            )
        turn = sum(each == key for each, _ in self._used.values())
        scripted = self.answers[key]
        if isinstance(scripted, InTurn) and turn >= len(scripted.values):
            times = f"{len(scripted.values)} answers are scripted"
            raise Unscripted(f"{question.prompt!r} was asked {turn + 1} times, and {times} under {key!r}")
        self._used[question.id] = (key, turn)
        if self._on_use is not None:
            self._on_use(question.id, key, turn)


def run_to_end(
    graph: GraphMethods[S],
    input: Any = None,
    config: Mapping[str, Any] | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    messages: Mapping[str, Sequence[Any]] | None = None,
    run_id: str | None = None,
) -> S:
    """Run a graph to its end, answering what it asks from a script, and return the final state.

    `answers` are by prompt, node or question id, as in `Script`. `messages` are by name: the next one is sent when a
    node waits for it. The run is resumed after interrupts. Raises `Unscripted` for a question without an answer, for
    an answer without a question, and for messages alike; else what `execute` raises.
    """
    script = Script(answers, messages=messages)
    try:
        state = graph.execute(input, config, run_id=run_id or new_id())
    except RunPaused as paused:
        state = resume_to_end(graph, script, paused)
    script.check_used()
    return state


async def arun_to_end(
    graph: GraphMethods[S],
    input: Any = None,
    config: Mapping[str, Any] | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    messages: Mapping[str, Sequence[Any]] | None = None,
    run_id: str | None = None,
) -> S:
    """`run_to_end` by `aexecute` and `aresume`."""
    script = Script(answers, messages=messages)
    try:
        state = await graph.aexecute(input, config, run_id=run_id or new_id())
    except RunPaused as paused:
        state = await aresume_to_end(graph, script, paused)
    script.check_used()
    return state


def resume_to_end(graph: GraphMethods[S], script: Script, paused: RunPaused) -> S:
    """Resume a paused run, as often as it pauses, to its end."""
    for _ in range(MAX_STOPS):
        try:
            return graph.resume(str(paused.run_id), **resume_arguments(graph, script, paused))
        except RunPaused as again:
            paused = again
    raise Unscripted(f"run {paused.run_id!r} has stopped {MAX_STOPS} times; it seems to be endless")


async def aresume_to_end(graph: GraphMethods[S], script: Script, paused: RunPaused) -> S:
    """The same by `aresume`."""
    for _ in range(MAX_STOPS):
        try:
            return await graph.aresume(str(paused.run_id), **resume_arguments(graph, script, paused))
        except RunPaused as again:
            paused = again
    raise Unscripted(f"run {paused.run_id!r} has stopped {MAX_STOPS} times; it seems to be endless")


def resume_arguments(graph: GraphMethods[Any], script: Script, paused: RunPaused) -> dict[str, Any]:
    """The arguments to resume a paused run with, by the script. Time is skipped where a deadline is to pass."""
    if isinstance(paused, RunWaiting):
        script.send_awaited(graph, str(paused.run_id), paused.waits)
        return {}
    if not paused.questions:
        return {"update": script.update_at(paused.node)}
    scripted = {question.id: script.answer(question) for question in paused.questions}
    answers = {question_id: answer for question_id, answer in scripted.items() if answer is not UNANSWERED}
    if answers:
        return {"answers": answers}
    deadlines = [question.deadline for question in paused.questions if question.deadline is not None]
    unanswered = f"{paused.questions[0].prompt!r} is to stay unanswered"
    _skip_to(graph, deadlines, unanswered, "a question with a deadline")
    return {"value": NOT_GIVEN}


def _skip_to(graph: GraphMethods[Any], deadlines: list[float], why: str, needed: str) -> None:
    """Let time pass until the nearest deadline. Raises `Unscripted` where that isn't possible."""
    clock: Any = getattr(graph.compiled().need_client("run_to_end").store, "clock", None)
    if not deadlines:
        raise Unscripted(f"{why}: that needs {needed}")
    if not hasattr(clock, "skip_to"):
        raise Unscripted(f"{why}: that needs a store with a FakeClock")
    clock.skip_to(min(deadlines))
