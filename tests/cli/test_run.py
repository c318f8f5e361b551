"""`run`, `resume`, `answer`: what they show, and how they end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from limpet.cli import project
from support.command_line import FLOWS, Command
from support.waiting import until


def test_a_run_that_completes_shows_its_state(limpet: Command) -> None:
    """H6: and ends with 0."""
    done = limpet("run", "flows:plain", "--input", "x=5", "--id", "r")
    assert done.code == 0
    assert "completed" in done.out
    assert "  x     7" in done.out
    assert "✓ one" in done.err


def test_a_run_is_printed_for_programs_as_one_object(limpet: Command) -> None:
    done = limpet("run", "flows:plain", "--input", '{"x": 1}', "--id", "r", "--json")
    assert done.code == 0
    assert done.data == {
        "run_id": "r", "graph": "plain", "status": "completed", "state": {"x": 3, "name": "ann"},
        "questions": [], "error": None,
    }  # fmt: skip
    assert done.err == ""


def test_an_input_is_put_together_from_files_objects_and_pairs(limpet: Command, here: Path) -> None:
    (here / "in.json").write_text('{"x": 1, "y": [1, 2]}')
    done = limpet("run", "flows:plain", "-i", "@in.json", "x=10", "-i", '{"z": null}', "--json")
    assert done.data["state"] == {"x": 12, "y": [1, 2], "z": None, "name": "ann"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["@nope.json"], "can't read nope.json"),
        (["{x}"], "isn't valid JSON"),
        (["novalue"], "key=value"),
        (["@list.json"], "a JSON object"),
    ],
)
def test_an_invalid_input_is_wrong_use(limpet: Command, here: Path, given: list[str], said: str) -> None:
    (here / "list.json").write_text("[1]")
    done = limpet("run", "flows:plain", "-i", *given)
    assert (done.code, said in done.err) == (2, True)
    assert not (here / "limpet.db").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["-i", "x=5", "flows:plain"],
        ["-i", "y=1", "x=5", "flows:plain", "--id", "r"],
        ["-i", "y=1", "flows:plain", "-i", "x=5"],
        ["--id", "r", "-i", "@in.json", "flows:plain"],
        ["flows:plain", "-i", "y=1", "x=5"],
    ],
)
def test_a_graph_may_follow_the_input(limpet: Command, here: Path, words: list[str]) -> None:
    """H6: in whichever order they are typed."""
    (here / "in.json").write_text('{"x": 5}')
    done = limpet("run", *words, "--json")
    assert (done.code, done.data["state"]["x"]) == (0, 7)


@pytest.mark.parametrize("words", [[], ["-i", "x=5"], ["--id", "r"]])
def test_a_run_without_a_graph_is_wrong_use(limpet: Command, words: list[str]) -> None:
    done = limpet("run", *words)
    assert (done.code, "run needs a GRAPH" in done.err) == (2, True)


def test_a_priority_is_only_for_queued_runs(limpet: Command, here: Path) -> None:
    """H1: it isn't silently ignored."""
    done = limpet("run", "flows:plain", "--priority", "0")
    assert (done.code, "--detach" in done.err) == (2, True)
    assert not (here / "limpet.db").exists()
    assert limpet("run", "flows:plain", "--priority", "3", "--detach", "--id", "r").code == 0
    assert limpet("runs", "show", "r", "--json").data["priority"] == 3
    assert ["priority", "3"] in [line.split() for line in limpet("runs", "show", "r").out.splitlines()]


def test_a_paused_run_says_how_to_answer_it_and_that_works(limpet: Command) -> None:
    """G11, P1: with the very command that is printed, in another call."""
    done = limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    assert done.code == 3
    printed = done.err.strip().splitlines()[-1].strip()
    assert printed == "limpet answer r yes --graph flows:graph"
    done = limpet(*printed.split()[1:])
    assert done.code == 0
    assert "completed" in done.out


def test_an_answer_that_isnt_one_is_refused(limpet: Command) -> None:
    """P1: and the run waits on."""
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    done = limpet("answer", "r", "perhaps", "--graph", "flows:graph")
    assert done.code == 2
    assert "'yes', 'no'" in done.err
    assert limpet("runs", "show", "r", "--json").data["status"] == "paused"


def test_several_questions_are_answered_by_name(limpet: Command) -> None:
    """P3: each has its own command."""
    done = limpet("run", "flows:twice", "--id", "r")
    assert done.code == 3
    first, second = (
        line.strip().split() for line in done.err.splitlines() if line.startswith("  limpet answer")
    )
    assert limpet("answer", "r", "5", "--graph", "flows:twice").code == 2
    assert limpet("answer", "r", "nope", "5", "--graph", "flows:twice").code == 2
    assert limpet("answer", "r", first[3], "5", "--graph", "flows:twice").code == 3
    done = limpet("answer", "r", second[3], "five words it is", "--graph", "flows:twice", "--json")
    assert (done.code, done.data["state"]["sum"]) == (
        0,
        [{"x": 1, "a": 5}, {"x": 1, "b": "five words it is"}],
    )


def test_a_failed_run_says_how_to_try_again_and_that_works(limpet: Command) -> None:
    """G11: after what was wrong is fixed."""
    done = limpet("run", "flows:busy", "--id", "r")
    assert done.code == 1
    assert "the line is busy" in done.err
    *_, here, printed, _, handed_back = map(str.strip, done.err.strip().splitlines())
    assert here == "After fixing the problem, retry it here with:"
    assert printed == "limpet resume r --graph flows:busy"
    assert handed_back == "limpet runs retry r --graph flows:busy"
    assert limpet(*printed.split()[1:]).code == 1
    assert limpet(*printed.split()[1:], "--set", "fixed=true").code == 0


def test_a_run_that_is_complete_isnt_resumed(limpet: Command) -> None:
    """G8."""
    limpet("run", "flows:plain", "--id", "r")
    done = limpet("resume", "r", "--graph", "flows:plain")
    assert done.code == 1
    assert "complete" in done.err


def test_a_run_that_exists_gives_its_result_again(limpet: Command) -> None:
    """H10: for the same input; another one is a conflict."""
    first = limpet("run", "flows:plain", "--id", "r", "--json")
    again = limpet("run", "flows:plain", "--id", "r", "--json")
    assert (again.code, again.data) == (0, first.data)
    assert limpet("run", "flows:plain", "--id", "r", "-i", "x=9").code == 5


def test_a_run_can_be_queued_and_executed_by_a_worker(limpet: Command) -> None:
    """H1: `--detach` only stores it."""
    done = limpet("run", "flows:plain", "--id", "r", "--detach", "-i", "x=1")
    assert (done.code, done.out) == (0, "r\n")
    assert limpet("runs", "show", "r", "--json").data["status"] == "queued"
    done = limpet("worker", "flows:plain", "--once", "--json")
    assert done.code == 0
    assert limpet("runs", "state", "r", "--key", "x").out == "3\n"


def test_an_answer_can_be_left_to_a_worker(limpet: Command) -> None:
    """P1, H1: without the graph's code, or with `--detach`."""
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    assert limpet("answer", "r", "--detach", "yes").code == 0
    assert limpet("runs", "show", "r", "--json").data["status"] == "queued"
    limpet("worker", "flows:graph", "--once")
    assert limpet("runs", "show", "r", "--json").data["status"] == "completed"


@pytest.mark.parametrize("more", [[], ["--detach"], ["--graph", "flows:graph"]])
def test_the_history_has_who_answers(limpet: Command, more: list[str]) -> None:
    """H19: also where the run is resumed at once."""
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    assert limpet("answer", "r", "yes", "--by", "Ann", *more).code == 0
    limpet("worker", "flows:graph", "--once")
    assert limpet("runs", "show", "r", "--json").data["status"] == "completed"
    events = [json.loads(line) for line in limpet("runs", "watch", "r", "--json").out.splitlines()]
    (answer,) = [event for event in events if event["type"] == "answer"]
    assert list(answer["by"].values()) == ["Ann"]


def test_who_answers_one_of_several_questions_leaves_the_others_open(limpet: Command) -> None:
    """H19, P3: also where the run is resumed at once."""
    done = limpet("run", "flows:twice", "--id", "r")
    first, second = (
        line.strip().split() for line in done.err.splitlines() if line.startswith("  limpet answer")
    )
    done = limpet("answer", "r", first[3], "5", "--by", "Ann", "--graph", "flows:twice")
    assert done.code == 3
    assert "b/b asks: B?" in done.err
    done = limpet("answer", "r", second[3], "6", "--by", "Bo", "--graph", "flows:twice", "--json")
    assert (done.code, done.data["state"]["sum"]) == (0, [{"x": 1, "a": 5}, {"x": 1, "b": 6}])


def test_an_answer_is_only_saved_if_that_is_wanted(limpet: Command) -> None:
    """P1: `--detach`, also where the code is known; the commands that it prints work."""
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    done = limpet("answer", "r", "yes", "--detach", "--graph", "flows:graph")
    assert (done.code, done.out) == (0, "r\n")
    assert limpet("runs", "show", "r", "--json").data["status"] == "queued"
    first, second = (line.split()[1:] for line in done.err.splitlines() if line.startswith("  limpet"))
    assert limpet(*first).code == 0
    assert limpet(*second).code == 0
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r2")
    assert limpet("answer", "r2", "perhaps", "--detach").code == 2
    data = limpet("answer", "r2", "yes", "--detach", "--json").data
    assert data == {"run_id": "r2", "status": "queued"}


GATED = """
from limpet import StateGraph
graph = StateGraph(name="gated").add_node("a", run=lambda state: {"a": 1}).add_node("b", run=lambda state: {"b": 1})
graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b").compile(
    store="sqlite:///limpet.db", preserve=True, interrupt_before=["b"]
)
"""


def test_an_interrupted_run_is_approved_and_a_fork_is_handed_to_a_worker(limpet: Command, here: Path) -> None:
    """H10: without the graph's code or with `--detach`, else here; each error names the command that fits."""
    (here / "gated.py").write_text(GATED)
    for run_id in ("r", "s"):
        stopped = limpet("run", "gated.py:graph", "--id", run_id)
        assert f"limpet answer {run_id} --detach" in stopped.err
    refused = limpet("answer", "r", "yes")
    assert (refused.code, "it is interrupted before 'b', and waits for an approval" in refused.err) == (
        2,
        True,
    )
    assert refused.err.endswith("Approve it with:\n  limpet answer r\n")
    assert limpet("runs", "retry", "r").err.endswith("Approve it with:\n  limpet answer r\n")
    assert limpet("answer", "r", "--detach", "--graph", "gated.py:graph").out == "r\n"
    assert limpet("runs", "show", "r", "--json").data["status"] == "queued"
    limpet("worker", "gated.py:graph", "--once")
    assert limpet("runs", "show", "r", "--json").data["status"] == "completed"
    assert limpet("answer", "s", "--graph", "gated.py:graph", "--json").data["status"] == "completed"

    limpet("runs", "fork", "s", "--step", "1", "--id", "f", "--graph", "gated.py:graph")
    assert limpet("runs", "show", "f").err.endswith("limpet runs retry f\n")
    assert limpet("answer", "f").code == 2
    assert limpet("runs", "retry", "f").code == 0
    begun = limpet("runs", "fork", "s", "--step", "1", "--id", "g", "--begin", "--graph", "gated.py:graph")
    assert (begun.out, begun.err) == ("g\n", "")
    limpet("worker", "gated.py:graph", "--once")
    for run_id in ("f", "g"):
        assert limpet("runs", "show", run_id, "--json").data["reason"] == "interrupted before 'b'"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nope", "yes"], 4, "limpet runs list"),
        (["done", "yes"], 2, "has no open question: it is completed"),
        (["stopped", "yes"], 1, "was cancelled, so it takes no answer"),
        (["stopped", "yes", "--graph", "flows:graph"], 1, "limpet runs retry stopped"),
        (["waits", "a", "b", "c"], 2, "quote a value of several words"),
        (["waits"], 2, "limpet answer waits"),
        (["done"], 2, "has no open question: it is completed"),
    ],
)
def test_an_answer_to_nothing_is_refused(limpet: Command, words: list[str], code: int, said: str) -> None:
    limpet("run", "flows:plain", "--id", "done")
    for run_id in ("waits", "stopped"):
        limpet("run", "flows:graph", "-i", "topic=kelp", "--id", run_id)
    limpet("runs", "cancel", "stopped")
    assert "limpet runs retry stopped" in limpet("runs", "show", "stopped").err
    assert limpet("runs", "show", "stopped", "--json").data["questions"] == []
    again = limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "stopped")
    assert "limpet resume stopped" in again.err
    done = limpet("answer", *words)
    assert done.code == code
    assert said in done.err


def test_a_worker_prints_what_it_resumes(limpet: Command) -> None:
    """H1: in lines, and as JSON."""
    for run_id in ("a", "b"):
        limpet("run", "flows:graph", "-i", "topic=kelp", "--id", run_id, "--detach")
    done = limpet("worker", "flows:graph", "flows:plain", "--once", "--concurrency", "1")
    assert done.code == 0
    assert "article a paused: 'review' asks: Publish" in done.err
    assert done.err.endswith("resumed 2 runs\n")
    limpet("run", "flows:plain", "--id", "c", "--detach")
    said = limpet("worker", "flows:plain", "--once", "--json").out.splitlines()
    assert [json.loads(line).get("type") for line in said] == ["graph.start", "graph.complete", None]
    assert json.loads(said[-1]) == {"runs": ["c"]}


def test_a_worker_wants_graphs_and_a_store_that_it_can_use(limpet: Command) -> None:
    assert "no graph named" in limpet("worker", "--once").err
    assert limpet("worker", "--once").code == 2
    assert limpet("worker", "flows:nope", "--once").code == 2
    assert limpet("worker", "flows:plain", "--once", "--concurrency", "0").code == 2
    assert limpet("worker", "flows:plain", "--once", "--store", "sqlite:///no/such/a.db").code == 6


def test_a_workflow_is_run_too(limpet: Command) -> None:
    """D1."""
    done = limpet("run", "flows:flow", "-i", "topic=kelp", "--json")
    assert (done.code, done.data["state"]["tasks"]["words"]["result"]) == (0, 2)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nope:graph", "can't import 'nope'"),
        ("flows:grph", "did you mean 'graph'?"),
        ("flows:not_a_graph", "isn't a graph"),
        ("flows:long", "flows:long: a str isn't a graph"),
        ("flows.py", "'flows.py' doesn't say which graph: give flows.py:graph, flows.py:busy, "),
        ("nothing.py", "'nothing.py' has no graph: give file.py:attribute"),
        ("nope.py", "the file nope.py doesn't exist"),
        ("flows", "give file.yaml, file.py:attribute or module:attribute"),
        ("nope.py:graph", "the file nope.py doesn't exist"),
        ("broken.py:graph", "ZeroDivisionError"),
        ("flows:wrong", "no node 'nowhere'"),
    ],
)
def test_a_graph_that_isnt_there_is_wrong_use(limpet: Command, here: Path, target: str, said: str) -> None:
    (here / "broken.py").write_text("1 / 0")
    (here / "nothing.py").touch()
    (here / "flows.py").write_text(f"{FLOWS}\nlong = 'x' * 1000\n")
    done = limpet("run", target)
    sys.modules.pop("nothing", None)
    assert done.code == 2
    assert said in done.err


def test_a_graph_may_be_in_a_file_or_be_made_by_a_function(limpet: Command) -> None:
    assert limpet("run", "flows.py:plain").code == 0
    assert limpet("run", "flows:make").code == 0


def test_resume_without_the_code_says_how_to_name_it(limpet: Command) -> None:
    """Stored data never says what is imported."""
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    done = limpet("resume", "r")
    assert done.code == 2
    assert "the code of graph 'article' wasn't found" in done.err


def test_the_project_may_name_store_and_graphs(
    limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: in pyproject.toml, and before that in the environment."""
    (here / "pyproject.toml").write_text(
        '[tool.limpet]\nstore = "sqlite:///mine.db"\ngraphs = ["flows:graph"]\n'
    )
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    assert (here / "mine.db").exists()
    assert limpet("answer", "r", "yes").code == 0
    monkeypatch.setenv("LIMPET_STORE", "sqlite:///other.db")
    assert limpet("runs", "show", "r").code == 6
    assert not (here / "other.db").exists()


def test_a_graph_that_has_a_store_of_its_own_is_resumed_there(limpet: Command, here: Path) -> None:
    """P5: by what is printed, which names no store; `limpet.db` is only for those that have none."""
    text = FLOWS.replace(
        'set_finish_point("publish")', 'set_finish_point("publish")\ngraph.compile(store="sqlite:///own.db")'
    )
    (here / "flows.py").write_text(text)
    done = limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    printed = done.err.strip().splitlines()[-1].split()
    assert limpet(*printed[1:]).code == 0
    assert limpet("runs", "list", "--graph", "flows:graph", "--json").data[0]["status"] == "completed"
    assert [path.name for path in here.glob("*.db")] == ["own.db"]


@pytest.mark.parametrize(
    "text", ["[tool.limpet]\nstore = 5\n", "[tool.limpet]\ngraphs = 'x'\n", "not toml ["]
)
def test_a_project_that_cant_be_read_is_wrong_use(limpet: Command, here: Path, text: str) -> None:
    (here / "pyproject.toml").write_text(text)
    assert limpet("run", "flows:graph", "--store", "sqlite:///a.db", "-i", "topic=k", "--id", "r").code in (
        2,
        3,
    )
    assert limpet("resume", "r", "--store", "sqlite:///a.db" if "store" not in text else "").code == 2


def test_a_store_that_is_named_in_a_file_is_next_to_it(
    limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: wherever below it the command is typed."""
    (here / "pyproject.toml").write_text('[tool.limpet]\nstore = "sqlite:///mine.db"\n')
    limpet("run", "flows:plain", "--id", "r")
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    assert limpet("runs", "show", "r").code == 0
    assert not list((here / "below").iterdir())


def test_a_store_that_is_misspelt_is_not_made(limpet: Command, here: Path) -> None:
    """P5: looking at what isn't there is a mistake, and leaves nothing behind."""
    for words in (
        ["runs", "list"],
        ["store", "info"],
        ["store", "verify"],
        ["resume", "r"],
        ["store", "prune"],
    ):
        done = limpet(*words, "--store", "sqlite:///nope.db")
        assert (done.code, "there is no store at nope.db" in done.err) == (6, True)
    assert not (here / "nope.db").exists()


@pytest.mark.parametrize(
    "store", ["sqlite:///nope.db", "nope.sqlite3", "file://./nope", "encrypted+sqlite:///nope.db"]
)
@pytest.mark.parametrize("named_by", ["--store", "LIMPET_STORE", "pyproject.toml"])
def test_a_command_that_only_reads_makes_no_store(
    limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch, store: str, named_by: str
) -> None:
    """P5: wherever the store is named; the error says where."""
    arguments: list[str] = []
    if named_by == "--store":
        arguments = ["--store", store]
    elif named_by == "LIMPET_STORE":
        monkeypatch.setenv("LIMPET_STORE", store)
    else:
        (here / "pyproject.toml").write_text(f'[tool.limpet]\nstore = "{store}"\n')
    before = sorted(here.iterdir())
    for words in (["runs", "list"], ["runs", "show", "r"], ["store", "info"], ["store", "verify"]):
        done = limpet(*words, *arguments)
        assert done.code == 6
        assert "nope" in done.err
        assert "there is no store at" in done.err
        assert named_by in done.err
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(("module", "path"), [("with_file", "Path('nope.db')"), ("with_text", "'nope'")])
def test_the_store_of_a_graph_is_not_made_by_reading_either(
    limpet: Command, here: Path, module: str, path: str
) -> None:
    """P5: a user's own store may mean anything by its path."""
    (here / f"{module}.py").write_text(
        "from pathlib import Path\n"
        "from limpet import MemoryStore, StateGraph\n"
        "class Own(MemoryStore):\n"
        f"    path = {path}\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.abilities = self.abilities._replace(shared=True)\n"
        "graph = StateGraph(name='own').add_node('a', run=lambda state: {}).set_entry_point('a')\n"
        "graph.set_finish_point('a').compile(store=Own())\n"
    )
    done = limpet("runs", "list", "--graph", f"{module}.py:graph")
    if module == "with_file":
        assert (done.code, "check the graph's store" in done.err) == (6, True)
    else:
        assert (done.code, done.err) == (0, "no runs match\n")


def test_a_store_in_pyproject_keeps_its_options_and_is_next_to_the_file(
    limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: also a directory, and for a command that is called from below."""
    (here / "a b%").mkdir()
    for store, made in (("sqlite:///runs.db?level=process", "runs.db"), ("file://./runs", "runs")):
        project._settings.cache_clear()
        (here / "pyproject.toml").write_text(f'[tool.limpet]\nstore = "{store}"\n')
        monkeypatch.chdir(here / "a b%")
        assert limpet("run", "flows:plain", "--id", "r").code == 0
        assert (here / made).exists()
    monkeypatch.chdir(here)
    (here / "pyproject.toml").write_text('[tool.limpet]\nstore = "sqlite:///runs.db?level=process"\n')
    project._settings.cache_clear()
    assert json.loads(limpet("store", "info", "--json").out)["level"] == "process"


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ('[tool.limpet]\nstor = "sqlite:///runs.db"', "no setting 'stor'; did you mean 'store'"),
        ('[tool.limpet]\ngraph = ["flows:plain"]', "no setting 'graph'; did you mean 'graphs'"),
        ("[tool.limpet]\nworkers = 3", "no setting 'workers'; there are store, graphs"),
        ('[tool]\nlimpet = "sqlite:///runs.db"', "must be a table"),
    ],
)
def test_a_typo_in_the_settings_of_the_project_is_an_error(
    limpet: Command, here: Path, table: str, wrong: str
) -> None:
    """P5: it would otherwise have no effect and go unnoticed."""
    (here / "pyproject.toml").write_text(table + "\n")
    done = limpet("runs", "list")
    assert done.code == 2
    assert wrong in done.err.replace('"', "'")


def test_queueing_a_run_that_exists_says_so(limpet: Command) -> None:
    """H1, H10: the id and the input are an idempotency key. Another input is a conflict."""
    limpet("run", "flows:plain", "--id", "r")
    done = limpet("run", "flows:plain", "--id", "r", "--detach")
    assert (done.code, "already exists (completed)" in done.err) == (0, True)
    assert "worker" not in done.err
    again = limpet("run", "flows:plain", "--id", "r", "--detach", "--json")
    assert again.data == {"run_id": "r", "status": "completed"}
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "asks")
    done = limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "asks", "--detach")
    assert "limpet answer asks yes --graph flows:graph" in done.err
    done = limpet("run", "flows:plain", "--id", "r", "--detach", "-i", "x=9")
    assert (done.code, "started with another input" in done.err) == (5, True)


def test_what_an_answer_may_be_is_said(limpet: Command) -> None:
    """P1."""
    assert "? (yes / no)" in limpet("run", "flows:graph", "-i", "topic=kelp").err
    assert "A? (integer)" in limpet("run", "flows:twice").err


def test_what_was_run_here_can_be_looked_at_when_it_is_done(limpet: Command) -> None:
    """H6: whatever the graph itself would keep."""
    limpet("run", "flows:busy", "-i", "fixed=true", "--id", "r")
    assert limpet("runs", "state", "r", "--json").data == {"fixed": True, "done": True}


def test_a_picture_is_of_the_graphs_own_runs(limpet: Command) -> None:
    limpet("run", "flows:plain", "--id", "r")
    done = limpet("graph", "draw", "flows:graph", "--run", "r")
    assert (done.code, "belongs to graph 'plain'" in done.err) == (2, True)


def test_a_run_isnt_queued_where_no_worker_could_find_it(limpet: Command) -> None:
    """H1: a memory store ends with the command."""
    done = limpet("run", "flows:plain", "--detach", "--store", "memory")
    assert (done.code, "--store sqlite:///runs.db" in done.err) == (2, True)


def test_a_run_with_a_deadline_fails_at_it_and_continues_with_another(limpet: Command) -> None:
    """H16: here and by a worker; the hints say how."""
    asked = limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r", "--deadline", "0.5s")
    assert asked.code in (1, 3)  # paused, unless this machine is slow

    def is_failed() -> bool:
        limpet("worker", "flows:graph", "--once")
        return "failed" in limpet("runs", "show", "r").out

    until(is_failed, "it fails")
    shown = limpet("runs", "show", "r")
    assert "its deadline passed at" in shown.out
    assert "--deadline 1h" in shown.err
    refused = limpet("resume", "r", "--graph", "flows:graph")
    assert refused.code != 0
    assert "--deadline 1h" in refused.err
    assert limpet("resume", "r", "--graph", "flows:graph", "--deadline", "1h").code == 3
    assert limpet("runs", "show", "r", "--json").data["deadline"] > 0


def test_what_is_shown_of_a_deadline_names_no_step_that_the_user_didn_t_write(
    limpet: Command, here: Path
) -> None:
    """H16, P5: it is the error of the run, and a workflow is at several tasks."""
    (here / "slow.py").write_text(
        "from limpet import Workflow, sleep\n"
        "flow = Workflow('slow').add_task('a', lambda: sleep(60)).add_task('b', lambda: sleep(60))\n"
    )
    done = limpet("run", "slow.py:flow", "--deadline", "0.2s")
    assert done.code == 1
    assert "✗ its deadline passed at" in done.out + done.err
    assert "after_layer" not in done.out + done.err


def test_a_deadline_that_isnt_a_time_is_wrong_use(limpet: Command) -> None:
    """H16."""
    done = limpet("run", "flows:plain", "-i", "x=1", "--deadline", "soon")
    assert done.code == 2
    assert "deadline is a time, not 'soon'" in done.err


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("runs list", "runs"),
        ("limits list", "limits"),
        ("schedules list", "schedules"),
        ("workers", "workers"),
    ],
)
def test_a_store_that_isnt_there_has_nothing_of_what_was_asked_for(
    limpet: Command, words: str, missing: str
) -> None:
    """G13: it is said of what the command lists."""
    done = limpet(*words.split(), "--store", "nope.db")
    said = f"there is no store at nope.db, so there are no {missing}; check --store"
    assert (done.code, said in done.err) == (6, True)
