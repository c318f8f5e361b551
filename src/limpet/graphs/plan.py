"""The plan: the frozen, validated form of a graph, which the engine runs.

It knows nothing of how the graph was written down, and nothing in it changes while runs use it. Its
fingerprint is a digest of the structure alone (names, edges, reducers), not of the functions: a mended
function doesn't make a different graph, a removed node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from limpet.graphs.parallel import Section, SubPlan
from limpet.graphs.parameters import Function
from limpet.graphs.predicates import describe
from limpet.graphs.retry import Retry
from limpet.graphs.schema import Schema
from limpet.journal.progress import DONE

if TYPE_CHECKING:
    from limpet.graphs.workflow.layers import Layers
    from limpet.graphs.workflow.tasks import Work

START = "__start__"
END = DONE

PLANNER = "after_layer"
"""The node that plans the layers of a workflow. Its step is what a checkpoint of one is."""


class Edge(NamedTuple):
    """A possible transition: taken when its predicate holds, or always when it has none."""

    source: str
    target: str
    predicate: Function | None = None
    delay: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    @property
    def unconditional(self) -> bool:
        return self.predicate is None

    @property
    def asks(self) -> Function | None:
        return self.predicate

    def leads(self, result: Any, nodes: Mapping[str, Any]) -> str | None:
        """Where it leads when its predicate said `result`; None if it isn't taken."""
        return self.target if result else None

    def describe(self) -> list[Any]:
        label = describe(self.predicate.call) if self.predicate else ""
        return [self.source, self.target, label]


class Choice(NamedTuple):
    """Several possible transitions, of which a function picks one by its result."""

    source: str
    choose: Function
    outcomes: Mapping[Any, str] | None
    delay: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.outcomes.values()) if self.outcomes is not None else ()

    @property
    def unconditional(self) -> bool:
        return True

    @property
    def asks(self) -> Function:
        return self.choose

    def leads(self, result: Any, nodes: Mapping[str, Any]) -> str:
        """Where it leads when its function said `result`. Raises `LookupError` if that is nowhere."""
        if self.outcomes is None:
            if result != END and result not in nodes:
                raise LookupError(f"the choice after {self.source!r} was {result!r}, which is no node")
            return str(result)
        if result not in self.outcomes:
            listed = ", ".join(map(repr, self.outcomes))
            raise LookupError(f"the choice after {self.source!r} was {result!r}, not one of {listed}")
        return self.outcomes[result]

    def describe(self) -> list[Any]:
        outcomes = (
            sorted((str(k), v) for k, v in self.outcomes.items()) if self.outcomes is not None else "any"
        )
        return [self.source, outcomes, "choice"]


Way = Edge | Choice | Section
"""What may follow a node."""


class PlanNode(NamedTuple):
    """A node, ready to run: its function, its policy, and the ways out in the order they are tried.

    What is worked out ahead: `follower` is the one node that always comes next, where that is so; `tests` are
    its ways out where all of them are edges with predicates of the state alone; `direct` is its function
    where that takes the state alone; `delays` are the seconds that ways to certain nodes take, where some do.
    Otherwise each is None. `sub` is the graph that it runs, if it runs one;
    `work` is the task of a workflow that it is, if it is one.
    """

    name: str
    function: Function | None
    retry: Retry | None
    timeout: float | None
    ways: tuple[Way, ...]
    exit: bool
    follower: str | None
    tests: tuple[tuple[Callable[[Any], Any], str], ...] | None
    direct: Callable[[Any], Any] | None
    sub: SubPlan | None = None
    work: Work | None = None
    delays: Mapping[str, float] | None = None

    @property
    def section(self) -> Section | None:
        """The section that it may open, if it does."""
        return next((way for way in self.ways if isinstance(way, Section)), None)


class Plan(NamedTuple):
    """A graph that can run. `layers` are those of a workflow."""

    name: str
    nodes: Mapping[str, PlanNode]
    entry: str
    schema: Schema
    max_iterations: int
    interrupt_before: frozenset[str]
    interrupt_after: frozenset[str]
    fingerprint: str
    graph: Any = None
    layers: Layers | None = None
    secrets: frozenset[str] = frozenset()
    """The keys, of its state and of those of all graphs inside of it, whose values are never shown."""

    @property
    def interrupts(self) -> bool:
        """Whether a run may stop at one of its nodes, or of a graph inside of one."""
        inner = any(sub.plan.interrupts for sub in subs_of(self.nodes))
        return bool(self.interrupt_before or self.interrupt_after) or inner

    @property
    def holds_secrets(self) -> bool:
        """Whether anything in it is marked as secret, the results of tasks included."""
        codes = self.layers.codes.values() if self.layers is not None else ()
        inner = any(sub.plan.holds_secrets for sub in subs_of(self.nodes))
        return bool(self.secrets) or any(code.keeps_secret for code in codes) or inner


def subs_of(nodes: Mapping[str, PlanNode]) -> list[SubPlan]:
    """The graphs inside of nodes, and those that sections run."""
    sections = [node.section for node in nodes.values()]
    subs = [*(node.sub for node in nodes.values()), *(each.sub for each in sections if each is not None)]
    return [sub for sub in subs if sub is not None]


def secrets_among(own: Iterable[str], nodes: Mapping[str, PlanNode]) -> frozenset[str]:
    """The secret keys of a graph: its own, those inside of it, and what they pass as under another name."""
    found = {*own, *(name for sub in subs_of(nodes) for name in sub.plan.secrets)}
    named = [how for sub in subs_of(nodes) for how in (sub.inputs, sub.outputs) if isinstance(how, Mapping)]
    pairs = {pair for how in named for pair in how.items()}
    for node in nodes.values():
        if node.section is not None and isinstance(node.section.over, str):
            pairs.add((node.section.item, node.section.over))
    while more := {name for pair in pairs if found & {*pair} for name in pair} - found:
        found |= more
    return frozenset(found)


def plan_node(
    name: str,
    function: Function | None,
    retry: Retry | None,
    timeout: float | None,
    ways: Iterable[Way],
    exits: bool,
    sub: SubPlan | None = None,
    nodes: Iterable[str] = (),
) -> PlanNode:
    """Freeze one node, working out ahead what can be."""
    ordered = tuple(ways)
    follower = None
    if not ordered:
        follower = END if exits else None
    elif isinstance(ordered[0], Edge) and ordered[0].unconditional:
        follower = ordered[0].target
    tests = tuple(
        (way.predicate.call, way.target)
        for way in ordered
        if isinstance(way, Edge) and way.predicate is not None and way.predicate.plain
    )
    direct = function.call if function is not None and function.plain else None
    return PlanNode(
        name=name,
        function=function,
        retry=retry,
        timeout=timeout,
        ways=ordered,
        exit=exits,
        follower=follower,
        tests=tests if len(tests) == len(ordered) else None,
        direct=direct,
        sub=sub,
        delays=_delays(ordered, nodes),
    )


def _delays(ways: tuple[Way, ...], nodes: Iterable[str]) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for way in ways:
        if not isinstance(way, Section) and way.delay:
            found |= dict.fromkeys(way.targets or nodes, way.delay)
    return found or None


def fingerprint(kind: str, entry: str, nodes: Mapping[str, PlanNode], schema: Schema) -> str:
    """A digest of the structure: equal for equal graphs, however and wherever they were written down."""
    shape = {
        "kind": kind,
        "entry": entry,
        "nodes": [
            [name, *([sub.plan.fingerprint] if (sub := nodes[name].sub) else [])] for name in sorted(nodes)
        ],
        "ways": [[way.describe() for way in nodes[name].ways] for name in sorted(nodes)],
        "exits": sorted(name for name, node in nodes.items() if node.exit),
        "reducers": sorted((key, reducer_name(reducer)) for key, reducer in schema.reducers.items()),
    }
    return digest(shape)


def digest(shape: Any) -> str:
    """A short text that is the same for the same structure."""
    text = repr(shape).encode("utf-8", "backslashreplace")
    return f"{crc32(text):08x}{crc32(text[::-1]):08x}"


def reducer_name(reducer: Callable[..., Any]) -> str:
    """What a reducer is called, for fingerprints and pictures."""
    return getattr(reducer, "__name__", type(reducer).__name__)
