"""Where a builder gets code from: by importing what the file names, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from limpet.yaml_files.actions.registry import find_action, known_actions, no_action
from limpet.yaml_files.actions.builtin import BUILT_IN
from limpet.yaml_files.node_functions import Work, bound
from limpet.yaml_files.build.references import exception, imported, referred
from limpet.errors import UsageError


class Code(Protocol):
    """What a builder asks for. Each raises `UsageError` for what isn't there."""

    def load(self, module: str) -> None:
        """Import a module that the file lists."""

    def named(self, reference: str) -> Any:
        """What `module:name` leads to."""

    def exception(self, name: str) -> type[Exception]:
        """An exception class, by its name."""

    def work(
        self, name: str, arguments: Mapping[str, Any], variables: tuple[str, ...], owner: str
    ) -> Work | None:
        """An action with its arguments; None if that can't be told."""


class Importing:
    """Imports what the file names."""

    def load(self, module: str) -> None:
        imported(module)

    def named(self, reference: str) -> Any:
        return referred(reference)

    def exception(self, name: str) -> type[Exception]:
        return exception(name)

    def work(self, name: str, arguments: Mapping[str, Any], variables: tuple[str, ...], owner: str) -> Work:
        return bound(find_action(name), arguments, variables, owner)


class Sketching:
    """Imports nothing of the file's: every function is a stand-in, which can't be run."""

    def __init__(self) -> None:
        self.open = False
        """Whether modules that aren't imported may have actions that aren't known."""

    def load(self, module: str) -> None:
        self.open = True

    def named(self, reference: str) -> Any:
        return stand_in(reference)

    def exception(self, name: str) -> type[Exception]:
        return Exception if ":" in name else exception(name)

    def work(
        self, name: str, arguments: Mapping[str, Any], variables: tuple[str, ...], owner: str
    ) -> Work | None:
        if name not in BUILT_IN and name not in known_actions() and not self.open:
            raise UsageError(no_action(name))
        return None


def stand_in(what: str) -> Callable[..., Any]:
    """A function in place of one that isn't imported."""

    def not_imported(**anything: Any) -> Any:
        raise UsageError(
            f"this graph was only read, and {what} isn't imported; limpet.load(…) builds it to be run"
        )

    return not_imported
