"""A project as a user has it: a directory with a module of graphs, and the command line to be used there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.cli import project
from limpet.cli.main import main
from support.command_line import FLOWS, Command, Done


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project's directory, which is the working directory."""
    (tmp_path / "flows.py").write_text(FLOWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["limpet"])
    for name in (
        "LIMPET_STORE",
        "LIMPET_GRAPHS",
        "WORKFLOW_CHECKPOINT_BACKEND",
        "WORKFLOW_CHECKPOINT_DSN",
    ):
        monkeypatch.delenv(name, raising=False)
    project._settings.cache_clear()
    sys.modules.pop("flows", None)
    yield tmp_path
    sys.modules.pop("flows", None)
    project._settings.cache_clear()


@pytest.fixture
def limpet(here: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Call the command line: `limpet("runs", "list")`."""

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as end:  # argparse has explained it
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return call


@pytest.fixture
def runs(limpet: Command) -> Command:
    """Two runs: one complete, one that waits."""
    limpet("run", "flows:plain", "--id", "done", "--tag", "old")
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "waits")
    return limpet
