"""`completion …`, `--help` and `--version`."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from support.command_line import Command


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ru"], ["run", "runs"]),
        (["runs", "s"], ["show", "state"]),
        (["store", "prune", "--d"], ["--dry-run"]),
        (["resume", "r", "--s"], ["--store", "--set"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["run", "flo"], []),
    ],
)
def test_bash_completes_what_was_typed(limpet: Command, typed: list[str], offered: list[str]) -> None:
    """H6: words, or options after a dash; files are bash's own."""
    script = limpet("completion", "bash").out
    words = " ".join(f"'{word}'" for word in ["limpet", *typed])
    script += f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _limpet; echo ${{COMPREPLY[*]}}"
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (said.stdout.split(), said.stderr) == (offered, "")


def test_completion_is_for_shells_that_are_known(limpet: Command) -> None:
    assert limpet("completion", "tcsh").code == 2
    assert limpet("completion", "bash", "--json").data["shell"] == "bash"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(limpet: Command, shell: str) -> None:
    said = limpet("completion", shell).out
    assert all(word in said for word in ("rollback", "migrate", "detach", "answer"))


def test_wrong_use_is_2_and_help_is_0(limpet: Command) -> None:
    assert limpet().code == 2
    assert limpet("runs").code == 2
    assert limpet("fly").code == 2
    assert limpet("--help").code == 0
    assert "exit codes" in limpet("runs", "watch", "--help").out
    assert limpet("--version").out.startswith("limpet ")
