"""Texts for users and developers are in plain modern English: none has a word or phrase of this list.

Checked are pages (whole), modules (strings, docstrings and comments) and the names of tests. A line that has to have
such a phrase, for example because it quotes another program, ends with the comment `words: ok`.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

SOURCES = [
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "src/limpet/**/*.py",
    "tests/**/*.py",
    "benchmarks/*.py",
]
"""What is checked, as patterns."""

EXCLUDED = ["tests/docs/test_words.py"]
"""What isn't: this file, which lists the words."""

AVOIDED = {
    r"(go|goes|going|gone|went) on with": "resume, continue",
    r"(goes|went|going|gone) on": "resume, continue",
    r"(can|to|may|it|they|runs|others) go on": "resume, continue",
    r"mend(s|ed|ing)?": "fix, repair",
    r"borne|(can't|cannot|can) bear": "tolerate",
    r"heed(s|ed|ing)?": "handle, check, carry out",
    r"in clear": "in plain text",
    r"whoever|whomever": "the process, the caller, the worker",
    r"nobody|somebody|anybody": "no process, a person, any process",
    r"no one|someone|anyone": "no process, a person, any process",
    r"set(s|ting)? aside": "quarantine",
    r"(taken|took) up|(take|takes|taking) up (a|the|its|their|what|runs?)": "resume, claim",
    r"beside (each other|one another)": "in parallel, concurrently",
    r"let(s|ting)? go( of)?": "release, delete, expire",
    r"anew": "again",
    r"what (came|comes|become|becomes|became) of": "the outcome, the result",
    r"(came|comes|come|coming) to (a stop|something|its end|an end)": "stop, end",
    r"what is to be had|can (still )?be had": "can be read, is available",
    r"of (its|his|their|your|one's) own accord": "automatically",
    r"(?<!there\s)(?-i:is none)": "doesn't exist, isn't valid",
    r"(?<!there\s)is no (?!longer|more|less|other|\w+er )[a-z]\w+": "isn't a …",
    r"process (was|is|got|were) lost|lost (process|processes|holder|holders|worker|workers)": "crashed",
    r"(was|were|is|are|be) told(?! apart)": "get, is given, is reported",
    r"what it (said|came to|comes to)": "its report, its result",
    r"unless you say so|if you don't say": "default: …",
    r"so many \w+": "this many …, several …",
}
"""What isn't written, as a regular expression for whole words, and what is written instead."""

BREAK = r"[ ]*(?:\n[ #>]*|[ ])"
"""What a space in a phrase stands for: a space or a line break, also within a comment of several lines."""

PATTERN = re.compile(
    "|".join(
        rf"(?P<p{number}>\b(?:{phrase.replace(' ', BREAK)})\b)" for number, phrase in enumerate(AVOIDED)
    ),
    re.IGNORECASE,
)
ALLOWED = "words: ok"
TEST_NAME = re.compile(r"def (test_\w+)\(")
OLD_NAME = "hold" + "fast"
"""In two parts, so that this file doesn't have it."""


class Text(NamedTuple):
    """A text with the number of its first line."""

    line: int
    text: str


def test_texts_are_in_plain_words() -> None:
    hits = [hit for path in checked_files() for hit in hits_in(path)]
    assert hits == [], f"{len(hits)} phrases to replace:\n" + "\n".join(hits)


def test_names_of_tests_are_in_plain_words() -> None:
    hits = [hit for path in checked_files() if path.suffix == ".py" for hit in hits_in_names(path)]
    assert hits == [], f"{len(hits)} names to replace:\n" + "\n".join(hits)


def test_no_tracked_file_has_the_old_name_of_the_project() -> None:
    if shutil.which("git") is None:
        pytest.skip("git isn't installed")
    listed = subprocess.run(
        ["git", "grep", "--ignore-case", "--line-number", "--text", OLD_NAME],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if listed.returncode > 1:
        pytest.skip("this isn't a git checkout")
    named = [path for path in tracked_files() if OLD_NAME in path.lower()]
    hits = [line[:160] for line in listed.stdout.splitlines()] + named
    assert hits == [], "\n".join(hits)


def test_a_phrase_is_found_with_its_place(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Resume the run.\n\nA worker goes\non with it."""\n\n'
        "going_on = 1  # the name is fine, nobody minds\n"
        'TEXT = f"{going_on} is set aside"\n'
        'QUOTED = "nobody"  # words: ok\n'
    )
    page = tmp_path / "page.md"
    page.write_text("A run that was\ntold to stop.\n\nIt resumes.\n")
    assert [hit.partition("module.py:")[2] for hit in hits_in(module)] == [
        "3: 'goes on with' (resume, continue)",
        "6: 'nobody' (no process, a person, any process)",
        "7: 'set aside' (quarantine)",
    ]
    assert [hit.partition("page.md:")[2] for hit in hits_in(page)] == [
        "1: 'was told' (get, is given, is reported)"
    ]


def checked_files() -> list[Path]:
    found = {path for pattern in SOURCES for path in ROOT.glob(pattern)}
    return sorted(path for path in found if path.relative_to(ROOT).as_posix() not in EXCLUDED)


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def hits_in(path: Path) -> list[str]:
    """A line for each phrase of a file that should be replaced."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    lines = text.splitlines()
    hits = []
    for part in texts_of(path, text):
        for found in PATTERN.finditer(part.text):
            number = part.line + part.text.count("\n", 0, found.start())
            if ALLOWED in lines[number - 1]:
                continue
            phrase = " ".join(found.group().split())
            hits.append(f"{name}:{number}: {phrase!r} ({instead_of(found)})")
    return hits


def hits_in_names(path: Path) -> list[str]:
    """A line for each test of a module whose name has a phrase to replace."""
    hits = []
    for name in TEST_NAME.findall(path.read_text(encoding="utf-8")):
        found = PATTERN.search(name.replace("_", " "))
        if found is not None:
            hits.append(f"{path.relative_to(ROOT)}: {name} ({instead_of(found)})")
    return hits


def texts_of(path: Path, text: str) -> Iterator[Text]:
    """The whole of a page; of a module its strings, docstrings and comments."""
    if path.suffix != ".py":
        yield Text(1, text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in TEXT_TOKENS:
            yield Text(token.start[0], token.string)


TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""Before Python 3.12 an f-string is one token, with the code in it."""


def instead_of(found: re.Match[str]) -> str:
    assert found.lastgroup is not None
    return list(AVOIDED.values())[int(found.lastgroup.removeprefix("p"))]
