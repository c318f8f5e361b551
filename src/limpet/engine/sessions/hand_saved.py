"""Where a run begins that comes from a checkpoint saved by hand, or by another program: a node and a state.

A node of the main path just runs. A fan-in gets the results that the checkpoint holds. A node in a branch opens the
branches again: this one continues at the node, and the others start over, since the checkpoint has nothing of them.
So the fan-in gets the results of all branches in each case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import time
from typing import Any

from limpet.engine.node_context.branch_result import PARALLEL_RESULTS
from limpet.errors import UsageError
from limpet.graphs.edges import END, Choice, Edge
from limpet.graphs.parallel import Section
from limpet.graphs.plan import Plan
from limpet.graphs.state import new_id
from limpet.journal.encoding.codec import detached_value, encode
from limpet.journal.progress import Progress
from limpet.journal.waits import DONE


def progress_at_node(plan: Plan, node: str, state: dict[str, Any], results: Any) -> Progress:
    """A new run that begins at this node with this state. `results` are those of branches, if the checkpoint has any.

    Raises `UsageError` for results that can't be given to the fan-in.
    """
    # `cleared`: there is no interrupt before the node, since this is where the user wants to resume.
    progress = Progress(new_id(), plan.name, plan.fingerprint, node, state, at=time(), cleared=True)
    sections = [each.section for each in plan.nodes.values() if each.section is not None]
    joined = [section for section in sections if section.fan_in == node and not section.layered]
    if joined and results is not None:
        _add_results(progress, joined, results)
    elif not joined and node in plan.nodes:
        _open_around(progress, plan, sections)
    return progress


def _add_results(progress: Progress, sections: list[Section], results: Any) -> None:
    """Let the run stand at a fan-in whose branches are done, with these results."""
    states = _checked(results)
    progress.state = {key: value for key, value in progress.state.items() if key != PARALLEL_RESULTS}
    fitting = [each for each in sections if len(each.branches) == len(states)]
    section = (fitting or sections)[0]
    if section.inner is not None and (section.inner.outputs is not None or section.inner.plan.layers):
        raise UsageError(
            f"the checkpoint's parallel_results are what came out of graph {section.inner.plan.name!r}; a run can't "
            f"resume at {section.fan_in!r} with these: resume it before the branches"
        )
    if fitting:
        opened = progress.open_section({"source": section.source, "branches": list(section.branches)})
    else:
        opening = {"source": section.source, "each": section.each or "branch", "entry": section.fan_in}
        opened = progress.open_section({**opening, "states": [[number, {}] for number in range(len(states))]})
    for child, state in zip(opened.children.values(), states, strict=True):
        child.start = None
        child.node = DONE
        child.began = child.at = progress.at
        _set_result(child, state)


def _checked(results: Any) -> list[dict[str, Any]]:
    """The results as states. Raises `UsageError` unless they are a list of states, or of objects with one."""
    if isinstance(results, (list, tuple)):
        # Some programs have an object for the result of a branch, which says how it went, too.
        states = [each if isinstance(each, Mapping) else getattr(each, "state", None) for each in results]
        if all(isinstance(state, Mapping) for state in states):
            return [dict(state) for state in states if state is not None]
    raise UsageError("the parallel_results of a checkpoint must be a list of dicts, one for each branch")


def _set_result(branch: Progress, state: dict[str, Any]) -> None:
    """Give a branch that is done its final state, as what differs from the state that it started with."""
    base = branch.base
    if base is None:
        branch.state = state
        return
    branch.state = {
        key: value for key, value in state.items() if key not in base or not _same(base[key], value)
    }
    branch.changed = dict.fromkeys([*branch.state, *(key for key in base if key not in state)])


def _same(old: Any, new: Any) -> bool:
    return old is new or encode(old) == encode(new)


def _open_around(progress: Progress, plan: Plan, sections: list[Section]) -> None:
    """If the run's node is in a branch, open its branches again, with this one at the node."""
    node = progress.node
    if node in _reachable(plan, [plan.entry]):
        return
    for section in sections:
        # The branch of a graph has nodes of its own, so this is a node of parallel edges or of a map over a node.
        if section.inner is not None or section.layered:
            continue
        heads = section.branches or (str(section.each),)
        for index, head in enumerate(heads):
            if node in _reachable(plan, [head], section.fan_in):
                _reopen(progress, section, index)
                return


def _reachable(plan: Plan, heads: Iterable[str], end: str = END) -> set[str]:
    """The nodes that can come after these, themselves included, on the same path: without entering branches."""
    found: set[str] = set()
    unexplored = list(heads)
    while unexplored:
        name = unexplored.pop()
        if name not in found and name != end and name in plan.nodes:
            found.add(name)
            unexplored += _following(plan, name)
    return found


def _following(plan: Plan, name: str) -> Iterator[str]:
    for edge in plan.nodes[name].edges:
        match edge:
            case Section():
                yield edge.fan_in
            case Edge() | Choice():
                yield from edge.targets


def _reopen(progress: Progress, section: Section, index: int) -> None:
    """Let the run stand in branches: the one with this index is at the node that the run was to begin at."""
    node = progress.node
    state = progress.state
    opening: dict[str, Any] = {"source": section.source}
    key: str | int
    if section.branches:
        opening["branches"] = list(section.branches)
        key = section.branches[index]
    else:
        items = detached_value(list(section.items(state)))
        key = _number_of(items, state.get(section.item))
        opening |= {"each": section.each, "entry": section.each, "item": section.item, "items": items}
        if key == len(items):
            items.append(state.get(section.item))
    progress.node = section.fan_in
    progress.cleared = False
    branch = progress.open_section(opening).children[key]
    branch.begin_branch()
    branch.node = node
    branch.cleared = True


def _number_of(items: list[Any], item: Any) -> int:
    """Which of the items this is; the number after the last if it isn't among them."""
    for number, each in enumerate(items):
        if _same(each, item):
            return number
    return len(items)
