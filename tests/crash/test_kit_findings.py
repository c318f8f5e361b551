"""The crash-test kit in the hands of a user: what is wrong with a graph is found and explained, else it passes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import UsageError
from limpet.testing import CrashMatrix, CrashMatrixFailed
from support import kit_graphs

SOURCE = Path(limpet.__file__).parents[1]

IMPORTS = """
import os, threading, uuid
from pathlib import Path
from limpet import StateGraph, once, pause, sleep
from limpet.testing import effects

def chain(*functions):
    graph = StateGraph(name="shop")
    for function in functions:
        graph.add_node(function.__name__, run=function)
    for one, next_one in zip(functions, functions[1:]):
        graph.add_edge(one.__name__, next_one.__name__)
    return graph.set_entry_point(functions[0].__name__).set_finish_point(functions[-1].__name__)

def ship(state):
    return {"shipped": True}
"""


@pytest.fixture
def user(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's project: `user(code, *options)` runs the tests in it, with the plugin and nothing else."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(code: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_shop=IMPORTS + code)
        return pytester.runpytest_inprocess("-p", "limpet.testing.pytest_plugin", "-q", *options)

    return run


CHARGE_TWICE = """
def pay(state, ctx):
    effects.record("charge")
    once("invoice", effects.record, "invoice", ctx.idempotency_key)
    return {"paid": True}

def build():
    return chain(pay, ship)

def test_it(crash_matrix):
    crash_matrix(build)
"""


def test_an_effect_outside_of_once_is_found_named_and_can_be_seen_again(user: Any) -> None:
    """H3: with the node, the points, the advice, and how to reproduce one of them."""
    told = user(CHARGE_TWICE, "--limpet-crash-matrix")
    told.assert_outcomes(failed=1)
    text = str(told.stdout)
    assert "effect 'charge' of node 'pay' happened 2 times, 1 in the uninterrupted run" in text
    assert "effect 'invoice'" not in text
    assert "point=3:before: killed before commit 3 that saves node 'pay'" in text
    assert "ctx.idempotency_key" in text
    assert "once(key, function)" in text
    assert "--limpet-crash-point=" in text
    again = user(CHARGE_TWICE, "--limpet-crash-point=3:before")
    again.assert_outcomes(failed=1)
    assert "killed at 1 of 1 points" in str(again.stdout)
    fine = user(CHARGE_TWICE, "--limpet-crash-point=3:written")
    fine.assert_outcomes(passed=1)


BUGS = """
SEEN = {}

def remember(state):
    SEEN["customer"] = "Ann"
    return {"noted": True}

def greet(state):
    return {"greeting": "Hello, " + SEEN.get("customer", "stranger")}

def build_global():
    return chain(remember, greet)

def test_global(crash_matrix):
    crash_matrix(build_global)

def prepare(state):
    os.mkdir(Path(os.environ["PLACE"], state["run"]))
    return {"ready": True}

def build_unready():
    return chain(prepare, ship)

def test_not_resumable(crash_matrix, monkeypatch, tmp_path):
    monkeypatch.setenv("PLACE", str(tmp_path))
    crash_matrix(build_unready, point="2:before", input={"run": "a"})

def pay(state):
    effects.record("charge", str(uuid.uuid4()))
    return {"paid": True}

def build_key():
    return chain(pay, ship)

def test_made_up_key(crash_matrix):
    crash_matrix(build_key, point="2:before")

DONE = threading.Event()

def work(state):
    DONE.set()

def wait(state):
    DONE.wait()

def build_waiting():
    return chain(work, wait)

def test_waits_for_what_died(crash_matrix):
    crash_matrix(build_waiting, point="2:after", timeout=3)

def leave(state):
    print("I am off")
    os._exit(3)

def build_leaving():
    return chain(leave)

def test_leaves(crash_matrix):
    crash_matrix(build_leaving)

def stamp(state):
    return {"id": str(uuid.uuid4())}

def build_stamp():
    return chain(stamp)

def test_differs_by_nature(crash_matrix):
    crash_matrix(build_stamp)

def ask(state):
    return {"answer": pause("Ship it?")}

def build_asking():
    return chain(ask)

def test_unscripted(crash_matrix):
    crash_matrix(build_asking)

def test_never_asked(crash_matrix):
    crash_matrix(build_asking, answers={"Ship it?": "yes", "Pack it?": "no"})
"""


def test_real_mistakes_are_found_and_explained(user: Any) -> None:
    """H3, H9: state outside of the state, nodes that can't run again, keys that change, waits for the dead."""
    told = user(BUGS)
    text = str(told.stdout)
    # The uninterrupted run made the directory, and so did the second: this node can't run twice in any case.
    told.assert_outcomes(failed=8)
    assert (
        "state['greeting']: the uninterrupted run has 'Hello, Ann', the resumed one has 'Hello, stranger'"
        in text
    )
    assert "not in globals" in text
    assert "FileExistsError" in text
    assert "A key that the node makes up is a new one each time" in text
    assert "the resumed run didn't end in time" in text
    assert "ended by itself (3); it printed:" in text
    assert "I am off" in text
    assert "Name keys that differ by nature in ignore=['id']" in text
    assert "no answer is scripted for 'Ship it?'" in text
    assert "never asked for these answers: ['Pack it?']" in text


GOOD = """
def pay(state, ctx):
    effects.record("charge", ctx.idempotency_key)
    effects.record("log")
    return {"paid": True, "id": str(uuid.uuid4())}

def nap(state):
    sleep(86400)

def build(store):
    return chain(pay, nap, ship).compile(store=store)

def test_it(crash_matrix):
    report = crash_matrix(build, ignore=["id"], repeatable=["log"])
    assert report.killed == report.points == 21, str(report)

def test_without_it():
    effects.record("nothing happens")
"""


def test_a_good_graph_passes_beside_other_plugins(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed: with xdist, random order and whatever else is there, and warnings as errors."""
    installed = pytester.mkdir("site") / "limpet-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: limpet\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nlimpet = limpet.testing.pytest_plugin\n")
    (installed / "RECORD").write_text("limpet/__init__.py,,\nlimpet/testing/plugin.py,,\n")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), str(installed.parent)]))
    pytester.makepyfile(test_shop=IMPORTS + GOOD)
    told = pytester.runpytest_subprocess("-n", "1", "-W", "error", "--limpet-crash-matrix")
    told.assert_outcomes(passed=2)


def test_what_another_process_cannot_get_hold_of_is_refused(crash_matrix: CrashMatrix) -> None:
    """The message says what to give instead."""
    with pytest.raises(UsageError, match="define the function at the top of its module"):
        crash_matrix(lambda store: kit_graphs.cycle(store))
    with pytest.raises(UsageError, match="a function that makes the graph"):
        crash_matrix(kit_graphs.linear_graph)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"write 'package\.module:attribute'"):
        crash_matrix("support.kit_graphs")
    with pytest.raises(UsageError, match="picklable"):
        crash_matrix(kit_graphs.asking, answers={"Publish?": lambda question: "yes"})
    with pytest.raises(UsageError, match="there is no point '99:after'; the points are 1:before, 1:written"):
        crash_matrix(kit_graphs.linear, point="99:after")
    with pytest.raises(CrashMatrixFailed, match="has no 'nothing'"):
        crash_matrix("support.kit_graphs:nothing")
    with pytest.raises(UsageError, match="ignore is a list of names"):
        crash_matrix(kit_graphs.linear, ignore="trail")
    with pytest.raises(UsageError, match="'now' isn't a point of a chain; write 2:before"):
        crash_matrix(kit_graphs.linear, chains=[["1:after", "now"]])
    with pytest.raises(UsageError, match="a chain is a list of points"):
        crash_matrix(kit_graphs.linear, chains=["1:after"])
    with pytest.raises(UsageError, match="not several of them"):
        crash_matrix(kit_graphs.linear, point="2:after", random_kills=3)
    with pytest.raises(UsageError, match="level is 'process' or 'disk'"):
        crash_matrix(kit_graphs.linear, level="memory")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="with 'sync', 'recover'"):
        crash_matrix(kit_graphs.linear, driver="stream", by="recover")
