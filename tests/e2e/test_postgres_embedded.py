"""A PostgreSQL server that the store starts by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import limpet
from limpet import open_store
from limpet.errors import StoreUnavailable, UsageError
from support.postgres import needed

CODE = """
import sys
from limpet import StateGraph, open_store
from limpet.journal.run_filter import RunFilter

graph = StateGraph({"n": int}, name="count")
graph.add_node("step", run=lambda state: {"n": state["n"] + 1})
graph.set_entry_point("step")
graph.set_finish_point("step")
graph.compile(store=sys.argv[1])
graph.execute({"n": 0}, run_id=sys.argv[2])
store = open_store(sys.argv[1])
print(store.abilities.level, sorted(head.run_id for head in store.list(RunFilter())))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    needed("limpet.stores.postgres.embedded")
    path = Path(tempfile.mkdtemp(prefix="limpet-pg-"))
    yield path
    shutil.rmtree(path)


def test_a_server_comes_and_goes_with_the_process(folder: Path) -> None:
    """P5: it is started where there is none, keeps what was saved, and leaves no process behind."""
    url = f"postgresql+embedded:///{folder}/data?level=process"
    for run_id, found in (("a", "['a']"), ("b", "['a', 'b']")):
        process = subprocess.run(
            [sys.executable, "-c", CODE, url, run_id],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])},
            timeout=60,
        )
        assert (process.stdout, process.stderr) == (f"process {found}\n", "")
        assert not (folder / "data" / "postmaster.pid").exists()


def test_a_directory_that_will_not_do_is_named(folder: Path) -> None:
    """P5."""
    with pytest.raises(StoreUnavailable, match=r"create the directory .*missing"):
        open_store(f"postgresql+embedded:///{folder}/missing/data")
    (folder / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"doesn't start in .*file"):
        open_store(f"postgresql+embedded:///{folder}/file")
    for url in ("postgresql+embedded://", "postgresql+embedded://host/data", "postgresql+embedded:///x?a=b"):
        with pytest.raises(UsageError):
            open_store(url)
