"""Where a builder gets code: `ImportedCode` imports what the file names, `StandInCode` imports nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from limpet.errors import UsageError
from limpet.yaml_files.actions.builtin import BUILT_IN
from limpet.yaml_files.actions.registry import find_action, known_actions, unknown_action_message
from limpet.yaml_files.build.references import (
    REFERENCE_PATTERN,
    import_exception,
    import_named_module,
    import_reference,
)
from limpet.yaml_files.node_functions import BoundAction, bind_action


class CodeSource(Protocol):
    """What a builder needs. Each method raises `UsageError` for what doesn't exist."""

    def load_module(self, module: str) -> None:
        """Import a module that the file lists."""

    def object_at(self, reference: str) -> Any:
        """The object that `module:name` names."""

    def exception(self, name: str) -> type[Exception]:
        """An exception class by its name."""

    def bound_action(
        self,
        name: str,
        arguments: Mapping[str, Any],
        variables: tuple[str, ...],
        resources: Collection[str],
        owner: str,
    ) -> BoundAction | None:
        """An action with its arguments; None if its function isn't imported."""


class ImportedCode:
    """Imports what the file names."""

    def load_module(self, module: str) -> None:
        import_named_module(module)

    def object_at(self, reference: str) -> Any:
        return import_reference(reference)

    def exception(self, name: str) -> type[Exception]:
        return import_exception(name)

    def bound_action(
        self,
        name: str,
        arguments: Mapping[str, Any],
        variables: tuple[str, ...],
        resources: Collection[str],
        owner: str,
    ) -> BoundAction:
        return bind_action(find_action(name), arguments, variables, resources, owner)


class StandInCode:
    """Imports nothing that the file names: every function is a stand-in, which can't be run."""

    def __init__(self) -> None:
        self.has_unread_modules = False
        """Whether the file lists modules, which may register actions that aren't known here."""

    def load_module(self, module: str) -> None:
        self.has_unread_modules = True

    def object_at(self, reference: str) -> Any:
        return stand_in(reference)

    def exception(self, name: str) -> type[Exception]:
        if re.match(REFERENCE_PATTERN, name):
            # Pictures and the plan's fingerprint have the name of an exception that an edge catches.
            return type(name.rpartition(":")[2].rpartition(".")[2], (Exception,), {})
        if ":" in name:
            return Exception
        return import_exception(name)

    def bound_action(
        self,
        name: str,
        arguments: Mapping[str, Any],
        variables: tuple[str, ...],
        resources: Collection[str],
        owner: str,
    ) -> BoundAction | None:
        if name not in BUILT_IN and name not in known_actions() and not self.has_unread_modules:
            raise UsageError(unknown_action_message(name))
        return None


def stand_in(what: str) -> Callable[..., Any]:
    """A function in place of one that isn't imported. Raises `UsageError` when it is called."""

    def not_imported(*_: Any, **__: Any) -> Any:
        raise UsageError(
            f"this graph was only checked, and {what} isn't imported; limpet.load(…) builds a graph that runs"
        )

    return not_imported
