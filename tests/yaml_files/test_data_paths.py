"""Paths that are made from data: they stay in the directory that the file names, or the action fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limpet import ActionFailed, ExecutionError, LimpetError, StateGraph, loads
from limpet.errors import DeclarationError
from limpet.yaml_files.loading import check


def graph_of(uses: str, given: dict[str, Any]) -> StateGraph:
    """A graph of one node with this action."""
    lines = "\n".join(f"      {key}: {value!r}" for key, value in given.items())
    graph = loads(f"nodes:\n  - name: only\n    uses: {uses}\n    with:\n{lines}\n    output: result\n")
    assert isinstance(graph, StateGraph)
    return graph


def result(uses: str, given: dict[str, Any], **state: Any) -> Any:
    return graph_of(uses, given).execute(state)["result"]


def refusal(uses: str, given: dict[str, Any], **state: Any) -> str:
    """Why an action fails."""
    with pytest.raises(ExecutionError) as failed:
        graph_of(uses, given).execute(state)
    assert isinstance(failed.value.__cause__, ActionFailed)
    return str(failed.value.__cause__)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, next to a file and a directory that data must not reach."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "work" / "reports").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


ACTIONS: list[tuple[str, dict[str, Any]]] = [
    ("file.read", {"path": "{{ state.name }}"}),
    ("file.write", {"path": "{{ state.name }}", "content": "x"}),
    ("file.write", {"path": "{{ state.name }}.txt", "content": "x"}),
    ("file.write", {"path": "reports/{{ state.name }}", "content": "x"}),
    ("checkpoint.save", {"path": "{{ state.name }}"}),
    ("checkpoint.load", {"path": "{{ state.name }}"}),
    ("shell", {"command": ["pwd"], "cwd": "{{ state.name }}"}),
]


@pytest.mark.parametrize(("uses", "given"), ACTIONS)
@pytest.mark.parametrize(
    "name", ["../../outside/x", "/../../../../../../tmp/x", "x/../../../outside/../secret.txt"]
)
def test_data_can_not_lead_out_of_the_directory(
    work: Path, uses: str, given: dict[str, Any], name: str
) -> None:
    """F13: by `..`, by an absolute path, nor by both. The error says how to allow it."""
    before = sorted(work.parent.rglob("*"))
    said = refusal(uses, given, name=name)
    assert "is made from data and leads out of" in said
    assert "root: /" in said
    assert sorted(work.parent.rglob("*")) == before


def test_a_symbolic_link_counts_as_where_it_leads(work: Path) -> None:
    """F13: of a directory, of a file, and of one that doesn't exist yet."""
    (work / "link").symlink_to(work.parent / "outside")
    (work / "file").symlink_to(work.parent / "secret.txt")
    (work / "new").symlink_to(work.parent / "created.txt")
    (work / "fine").symlink_to(work / "reports")
    for name in ("link/x", "file", "new"):
        assert "leads out" in refusal("file.write", {"path": "{{ state.name }}", "content": "x"}, name=name)
    assert "leads out" in refusal("file.read", {"path": "{{ state.name }}"}, name="file")
    assert result("file.write", {"path": "{{ state.name }}", "content": "x"}, name="fine/x") == "fine/x"
    assert (work.parent / "secret.txt").read_text() == "secret"
    assert not (work.parent / "created.txt").exists()


def test_what_stays_inside_works_as_before(work: Path) -> None:
    """F13: also an absolute path, and one that goes up and down again."""
    for path, name in (
        ("{{ state.name }}.txt", "kelp"),
        ("{{ state.name }}", str(work / "kelp.txt")),
        ("reports/{{ state.name }}.txt", "a/b/../c"),
        ("{{ state.name }}", "reports/../kelp"),
        (str(work.parent / "outside" / "{{ state.name }}"), "x"),
        ("../outside/{{ state.name }}", "y"),
    ):
        written = result("file.write", {"path": path, "content": name}, name=name)
        assert result("file.read", {"path": path}, name=name) == name == Path(written).read_text()


def test_the_file_itself_may_name_any_path(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F13: without data, by an environment variable, or by a root that allows it."""
    secret = str(work.parent / "secret.txt")
    monkeypatch.setenv("SECRET", secret)
    assert result("file.read", {"path": "../secret.txt"}) == "secret"
    assert result("file.read", {"path": "{{ env.SECRET }}"}) == "secret"
    for root in ("/", "..", str(work.parent)):
        assert result("file.read", {"path": "{{ state.p }}", "root": root}, p=secret) == "secret"
    assert "leads out" in refusal("file.read", {"path": "{{ state.p }}", "root": "reports"}, p=secret)
    assert "leads out" in refusal("file.read", {"path": "{{ env.SECRET }}{{ state.p }}"}, p="")


@pytest.mark.parametrize("root", ["{{ state.root }}", "/{{ config.root }}", "{{ env[run_id] }}"])
@pytest.mark.parametrize(("uses", "given"), ACTIONS)
def test_a_root_made_from_data_is_refused_when_the_file_is_loaded(
    work: Path, uses: str, given: dict[str, Any], root: str
) -> None:
    """F13: the data would otherwise decide how far they may lead."""
    with pytest.raises(DeclarationError, match="root can't be made from data"):
        graph_of(uses, {**given, "root": root})


def test_a_root_made_from_data_is_refused_in_a_workflow_and_by_a_check(work: Path) -> None:
    """F13: a check imports no code, and finds it all the same."""
    text = "tasks:\n  - name: a\n    uses: file.read\n    with: {path: '{{ inputs.p }}', root: '{{ inputs.r }}'}\n"
    with pytest.raises(DeclarationError, match="root can't be made from data"):
        loads(text)
    file = work / "flow.yaml"
    file.write_text(text)
    with pytest.raises(DeclarationError, match="root can't be made from data"):
        check(file)


def test_a_root_may_come_from_the_environment(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F13: that is the process's own. An empty one allows nothing."""
    secret = str(work.parent / "secret.txt")
    given = {"path": "{{ state.p }}", "root": "{{ env.ROOT }}"}
    monkeypatch.setenv("ROOT", str(work.parent))
    assert result("file.read", given, p=secret) == "secret"
    monkeypatch.setenv("ROOT", "")
    with pytest.raises(ExecutionError):
        graph_of("file.read", given).execute({"p": secret})


@pytest.mark.parametrize(("uses", "given"), ACTIONS)
@pytest.mark.parametrize(
    "name", ["a\0b", "x" * 5000, "d/" * 3000, "half \ud800", ".", "..", "", "a\\..\\b\x1b"]
)
def test_an_odd_path_is_refused_or_stays_inside(
    work: Path, uses: str, given: dict[str, Any], name: str
) -> None:
    """F13: whatever data are taken for a path, the error is one of ours and nothing outside changes."""
    before = sorted(path for path in work.parent.rglob("*") if work not in path.parents)
    run = graph_of(uses, given).invoke({"name": name})
    assert run.wait().status in ("completed", "failed")
    assert run.error is None or isinstance(run.error.__cause__, LimpetError)
    assert sorted(path for path in work.parent.rglob("*") if work not in path.parents) == before


def test_what_can_not_be_a_path_is_refused(work: Path) -> None:
    """F13: with a clear error, when it is used or when the file is loaded."""
    assert "isn't a path" in refusal("file.read", {"path": "{{ state.p }}"}, p="a\0b")
    with pytest.raises(DeclarationError, match="root"):
        graph_of("http.request", {"url": "http://localhost", "root": "/"})
