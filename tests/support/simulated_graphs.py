"""The graphs that the simulation runs, each with a plain model of the result of a run.

Nodes are functions of their state, of answers and of time alone, so the result of an uninterrupted run is known
without running it. They note their effects and the answers they get in the world they run in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from limpet import (
    END,
    BranchResult,
    DeadlinePassed,
    Goto,
    MemoryStore,
    Retry,
    State,
    StateGraph,
    Workflow,
    append,
    once,
    pause,
    receive,
    sleep,
)
from limpet.engine.node_context.call_scope import CURRENT

if TYPE_CHECKING:
    from support.simulation import Simulation

SLEEP = 30.0
DEADLINE = 40.0
DELAY = 20.0
BACKOFF = 25.0
"""Seconds: all of them longer than a lease, and than a worker waits for."""
NAP = 3.0
"""Seconds that a worker waits for."""

Answers = Mapping[str, Any]
"""What was answered in time, by the node that asked; a node that isn't there had no answer.

Of messages, it has those of each name in the order in which they were sent, under the name; and what a node that
waited until a deadline got, under the node.
"""

NOTHING = "nothing"
"""What stands for a message that didn't come in time."""


class Lost(BaseException):
    """Ends the worker, as the end of its process would."""


class Stage:
    """Which world the nodes are in."""

    world: Simulation


class Case(NamedTuple):
    """A graph, the model of its result, how to read that from a state, and whether runs crash their workers."""

    graph: Any
    model: Callable[[int, Answers], Any]
    seen: Callable[[Any], Any]
    poison: bool = False


def say(*words: str) -> dict[str, Any]:
    """An update that adds to the log."""
    return {"log": list(words)}


def asked(prompt: str, **more: Any) -> Any:
    """Ask, and have the world check the answer."""
    Stage.world.asks(CURRENT.get(), more.get("deadline"))
    try:
        answer = pause(prompt, **more)
    except DeadlinePassed:
        answer = None
    Stage.world.answered(CURRENT.get(), answer)
    return answer


def slept(seconds: float) -> None:
    """Sleep, and have the world check that it was as long."""
    Stage.world.lies_down(CURRENT.get(), seconds)
    sleep(seconds)
    Stage.world.gets_up(CURRENT.get())


def got(name: str, deadline: float | None = None) -> Any:
    """Receive a message, and have the world check which."""
    task = CURRENT.get()
    Stage.world.asks(task, deadline)
    if deadline is None:
        value = receive(name)
    else:
        value = receive(name, deadline=deadline, default=NOTHING)
    Stage.world.got(task, name, value)
    return value


def effect(name: str) -> str:
    """Something outside that must not happen again once it is kept."""
    return once(name, Stage.world.effect, CURRENT.get(), name)


def _schema() -> dict[str, Any]:
    return {"log": Annotated[list, append], "n": int}


def _line() -> Case:
    """A cycle, an effect, an edge that takes its time."""

    def count(state: State) -> dict[str, Any]:
        return {"n": state["n"] + 1, **say(f"count {state['n']}")}

    def pay(state: State) -> dict[str, Any]:
        return say(effect("pay"), "paid")

    graph = StateGraph(_schema(), name="line")
    graph.add_node("count", run=count).add_node("pay", run=pay).add_node("end", run=lambda state: say("end"))
    graph.add_edge("count", "count", lambda state: state["n"] < 3).add_edge("count", "pay")
    graph.add_edge("pay", "end", delay=DELAY).set_entry_point("count").set_finish_point("end")

    def model(n: int, answers: Answers) -> list[str]:
        counted = [f"count {each}" for each in range(n, max(n + 1, 3))]
        return [*counted, "pay", "paid", "end"]

    return Case(graph, model, _log)


def _fan() -> Case:
    """Branches: one sleeps and wants an approval, one asks until a deadline, one asks for as long as it takes."""

    def rest(state: State) -> dict[str, Any]:
        slept(SLEEP)
        return say("rested")

    def vote(state: State) -> dict[str, Any]:
        return say(f"vote {asked('Vote?', deadline=DEADLINE, default='none')}")

    def name(state: State) -> dict[str, Any]:
        return say(f"name {asked('Name?')}")

    def join(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
        return say(
            *(word for each in parallel_results for word in each["log"][len(state["log"]) :]), "joined"
        )

    graph = StateGraph(_schema(), name="fan").add_node("src", run=lambda state: say("src"))
    for node, function in (("rest", rest), ("vote", vote), ("name", name)):
        graph.add_node(node, run=function).add_parallel_edge("src", node, "join")
    graph.add_node("more", run=lambda state: say("more")).add_edge("rest", "more")
    graph.add_fanin_node("join", run=join).set_entry_point("src").set_finish_point("join")
    graph.compile(store=MemoryStore(), interrupt_before=["more"])

    def model(n: int, answers: Answers) -> list[str]:
        vote = answers.get("vote/vote", "none")
        return ["src", "rested", "more", f"vote {vote}", f"name {answers['name/name']}", "joined"]

    return Case(graph, model, _log)


def _spread() -> Case:
    """A map whose items fail at first, and are tried again after a long while."""

    def each(state: State, ctx: Any) -> dict[str, Any]:
        if ctx.attempt == 1 and state["item"] == 1:
            raise ValueError("not yet")
        return {"n": state["item"] * 10, **say(effect(f"item {state['item']}"))}

    def join(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
        return say(*(f"{each['n']}" for each in parallel_results))

    graph = StateGraph(_schema(), name="spread").add_node("src", run=lambda state: say("src"))
    graph.add_node("each", run=each, retry=Retry(attempts=99, backoff=BACKOFF, factor=1, jitter=0))
    graph.add_map("src", "each", lambda state: range(state["n"] + 1), "join", max_concurrency=2)
    graph.add_fanin_node("join", run=join).set_entry_point("src").set_finish_point("join")
    return Case(graph, lambda n, _: ["src", *(f"{each * 10}" for each in range(n + 1))], _log)


def _inner() -> Case:
    """A graph inside of a node: it naps, sleeps, and asks until a deadline, after which it continues."""

    def nap(state: State) -> dict[str, Any]:
        slept(NAP)
        return say("nap")

    def ask(state: State) -> dict[str, Any]:
        slept(SLEEP)
        return say(f"ask {asked('Well?', deadline=DEADLINE)}")

    inner = StateGraph(_schema(), name="deep").add_node("nap", run=nap).add_node("ask", run=ask)
    inner.add_edge("nap", "ask").set_entry_point("nap").set_finish_point("ask")
    graph = StateGraph(_schema(), name="inner").add_node("deep", run=inner)
    graph.add_node("end", run=lambda state: say("end")).add_edge("deep", "end")
    graph.set_entry_point("deep").set_finish_point("end")
    return Case(graph, lambda _, answers: ["nap", f"ask {answers.get('deep/ask')}", "end"], _log)


def _gate() -> Case:
    """A person has to approve, and after a while another attempt is made."""

    def flaky(state: State, ctx: Any) -> dict[str, Any]:
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return say("flaky")

    graph = StateGraph(_schema(), name="gate").add_node("draft", run=lambda state: say("draft"))
    graph.add_node("flaky", run=flaky, retry=Retry(attempts=99, backoff=BACKOFF, factor=1, jitter=0))
    graph.add_edge("draft", "flaky", delay=NAP).set_entry_point("draft").set_finish_point("flaky")
    graph.compile(store=MemoryStore(), interrupt_before=["flaky"])
    return Case(graph, lambda *_: ["draft", "flaky"], _log)


def _flow() -> Case:
    """A workflow, one of whose tasks sleeps and another asks."""

    def right(first: int) -> str:
        return f"{asked('Right?', deadline=DEADLINE, on_timeout=lambda: 'unanswered')} {first}"

    def left(first: int) -> int:
        slept(SLEEP)
        return first + 1

    flow = Workflow("flow").add_task("first", lambda: 1).add_task("left", left, depends_on=["first"])
    flow.add_task("right", right, depends_on=["first"])
    flow.add_task("last", lambda left, right: f"{left} {right}", depends_on=["left", "right"])
    return Case(flow, lambda _, answers: f"2 {answers.get('right', 'unanswered')} 1", _last)


def _jump() -> Case:
    """Nodes say where to go, one of them before an approval, and errors lead to others, in branches too."""

    def plan(state: State) -> Goto[Any]:
        return Goto("work" if state["n"] % 2 else "split", say("plan", effect("plan")))

    def work(state: State) -> None:
        raise ValueError("no number")

    def repair(state: State, error: Any) -> Goto[Any]:
        slept(SLEEP)
        return Goto("split", say(f"repair {error.node} {error}"))

    def each(state: State) -> Goto[Any]:
        if state["item"] == 1:
            raise KeyError(1)
        return Goto("join", {"did": "each"})

    def join(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        return say(*(result["did"] for result in parallel_results))

    graph = StateGraph({**_schema(), "item": int, "did": str}, name="jump")
    graph.add_node("plan", run=plan, goto=["work", "split"]).add_node("split")
    graph.add_node("work", run=work, retry=Retry(attempts=2, backoff=BACKOFF)).add_edge("work", END)
    graph.add_node("repair", run=repair, goto=["split"]).add_error_edge("work", "repair", on=ValueError)
    graph.add_map("split", "each", lambda state: range(3), "join")
    graph.add_node("each", run=each, goto=["join"]).add_fanin_node("join", run=join)
    graph.add_node("rescue", run=lambda state, error: {"did": error.type})
    graph.add_error_edge("each", "rescue", on=LookupError)
    graph.set_entry_point("plan").set_finish_point("join")
    graph.compile(store=MemoryStore(), interrupt_after=["plan"])

    def model(n: int, answers: Answers) -> list[str]:
        repaired = ["repair work ValueError: no number"] * (n % 2)
        return ["plan", "plan", *repaired, "each", "KeyError", "each"]

    return Case(graph, model, _log)


def _chat() -> Case:
    """A conversation: each turn waits for a message, and has an effect."""

    def turn(state: State) -> dict[str, Any]:
        said = got("user")
        return {"n": state["n"] + 1, **say(said, effect(f"reply to {said}"))}

    graph = StateGraph(_schema(), name="chat").add_node("turn", run=turn)
    graph.add_node("end", run=lambda state: say("end"))
    graph.add_edge("turn", "turn", lambda state: state["n"] < 3).add_edge("turn", "end")
    graph.set_entry_point("turn").set_finish_point("end")

    def model(n: int, answers: Answers) -> list[str]:
        said = answers["user"][: max(1, 3 - n)]
        return [*(word for each in said for word in (each, f"reply to {each}")), "end"]

    return Case(graph, model, _log)


def _mail() -> Case:
    """Branches that receive the same: two messages in one node, one after a sleep; and one that waits for a while."""

    def two(state: State) -> dict[str, Any]:
        return say(got("a"), got("a"))

    def one(state: State) -> dict[str, Any]:
        slept(SLEEP)
        return say(got("a"))

    def late(state: State) -> dict[str, Any]:
        return say(got("b", DEADLINE))

    def join(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
        *shared, last = (each["log"][len(state["log"]) :] for each in parallel_results)
        return say(*sorted(word for words in shared for word in words), *last)

    inner = StateGraph(_schema(), name="in").add_node("two", run=two)
    inner.set_entry_point("two").set_finish_point("two")
    graph = StateGraph(_schema(), name="mail").add_node("src", run=lambda state: say("src"))
    for node, function in (("deep", inner), ("one", one), ("late", late)):
        graph.add_node(node, run=function).add_parallel_edge("src", node, "join")
    graph.add_fanin_node("join", run=join).set_entry_point("src").set_finish_point("join")

    def model(n: int, answers: Answers) -> list[str]:
        return ["src", *sorted(answers["a"][:3]), answers["late/late"]]

    return Case(graph, model, _log)


def _family(line: Case) -> Case:
    """A run that starts another one, and joins it in a later node."""

    def begin(state: State, ctx: Any) -> dict[str, Any]:
        return {"child": ctx.start(line.graph, {"n": state["n"]}).run_id, **say("begun")}

    def join(state: State, ctx: Any) -> dict[str, Any]:
        return say(*ctx.join(state["child"])["log"], "joined")

    again = Retry(attempts=99, backoff=BACKOFF, factor=1, jitter=0)
    graph = StateGraph({**_schema(), "child": str}, name="family").add_node("begin", run=begin, retry=again)
    graph.add_node("join", run=join, retry=again).add_edge("begin", "join")
    graph.set_entry_point("begin").set_finish_point("join")
    return Case(graph, lambda n, answers: ["begun", *line.model(n, answers), "joined"], _log)


def _poison() -> Case:
    """It takes every worker down that takes it on."""

    def bad(state: State) -> dict[str, Any]:
        raise Lost

    graph = StateGraph(_schema(), name="poison").add_node("ok", run=lambda state: say("ok"))
    graph.add_node("bad", run=bad).add_edge("ok", "bad").set_entry_point("ok").set_finish_point("bad")
    return Case(graph, lambda *_: ["ok"], _log, poison=True)


def _log(state: Any) -> Any:
    return list(state["log"])


def _last(state: Any) -> Any:
    return state["tasks"]["last"]["result"]


RECEIVES = {"chat": ("user",), "mail": ("a", "a", "b")}
"""The names of the messages that runs of a graph receive; of those that it receives most, more than once."""

CASES = {
    case.graph.name: case
    for case in (
        _line(),
        _fan(),
        _spread(),
        _inner(),
        _gate(),
        _flow(),
        _jump(),
        _chat(),
        _mail(),
        _poison(),
    )
}
CASES["family"] = _family(CASES["line"])
