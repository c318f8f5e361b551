"""Limits that a file declares, and that its nodes, its tasks and its config name. H18."""

from __future__ import annotations

import pytest

from limpet import DeclarationError, Limit, Limits, MemoryStore, loads

GRAPH = """
name: asks
limits:
  openai: {concurrency: 2, rate: 60/min}
  tenant: {concurrency: 1}
nodes:
  - name: ask
    set: {x: 1}
    limits: [openai, elsewhere]
config: {limits: [tenant]}
"""


def test_nodes_tasks_and_the_config_name_limits_that_the_file_declares() -> None:
    """H18: with their values, which the store then has; of graphs and of workflows."""
    for text in (GRAPH, GRAPH.replace("nodes", "tasks")):
        store = MemoryStore()
        graph = loads(text, store=store)
        compiled = graph.compiled()
        assert compiled.plan.limits == (Limit("elsewhere"), Limit("openai", concurrency=2, rate="60/min"))
        assert compiled.limits == (Limit("tenant", concurrency=1),)
        assert compiled.plan.nodes["ask"].limits == ("elsewhere", "openai")
        graph.execute({})
        assert Limits(store).get("openai").concurrency == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("limits: [openai, elsewhere]", "limits: []", "nothing has the limit 'openai'"),
        ("rate: 60/min", "rate: often", "a rate says how many"),
        ("concurrency: 2", "concurrency: 0", "concurrency must be a whole number of at least 1"),
        ("concurrency: 2", "slots: 2", "slots"),
        ("limits: [openai, elsewhere]", "limits: openai", "limits"),
        ("limits: [tenant]", "limits: [tenant, openai]", "name it in one place"),
    ],
)
def test_mistakes_are_reported_with_their_places(old: str, new: str, said: str) -> None:
    """H18: when the file is loaded."""
    with pytest.raises(DeclarationError) as caught:
        loads(GRAPH.replace(old, new), store=MemoryStore())
    assert said in str(caught.value)


def test_the_name_of_a_limit_that_is_misspelt_is_noted_where_it_is() -> None:
    """H18: in place of a message about the one that was meant."""
    with pytest.raises(DeclarationError) as caught:
        loads(GRAPH.replace("[openai, elsewhere]", "[elsewhere, openia]"))
    [mistake] = caught.value.mistakes
    assert ":9:25: " in mistake
    assert "no limit 'openia'; did you mean 'openai'?" in mistake


def test_a_limit_of_a_queue_need_not_be_named() -> None:
    """H18, F13: it holds for all runs of its queues, and the file declares it."""
    text = "limits:\n  gpus: {concurrency: 2, queues: [gpu]}\nnodes: [{name: a}]"
    compiled = loads(text).compile(store="memory").compiled()
    assert compiled.limits == ()
    assert compiled.queue_limits == (Limit("gpus", concurrency=2, queues=["gpu"]),)
    named = loads(f"{text}\nconfig: {{limits: [gpus]}}").compile(store="memory").compiled()
    assert named.queue_limits == compiled.queue_limits
    with pytest.raises(DeclarationError, match="nothing has the limit 'gpus'"):
        loads(text.replace(", queues: [gpu]", ""))
