"""Scripted answers: a run that asks goes to its end without anybody at the keyboard.

state = run_to_end(graph, {"topic": "kelp"}, answers={"Publish?": in_turn("no", "yes")})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.errors import RunPaused
from limpet.graph_methods import GraphMethods
from limpet.graphs.state import State, new_id
from limpet.journal.waits import Question

S = TypeVar("S", bound=State)

MOST_STOPS = 10_000
"""How often a run may stop before it is taken for one that never ends."""


class Unanswered:
    """See `UNANSWERED`."""

    def __repr__(self) -> str:
        return "UNANSWERED"

    def __reduce__(self) -> str:
        return "UNANSWERED"


UNANSWERED = Unanswered()
"""Stands for an answer that nobody gives: the question's deadline passes. Needs a store with a `FakeClock`."""


class Unscripted(AssertionError):
    """A run asked something that the script has no answer to, or never asked what the script answers."""


class InTurn:
    """See `in_turn`."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"in_turn({', '.join(map(repr, self.values))})"


def in_turn(*values: Any) -> InTurn:
    """Answers to a question that is asked several times: the first time, the second time and so on."""
    return InTurn(values)


class Asked(Protocol):
    """Somebody who wants to know which answer was given to which question."""

    def __call__(self, question_id: str, key: str, turn: int) -> None:
        """Take note of it."""
        ...


class Script:
    """Answers to what a run may ask, and which of them were used.

    The keys of `answers` are ids of questions, prompts, or nodes (with the branch: `left/review`), looked for in this
    order. A value is the answer, a function of the `Question` that returns it, or `in_turn(…)` of such; a node that
    is stopped at by an interrupt may have a dict that is merged into the state. `given` says which turn of which key
    a question has got already, for a script that another process has begun with; `asked` is told of each.
    """

    def __init__(
        self,
        answers: Mapping[str, Any] | None = None,
        given: Mapping[str, tuple[str, int]] | None = None,
        asked: Asked | None = None,
    ) -> None:
        self.answers = dict(answers or {})
        self._given, self._asked = dict(given or {}), asked

    @property
    def unused(self) -> list[str]:
        """The keys that no question has asked for, or not as often as there are answers."""
        used = dict(sorted(self._given.values(), key=lambda each: each[1]))
        turns = {
            key: len(each.values) if isinstance(each, InTurn) else 1 for key, each in self.answers.items()
        }
        return [
            key
            for key, count in turns.items()
            if key not in used or (isinstance(self.answers[key], InTurn) and used[key] < count - 1)
        ]

    def check_used(self) -> None:
        """Raise `Unscripted` if there is an answer that nothing asked for."""
        if self.unused:
            listed = ", ".join(f"{key!r}: {self.answers[key]!r}" for key in self.unused)
            raise Unscripted(f"the run never asked for these answers, or not as often: {listed}")

    def answer(self, question: Question) -> Any:
        """The answer to a question; the same one each time for the same question. Raises `Unscripted`."""
        if question.id not in self._given:
            self._use(question)
        key, turn = self._given[question.id]
        scripted = self.answers[key]
        found = scripted.values[turn] if isinstance(scripted, InTurn) else scripted
        return found(question) if callable(found) and found is not UNANSWERED else found

    def update_at(self, node: str | None) -> dict[str, Any] | None:
        """What an interrupt at this node is to merge into the state."""
        if node is None or not isinstance(self.answers.get(node), Mapping):
            return None
        self._given[f"interrupt at {node}"] = node, 0
        return dict(self.answers[node])

    def _use(self, question: Question) -> None:
        key = next(
            (each for each in (question.id, question.prompt, question.node) if each in self.answers), None
        )
        if key is None:
            ways = f"{question.prompt!r}, {question.node!r} (the node) or {question.id!r} (the question)"
            raise Unscripted(
                f"no answer is scripted for {question.prompt!r}: add one to answers, under {ways}"
            )
        turn = sum(each == key for each, _ in self._given.values())
        scripted = self.answers[key]
        if isinstance(scripted, InTurn) and turn >= len(scripted.values):
            times = f"{len(scripted.values)} answers are scripted"
            raise Unscripted(f"{question.prompt!r} was asked {turn + 1} times, and {times} under {key!r}")
        self._given[question.id] = key, turn
        if self._asked is not None:
            self._asked(question.id, key, turn)


def run_to_end(
    graph: GraphMethods[S],
    input: Any = None,
    config: Mapping[str, Any] | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    run_id: str | None = None,
) -> S:
    """Run a graph to its end, answering what it asks from a script, and return the final state.

    `answers` are by prompt, node or question id, as `Script` says. Interrupts are gone on from. Raises `Unscripted`
    for a question without an answer, and for an answer without a question; else what `execute` raises.
    """
    script, named = Script(answers), run_id or new_id()
    state = _to_end(graph, script, named, input, config)
    script.check_used()
    return state


async def arun_to_end(
    graph: GraphMethods[S],
    input: Any = None,
    config: Mapping[str, Any] | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    run_id: str | None = None,
) -> S:
    """`run_to_end` by `aexecute` and `aresume`."""
    script, named = Script(answers), run_id or new_id()
    try:
        state = await graph.aexecute(input, config, run_id=named)
    except RunPaused as paused:
        state = await ago_on(graph, script, paused)
    script.check_used()
    return state


def _to_end(
    graph: GraphMethods[S], script: Script, run_id: str, input: Any, config: Mapping[str, Any] | None
) -> S:
    try:
        return graph.execute(input, config, run_id=run_id)
    except RunPaused as paused:
        return go_on(graph, script, paused)


def go_on(graph: GraphMethods[S], script: Script, paused: RunPaused) -> S:
    """Go on with a run that has paused, to its end."""
    for _ in range(MOST_STOPS):
        try:
            return graph.resume(str(paused.run_id), **brought(graph, script, paused))
        except RunPaused as again:
            paused = again
    raise Unscripted(f"run {paused.run_id!r} has stopped {MOST_STOPS} times; it seems to have no end")


async def ago_on(graph: GraphMethods[S], script: Script, paused: RunPaused) -> S:
    """The same by `aresume`."""
    for _ in range(MOST_STOPS):
        try:
            return await graph.aresume(str(paused.run_id), **brought(graph, script, paused))
        except RunPaused as again:
            paused = again
    raise Unscripted(f"run {paused.run_id!r} has stopped {MOST_STOPS} times; it seems to have no end")


def brought(graph: GraphMethods[Any], script: Script, paused: RunPaused) -> dict[str, Any]:
    """What a resume is to bring to a paused run, by the script. Time is skipped where a deadline is to pass."""
    if not paused.questions:
        return {"update": script.update_at(paused.node)}
    found = {question.id: script.answer(question) for question in paused.questions}
    given = {question_id: answer for question_id, answer in found.items() if answer is not UNANSWERED}
    if given:
        return {"answers": given}
    _let_pass(graph, paused.questions)
    return {"value": NOT_GIVEN}


def _let_pass(graph: GraphMethods[Any], questions: list[Question]) -> None:
    """Let the nearest deadline pass."""
    deadlines = [question.deadline for question in questions if question.deadline is not None]
    clock: Any = getattr(graph.compiled().need_client("run_to_end").store, "clock", None)
    if not deadlines or not hasattr(clock, "skip_to"):
        need = "a store with a FakeClock" if deadlines else "a question with a deadline"
        raise Unscripted(f"{questions[0].prompt!r} is to stay unanswered: that needs {need}")
    clock.skip_to(min(deadlines))
