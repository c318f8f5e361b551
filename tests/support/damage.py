"""What is asked of runs whose store was damaged, and which answers are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from random import Random
from typing import Any

from limpet import (
    Conflict,
    ExecutionError,
    LimpetError,
    RunInfo,
    Runs,
    State,
    StateGraph,
    StoreError,
    UsageError,
)
from limpet.journal.store import Store
from support.graphs import Crash
from support.older_runs import begin_all, exact, example

Answers = dict[str, Any]
RUNS = ("waits", "complete", "cut", "gone")


def counted(store: Any, calls: list[str], crash: bool = False) -> StateGraph:
    """n1 → n2 → n3, which notes the nodes that ran, and may die in the last."""

    def work(state: State, node: str) -> dict[str, Any]:
        if crash and node == "n3":
            raise Crash
        calls.append(node)
        return {"n": state.get("n", 0) + 1, "seen": f"by {node}"}

    graph = StateGraph(name="counted")
    for name in ("n1", "n2", "n3"):
        graph.add_node(name, run=work)
    graph.add_edge("n1", "n2").add_edge("n2", "n3").set_entry_point("n1").set_finish_point("n3")
    return graph.compile(store=store, preserve=True)


def fill(store: Store) -> None:
    """Runs that wait, that are complete, and one that was cut off."""
    begin_all(store)
    with suppress(Crash):
        counted(store, [], crash=True).execute({"n": 0}, run_id="cut", tags=["golden"])


def answers(opened: Callable[[], Store]) -> Answers:
    """What everything that can be asked of these runs gives: a value, or an error of ours. No other may come."""
    found: Answers = {}

    def ask(name: str, call: Callable[[], Any]) -> None:
        try:
            found[name] = call()
        except LimpetError as error:
            found[name] = error

    ask("open", lambda: opened())
    store = found.pop("open")
    if isinstance(store, LimpetError):
        return {"open": store}
    with closing(store):
        graph, calls, runs = example(store, preserve=True), list[str](), Runs(store)
        ask("runs", lambda: sorted(map(listed, Runs(store).list(tag="golden"))))
        for run_id, steps in (("waits", (0, 1)), ("complete", (0, 1, 4)), ("cut", (0, 2))):
            ask(f"verify {run_id}", lambda run_id=run_id: runs.verify(run_id))
            ask(f"history {run_id}", lambda run_id=run_id: runs.history(run_id))
            ask(f"state {run_id}", lambda run_id=run_id: exact(runs.state(run_id)))
            for step in steps:
                ask(f"state {run_id}@{step}", lambda run_id=run_id, s=step: exact(runs.state(run_id, s)))
        ask("verify gone", lambda: runs.verify("gone"))
        ask("resume waits", lambda: exact(graph.resume("waits", "yes")))
        ask("resume cut", lambda: (exact(counted(store, calls).resume("cut")), tuple(calls)))
        ask("after complete", lambda: exact(graph.state_at("complete")))
    return found


def listed(info: RunInfo) -> tuple[Any, ...]:
    """What a list says of a run, and which problem it has."""
    return (*info[:3], *info[5:12], info.problem)


def wrong(
    found: Answers, sound: Answers, names: tuple[str, ...], warned: str, verified: bool = False
) -> list[str]:
    """What of the answers is neither as it should be nor an error that names the run or one of `names`.

    A list may leave out a damaged run if a warning says so, and say anything of a run whose problem it names. With
    `verified`, an answer may be another where `verify` says of the run that it is damaged.
    """
    problems = []
    known = [run_id for run_id in RUNS if not _is_sound(found.get(f"verify {run_id}"))]
    for question, value in found.items():
        run_id = question.split()[-1].partition("@")[0]
        if isinstance(value, LimpetError):
            if not _is_named(value, (run_id, *names)):
                problems.append(f"{question}: {type(value).__name__}: {value}")
        elif question.startswith("verify ") and not value.ok:
            if run_id not in str(value):
                problems.append(f"{question}: {value}")
        elif value == sound[question] or _is_warned_of(question, warned, (*names, *known)):
            continue
        elif question == "runs":
            if not (_same_but_for_problems(value, sound[question]) or (verified and known)):
                problems.append(f"{question}: {value!r} instead of {sound[question]!r}")
        elif not (verified and run_id in known):
            problems.append(f"{question}: {value!r} instead of {sound[question]!r}")
    return problems


def _same_but_for_problems(found: list[Any], sound: list[Any]) -> bool:
    """Whether lists of runs are the same, but for runs of which the one that was found names a problem."""
    with_problem = {each[0] for each in found if each[-1]}
    return [each for each in found if not each[-1]] == [each for each in sound if each[0] not in with_problem]


def _is_sound(verified: Any) -> bool:
    return verified is not None and not isinstance(verified, LimpetError) and verified.ok


def _is_warned_of(question: str, warned: str, names: tuple[str, ...]) -> bool:
    return question == "runs" and any(name in warned for name in names)


def _is_named(error: LimpetError, names: tuple[str, ...]) -> bool:
    """Whether an error is one for damage, and says where it is."""
    if isinstance(error, ExecutionError):
        return isinstance(error.__cause__, StoreError) and any(name in str(error) for name in names)
    if isinstance(error, UsageError):
        return "has no step" in str(error) and any(name in str(error) for name in names)
    return isinstance(error, StoreError | Conflict) and any(name in str(error) for name in names)


def flips(data: bytes, seed: int, share: float = 1.0) -> Iterator[tuple[int, bytes]]:
    """The data with one byte changed, for a share of the places: by a bit, or wholly."""
    chance = Random(seed)
    for place in range(len(data)):
        if chance.random() < share:
            yield place, flipped(data, place, chance.choice([1, 2, 4, 8, 16, 32, 64, 128, 255]))


def flipped(data: bytes, place: int, mask: int) -> bytes:
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def changed_at_its_end(data: bytes) -> bytes:
    """These bytes with another last one, whatever that was."""
    return flipped(data, len(data) - 1, 1)
