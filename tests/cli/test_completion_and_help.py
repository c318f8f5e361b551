"""`completion …`, `--help` and `--version`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from limpet.cli.arguments import EXAMPLES, make_parser
from support.command_line import Command


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ru"], ["run", "runs"]),
        (["runs", "s"], ["show", "state", "send"]),
        (["store", "prune", "--d"], ["--dry-run"]),
        (["resume", "r", "--s"], ["--store", "--set"]),
        (["completion", ""], ["bash", "zsh", "fish", "run-ids"]),
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("limpet runs show ", ["waits", "done"]),
        ("limpet runs show wa", ["waits"]),
        ("limpet runs show zz", []),
        ("limpet resume ", ["waits", "done"]),
        ("limpet answer d", ["done"]),
        ("limpet answer waits ", []),
        ("limpet runs diff waits ", []),
        ("limpet store verify ", ["waits", "done"]),
        ("limpet graph draw flows:graph --run w", ["waits"]),
        ("limpet runs show --store sqlite:///limpet.db w", ["waits"]),
        ("limpet runs show --graph flows:graph w", ["waits"]),
        ("limpet runs show --store sqlite:///nope.db w", []),
        ("limpet runs list ", []),
    ],
)
def test_bash_completes_ids_of_runs(runs: Command, here: Path, line: str, offered: list[str]) -> None:
    """H6: as bash calls it, which splits a URL at its colon."""
    script = _completing(runs, here)
    words = [word for word in re.split("(:)| ", line) if word is not None]
    quoted = " ".join(f"'{word}'" for word in words)
    script += (
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; COMP_POINT={len(line)}\n"
    )
    script += "_limpet; printf '%s\\n' \"${COMPREPLY[@]}\""
    assert _bash(script).split() == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_completing_an_id_runs_nothing_of_it(runs: Command, here: Path) -> None:
    """An id may come from anywhere."""
    for name in ("$(touch${IFS}owned)", "`touch owned`", "x;touch owned", "waits-2"):
        runs("run", "flows:plain", "--id", name)
    script = _completing(runs, here)
    script += "COMP_WORDS=(limpet runs show ''); COMP_CWORD=3; _limpet; printf '%s\\n' \"${COMPREPLY[@]}\""
    assert _bash(script).split() == ["waits-2", "waits", "done"]
    assert not (here / "owned").exists()


def test_fish_completes_ids_of_runs(limpet: Command) -> None:
    script = limpet("completion", "fish").out.splitlines()
    asking = [line for line in script if "(limpet completion run-ids 2>/dev/null)" in line]
    assert any("from runs; and __fish_seen_subcommand_from show" in line for line in asking)
    assert any("-l run -x" in line for line in asking)


def test_the_ids_that_are_completed_are_those_of_the_newest_runs(runs: Command) -> None:
    assert runs("completion", "run-ids").out == "waits\ndone\n"
    assert runs("completion", "run-ids", "--json").data == ["waits", "done"]


def _completing(limpet: Command, here: Path) -> str:
    """The beginning of a script that completes, with a command `limpet` to ask for ids."""
    (here / "bin").mkdir()
    program = here / "bin" / "limpet"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m limpet "$@"\n')
    program.chmod(0o755)
    return f"PATH={here}/bin:$PATH\n{limpet('completion', 'bash').out}"


def _bash(script: str) -> str:
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert said.stderr == ""
    return said.stdout


def test_completion_is_for_shells_that_are_known(limpet: Command) -> None:
    assert limpet("completion", "tcsh").code == 2
    assert limpet("completion", "bash", "--json").data["shell"] == "bash"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(limpet: Command, shell: str) -> None:
    said = limpet("completion", shell).out
    assert all(word in said for word in ("rollback", "migrate", "detach", "answer"))


def test_wrong_use_is_2_and_help_is_0(limpet: Command) -> None:
    assert limpet("fly").code == 2
    assert limpet("--help").code == 0
    assert "exit codes" in limpet("runs", "watch", "--help").out
    assert limpet("--version").out.startswith("limpet ")


def test_the_command_alone_prints_help_with_examples(limpet: Command) -> None:
    """H6: that fits a terminal of 80 columns."""
    done = limpet()
    assert (done.code, done.err) == (0, "")
    assert "limpet run flow.yaml -i topic=kelp" in done.out
    assert "exit codes: 0 ok" in done.out
    assert "130 interrupted by Ctrl-C" in done.out
    examples = done.out.partition("examples:")[2].partition("exit codes")[0]
    assert max(map(len, examples.splitlines())) <= 80


@pytest.mark.parametrize("noun", ["runs", "graph", "store"])
def test_a_noun_alone_lists_its_verbs(limpet: Command, noun: str) -> None:
    done = limpet(noun)
    assert (done.code, done.err) == (0, "")
    assert f"usage: limpet {noun}" in done.out


def test_the_examples_of_the_help_can_be_parsed(limpet: Command) -> None:
    examples = EXAMPLES.partition("\n\n")[0].splitlines()[1:]
    assert len(examples) >= 6
    for line in examples:
        command = line.strip().partition("   ")[0].partition("  ")[0]
        assert make_parser().parse_args(command.split()[1:]).command is not None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["rnu"], "run"),
        (["runs", "lst"], "list"),
        (["store", "verfy"], "verify"),
        (["list"], "limpet runs list"),
        (["cancle", "r"], "limpet runs cancel"),
        (["runs", "resume", "r"], "limpet resume"),
        (["runs", "answer", "r", "yes"], "limpet answer"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(
    limpet: Command, typed: list[str], meant: str
) -> None:
    """H6."""
    done = limpet(*typed)
    assert (done.code, f"did you mean '{meant}'?" in done.err) == (2, True)
    assert meant in limpet(*typed, "--json").data["error"]["message"]


def test_a_word_that_is_like_no_command_is_answered_with_all_of_them(limpet: Command) -> None:
    assert "there is no verb 'xyzzy'; there are info, migrate" in limpet("store", "xyzzy").err


def test_an_option_takes_only_its_choices(limpet: Command) -> None:
    done = limpet("graph", "draw", "flows:graph", "--format", "sgv")
    assert (done.code, "isn't one of text, svg, mermaid; did you mean 'svg'?" in done.err) == (2, True)
