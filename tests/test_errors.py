"""The errors as a program sees them: which built-in errors they are, their text, and copies of them."""

from __future__ import annotations

import copy
import errno
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import (
    CheckpointNotFound,
    DefinitionError,
    LimpetError,
    MemoryStore,
    RunNotFound,
    Runs,
    StateGraph,
    UsageError,
    errors,
    open_store,
)
from limpet.stores.opening import register_store_scheme
from limpet.yaml_files.loading import loads

SAMPLES: dict[str, Any] = {
    "mistakes": ["no entry", "no exit"],
    "given": "x",
    "known": ["a", "b"],
    "questions": [],
    "path": "file.pkl",
    "sequence": 3,
    "cause": ValueError("boom"),
    "state": {"n": 1},
    "until": 1.5,
}
"""Arguments for constructors, by their names; all others get a text."""


def every_class() -> list[type[LimpetError]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LimpetError)]


def sample(kind: type[LimpetError]) -> LimpetError:
    if not inspect.isfunction(kind.__init__):  # that of Exception, which takes a text
        return kind("what happened")
    given = {name: SAMPLES.get(name, name) for name in inspect.signature(kind).parameters}
    if kind is errors.DeclarationError:
        given["mistakes"] = [(1, 2, "no entry")]
    return kind(**given)


@pytest.mark.parametrize("kind", every_class(), ids=lambda kind: kind.__name__)
def test_a_copy_of_an_error_is_the_same_error(kind: type[LimpetError]) -> None:
    """F16: pickled, as between processes, or copied."""
    error = sample(kind).with_advice("do this", "resume")
    error.add_note("seen on Monday")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is kind
        assert (str(copied), copied.message, copied.advice) == (str(error), error.message, "do this")
        assert copied.__notes__ == ["seen on Monday"]
        shown = {name: repr(value) for name, value in vars(error).items()}
        assert {name: repr(value) for name, value in vars(copied).items()} == shown


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (DefinitionError, ValueError),
        (limpet.DeclarationError, ValueError),
        (limpet.UnknownName, ValueError),
        (limpet.WorkflowChanged, ValueError),
        (UsageError, ValueError),
        (limpet.UnstorableValue, ValueError),
        (limpet.AnswerRefused, ValueError),
        (RunNotFound, LookupError),
        (CheckpointNotFound, FileNotFoundError),
        (limpet.DamagedCheckpoint, ValueError),
    ],
    ids=lambda kind: kind.__name__,
)
def test_an_error_is_also_the_built_in_one(kind: type[LimpetError], builtin: type[Exception]) -> None:
    """F16: code that expects the built-in error catches it, and its text is the one that it has here."""
    error = sample(kind)
    assert isinstance(error, builtin)
    assert str(error).startswith(error.message)


def test_errors_of_calls_are_caught_as_built_in_ones(tmp_path: Path) -> None:
    """F16: as the code of the seeds catches them."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {})
    with pytest.raises(ValueError, match="entry"):
        graph.compile()
    graph.set_entry_point("a").set_finish_point("a").compile(store=MemoryStore())
    with pytest.raises(LookupError, match="no run 'r' in this store"):
        graph.state_at("r")
    with pytest.raises(FileNotFoundError):
        StateGraph.load_checkpoint(tmp_path / "gone.pkl")
    with pytest.raises(ValueError, match="priority is a whole number"):
        graph.start({}, priority="high")  # type: ignore[arg-type]


def test_a_missing_checkpoint_has_what_every_missing_file_has(tmp_path: Path) -> None:
    """F16, F10."""
    path = tmp_path / "gone.pkl"
    with pytest.raises(CheckpointNotFound) as raised:
        StateGraph.load_checkpoint(path)
    error = raised.value
    assert (error.errno, error.filename, error.path) == (errno.ENOENT, str(path), str(path))
    assert error.strerror == "No such file or directory"
    assert str(error).startswith(f"checkpoint file {str(path)!r}: the file doesn't exist (looked in ")
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.errno, copied.filename, str(copied)) == (errno.ENOENT, str(path), str(error))


WRITE_RUN = """
import sys
from dataclasses import dataclass
from limpet import StateGraph, pause, register_type

@register_type
@dataclass
class Tide:
    height: int

graph = StateGraph(name="g").add_node("a", run=lambda state: {"tide": Tide(3)})
graph.add_node("b", run=lambda state: {"said": pause("which?", choices=[Tide(1), Tide(2)])})
graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b")
graph.compile(store=f"sqlite:///{sys.argv[1]}/runs.db", preserve=True)
graph.stream({}, run_id="r").wait()
graph.export_run("r", f"{sys.argv[1]}/r.run")

asking = StateGraph(name="asking").add_node("b", run=lambda state: {"said": pause("which?", choices=[Tide(1)])})
asking.set_entry_point("b").set_finish_point("b").compile(checkpoint_dir=f"{sys.argv[1]}/files")
asking.stream({}).wait()
"""


def test_a_class_that_isnt_registered_is_never_taken_for_damage(tmp_path: Path) -> None:
    """F16, H5: the error is a ValueError, and readers of journals and files take other ValueErrors for damage."""
    subprocess.run([sys.executable, "-c", WRITE_RUN, str(tmp_path)], check=True, timeout=60)
    runs = Runs(f"sqlite:///{tmp_path}/runs.db")
    assert [info.status for info in runs.list()] == [runs.get("r").status] == ["paused"]
    assert repr(runs.state("r")["tide"]) == "<__main__:Tide, which isn't known here: {'height': 3}>"
    assert [step.node for step in runs.history("r")] == [None, "a"]
    graph = StateGraph(name="g").add_node("b", run=lambda state: {}).set_entry_point("b")
    graph.set_finish_point("b").compile(store=f"sqlite:///{tmp_path}/runs.db")
    calls = (
        lambda: runs.answer("r", 1),
        lambda: graph.resume("r", 1),
        lambda: graph.fork("r"),
    )
    for call in calls:
        with pytest.raises(UsageError, match="Tide"):
            call()
    assert Runs(MemoryStore()).import_(tmp_path / "r.run") == "r", "a copy needs no class"
    asking = StateGraph(name="asking").add_node("b", run=lambda state: {})
    (file,) = (tmp_path / "files").iterdir()
    resumed = asking.set_entry_point("b").set_finish_point("b").resume_from_checkpoint(file)
    with pytest.raises(UsageError, match=r"^(?!.*damaged).*Tide"):
        resumed.wait()


def test_the_message_of_a_store_about_its_own_option_is_kept() -> None:
    """F16: a function that reads an option may raise an error of ours, which is a ValueError as well."""

    def read_depth(text: str) -> int:
        raise UsageError(f"{text!r} is too deep")

    register_store_scheme("errs", lambda url: url.options(depth=read_depth))
    with pytest.raises(UsageError, match="'9' is too deep"):
        open_store("errs://?depth=9")


def test_a_mistake_in_a_file_keeps_its_place() -> None:
    """F16, F10: `DeclarationError` is a ValueError, as are errors of the YAML parser."""
    with pytest.raises(limpet.DeclarationError) as raised:
        loads("name: g\nnodes:\n  - name: &a x\n    name: y\n")
    assert raised.value.places[0][0] > 1
