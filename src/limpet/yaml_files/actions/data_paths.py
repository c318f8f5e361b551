"""Paths that are made from data: they stay in the directory that the file names, whatever the data say.

A path is made from data if it is a template that uses the state, inputs, results or the like. What the file itself
says is trusted: a path without templates, environment variables, and the directory that a template begins with. So
`reports/{{ state.topic }}.txt` stays in `reports`, and `{{ state.topic }}.txt` in the working directory. `root`
allows another directory, and is itself never made from data: a file that says so isn't loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from limpet.errors import ActionFailed
from limpet.yaml_files.templates import Template

PATH_KEYS: Final = ("path", "cwd")
"""The arguments of built-in actions that are paths."""

ROOT_KEY: Final = "root"
"""The argument that names the directory in which a path made from data has to stay."""

TRUSTED_VARIABLES: Final = frozenset(("env", "node"))
"""Variables that aren't data: the file and the process have them."""


def check_paths(action: str, written: Mapping[str, Any], rendered: Mapping[str, Any]) -> None:
    """Raise `ActionFailed` if a path made from data leads out of its root.

    `written` are the arguments as the file has them, `rendered` the same with the results of templates.
    """
    for key in PATH_KEYS:
        argument = written.get(key)
        if not is_made_from_data(argument):
            continue
        path = rendered[key]
        root = rendered.get(ROOT_KEY) or _directory_before(argument.text)
        try:
            inside = _is_inside(path, root)
        except (OSError, ValueError) as problem:  # a null character, another drive
            raise ActionFailed(action, f"{path!r} isn't a path: {problem}") from problem
        if not inside:
            where = os.path.realpath(root)
            failed = ActionFailed(action, f"{path!r} is made from data and leads out of {where}")
            raise failed.with_advice("to allow it, name a directory around it under with, such as root: /")


def is_made_from_data(argument: Any) -> TypeGuard[Template]:
    """Whether an argument is a template that uses more than what the file and the process have."""
    return isinstance(argument, Template) and not argument.variables <= TRUSTED_VARIABLES


def _directory_before(text: str) -> str:
    """The directory that a template begins with, up to its first variable."""
    written = re.split(r"\{[{%#]", text, maxsplit=1)[0]
    return os.path.dirname(written) or os.curdir


def _is_inside(path: str, root: str) -> bool:
    """Whether a path is in a directory, at any depth. Symbolic links count as where they lead to."""
    directory = os.path.realpath(root)
    return os.path.commonpath((directory, os.path.realpath(path))) == directory
