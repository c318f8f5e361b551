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
        compiled = loads(text).compiled()
        assert compiled.plan.limits == (Limit("elsewhere"), Limit("openai", concurrency=2, rate="60/min"))
        assert compiled.limits == (Limit("tenant", concurrency=1),)
        assert compiled.plan.nodes["ask"].limits == ("elsewhere", "openai")
        with pytest.raises(DeclarationError, match="no worker holds to limits yet"):
            loads(text, store=MemoryStore())
        store = MemoryStore()
        lines = [line for line in text.splitlines() if "tenant" not in line]
        loads("\n".join(lines), store=store).execute({})
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
