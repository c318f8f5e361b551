"""The examples of the guide that Limpet's first users know run with only their import line changed."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from limpet import CheckpointConfig, MemoryCheckpointer, MemoryStore, StateGraph
from limpet.stores.user_stores.checkpoint_files import CheckpointFiles
from support.graphs import chain

PAGE = Path(__file__).with_name("guide_examples.md")
EXAMPLE = re.compile(r"^## (?P<title>.+?)\n+```python\n(?P<code>.*?)^```$", re.M | re.S)
EXAMPLES = {found["title"]: found["code"] for found in EXAMPLE.finditer(PAGE.read_text(encoding="utf-8"))}

AFTER = {
    "interrupt event": ["interrupt before a node"],
    "resume": ["interrupt before a node"],
    "resume with values": ["interrupt before a node", "resume"],
    "resume with settings": ["interrupt before a node", "resume", "resume with values"],
}
"""The examples that each example continues, in the order of the guide."""


WITH_BRANCHES = "checkpoint with parallel flows"
"""The example that continues a graph with parallel edges, which the guide doesn't show."""


WITH_FILES = (
    "checkpoint files",
    "files at interrupts",
    "clean up old checkpoints",
    "a directory for each session",
)
"""The examples that write checkpoint files."""


def note(state: dict[str, Any], node: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"ran": [*state.get("ran", []), node], "config": dict(config)}


def graph_of(*names: str, **settings: Any) -> StateGraph:
    return chain(*[note] * len(names), names=names, **{"name": "graph", **settings})


def graph_with_branches(work: Callable[..., Any] = note) -> StateGraph:
    """A graph whose branches end at a fan-in that the example adds."""
    graph = StateGraph(name="flows").add_node("split").set_entry_point("split")
    for name in ("text", "images"):
        graph.add_node(name, run=work).add_parallel_edge("split", name, "combine")
    return graph.set_finish_point("combine")


def supplied(title: str) -> dict[str, Any]:
    """The names that the guide uses without defining them."""
    return {
        "graph": graph_for(title),
        "workflow_id": "w1",
        "session_id": "s1",
        "checkpointer": MemoryCheckpointer(),
        "merge_results": lambda results: [node for result in results for node in result["ran"]],
        "prepare_func": note,
        "review_func": note,
        "execute_func": note,
        "process": lambda given: {"processed": given},
        "do_action": lambda data: f"done with {data['processed']}",
        "time": time,
        "Protocol": Protocol,
        "Dict": dict,
    }


def graph_for(title: str) -> StateGraph:
    """The graph that an example continues."""
    if title == WITH_BRANCHES:
        return graph_with_branches()
    if title in WITH_FILES:
        return graph_of("prepare", "review", "execute")
    steps = ("prepare_data", "validate_data", "send_email", "deploy_production")
    return graph_of(*steps, checkpoint=CheckpointConfig(MemoryStore(), interval=1))


def run(title: str, namespace: dict[str, Any]) -> None:
    """Run an example, with only its import line changed."""
    code = re.sub(r"^from the_edge_agent import ", "from limpet import ", EXAMPLES[title], flags=re.M)
    exec(compile(code, f"{PAGE.name}: {title}", "exec"), namespace)


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def stops_and_resumes(graph: StateGraph, directory: Path) -> None:
    """Writes the checkpoint files to this directory, because the guide uses one that all tests would share."""
    graph.compile(interrupt_before=["review"], checkpoint_dir=directory)
    (stop,) = graph.invoke({"value": 1})
    path = Path(stop["checkpoint_path"])
    assert re.fullmatch(r"review_\d+\.pkl", path.name)
    assert pickle.loads(path.read_bytes())["state"] == {"value": 1, "ran": ["prepare"], "config": {}}
    (final,) = graph.invoke({"approved": True}, checkpoint=stop["checkpoint_path"])
    assert (final["state"]["ran"], final["state"]["approved"]) == (["prepare", "review", "execute"], True)


def directory_of(graph: StateGraph) -> Path:
    keeper = graph.compiled().checkpointer
    assert isinstance(keeper, CheckpointFiles)
    assert keeper.directory is not None
    return keeper.directory


def checkpoint_files(made: dict[str, Any]) -> None:
    assert directory_of(made["graph"]) == Path("/tmp/checkpoints")
    stops_and_resumes(made["graph"], Path("checkpoints"))


def files_at_interrupts(made: dict[str, Any]) -> None:
    checkpoint_files(made)


def clean_up_old_checkpoints(made: dict[str, Any]) -> None:
    graph = made["graph"].compile(interrupt_before=["review"], checkpoint_dir="./checkpoints")
    paths = [event["checkpoint_path"] for _ in range(7) for event in graph.invoke({"value": 1})]
    assert len(set(paths)) == 7
    run("clean up old checkpoints", made)
    kept = [path for path in paths if Path(path).exists()]
    assert len(kept) == 5
    (final,) = graph.invoke(None, checkpoint=kept[-1])
    assert final["type"] == "final"


def a_directory_for_each_session(made: dict[str, Any]) -> None:
    directory = directory_of(made["graph"])
    assert directory == Path.cwd() / "checkpoints" / "w1" / "s1"
    stops_and_resumes(made["graph"], directory)


def memory_checkpointer(made: dict[str, Any]) -> None:
    assert isinstance(made["checkpointer"], MemoryCheckpointer)
    assert made["graph"].execute({})["ran"][-1] == "deploy_production"


def interrupt_before_a_node(made: dict[str, Any]) -> None:
    assert types(list(made["graph"].invoke({"value": 1}))) == ["interrupt"]


def interrupt_event(made: dict[str, Any]) -> None:
    event = made["interrupt_event"]
    assert (event["type"], event["node"], event["state"]["value"]) == ("interrupt", "review", 1)
    assert event["state"]["ran"] == ["prepare"]
    assert made["checkpointer"].load(event["checkpoint_path"])["state"]["value"] == 1


def resume(made: dict[str, Any]) -> None:
    assert types(made["resume_events"]) == ["final"]
    assert made["resume_events"][-1]["state"]["ran"] == ["prepare", "review", "execute"]


def resume_with_values(made: dict[str, Any]) -> None:
    resume(made)
    state = made["resume_events"][-1]["state"]
    assert (state["value"], state["approved"], state["feedback"]) == (1, True, "Looks good")


def resume_with_settings(made: dict[str, Any]) -> None:
    resume(made)
    state = made["resume_events"][-1]["state"]
    assert (state["approved"], state["config"]) == (True, {"timeout": 60})
    assert "feedback" not in state


def human_in_the_loop(made: dict[str, Any]) -> None:
    assert (made["interrupt"]["type"], made["interrupt"]["node"]) == ("interrupt", "review")
    assert made["state"] == {"input": "raw data", "data": {"processed": "raw data"}, "ready_for_review": True}
    assert made["final_state"]["result"] == "done with raw data"
    assert (made["final_state"]["reviewed"], made["final_state"]["feedback"]) == (True, "Looks good")


def checkpoint_with_parallel_flows(made: dict[str, Any]) -> None:
    checkpointer = made["checkpointer"]
    (stop,) = made["graph"].invoke({})
    assert (stop["type"], stop["node"]) == ("interrupt", "combine")
    assert stop["state"]["combined"] == ["text", "images"]
    assert checkpointer.load(stop["checkpoint_path"])["state"]["combined"] == ["text", "images"]
    (final,) = made["graph"].invoke(None, checkpoint=stop["checkpoint_path"])
    assert (final["type"], final["state"]["combined"]) == ("final", ["text", "images"])

    def not_again(state: dict[str, Any]) -> None:
        raise AssertionError("a branch ran again, although the checkpoint has its result")

    before = made["graph"].compile(interrupt_before=["combine"], checkpointer=checkpointer)
    (stop,) = before.invoke({})
    after = graph_with_branches(not_again).add_fanin_node("combine", run=made["aggregate"])
    (final,) = after.compile(checkpointer=checkpointer).invoke(None, checkpoint=stop["checkpoint_path"])
    assert final["state"]["combined"] == ["text", "images"]


def what_a_checkpoint_holds(made: dict[str, Any]) -> None:
    kept = MemoryCheckpointer()
    described = eval(EXAMPLES["what a checkpoint holds"])
    made["graph"].save_checkpoint("review.pkl", {}, "review", {})
    for found in (kept.load(kept.save({}, "review", {})), StateGraph.load_checkpoint("review.pkl")):
        assert {"state", "node", "config"} <= found.keys() <= described.keys()
        assert found.pop("version", "1.0") == described["version"]
        assert all(isinstance(found[key], described[key]) for key in found)


def where_to_interrupt(made: dict[str, Any]) -> None:
    (event,) = made["graph"].invoke({})
    assert (event["type"], event["node"]) == ("interrupt", "validate_data")


def a_node_that_keeps_what_a_resume_needs(made: dict[str, Any]) -> None:
    graph = StateGraph().add_node("prepare", run=made["prepare"]).set_entry_point("prepare")
    final = (
        graph.set_finish_point("prepare").compile(store="memory://").execute({"input": 1, "context": "kept"})
    )
    assert (final["data"], final["context"]) == ({"processed": 1}, "kept")
    assert isinstance(final["metadata"]["prepared_at"], float)


def no_checkpoint_yet(made: dict[str, Any]) -> None:
    assert types(made["events"]) == ["final"]
    assert made["events"][-1]["state"]["input"] == "start fresh"
    made["graph"].save_checkpoint("./checkpoints/state.pkl", {"input": "kept"}, "send_email")
    run("no checkpoint yet", made)
    assert types(made["events"]) == ["final"]
    assert made["events"][-1]["state"]["input"] == "kept"
    assert made["events"][-1]["state"]["ran"] == ["send_email", "deploy_production"]


def checkpointer_protocol(made: dict[str, Any]) -> None:
    class Own(made["Checkpointer"]):  # type: ignore[misc]  # made by the example
        kept: dict[str, Any] = {}  # noqa: RUF012  # one is enough here

        def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
            self.kept["only"] = {"state": state, "node": node, "config": config}
            return "only"

        def load(self, path: str) -> dict[str, Any]:
            found: dict[str, Any] = self.kept[path]
            return found

    graph = graph_of("a", "b").compile(checkpointer=Own(), interrupt_before=["b"])
    (event,) = graph.invoke({})
    (final,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert (event["checkpoint_path"], final["state"]["ran"]) == ("only", ["a", "b"])


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    check.__name__.replace("_", " "): check
    for check in (
        memory_checkpointer,
        checkpoint_files,
        interrupt_before_a_node,
        interrupt_event,
        resume,
        resume_with_values,
        resume_with_settings,
        human_in_the_loop,
        files_at_interrupts,
        checkpoint_with_parallel_flows,
        what_a_checkpoint_holds,
        where_to_interrupt,
        a_node_that_keeps_what_a_resume_needs,
        no_checkpoint_yet,
        clean_up_old_checkpoints,
        a_directory_for_each_session,
        checkpointer_protocol,
    )
}


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_runs_with_only_its_import_line_changed(
    title: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """F1, F3, F4, F6, F7, F8, F11, F12: and does what the guide says it does."""
    monkeypatch.chdir(tmp_path)
    namespace = supplied(title)
    for each in [*AFTER.get(title, []), title]:
        run(each, namespace)
    assert list(tmp_path.iterdir()) == []
    CHECKS[title](namespace)


def test_every_example_is_checked() -> None:
    """F1: no example is left out, and every check has its example."""
    assert list(EXAMPLES) == list(CHECKS)
    assert sum("the_edge_agent" in code for code in EXAMPLES.values()) == 3
