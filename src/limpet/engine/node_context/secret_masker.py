"""What of a run isn't to be shown, and covering it in the texts that are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from limpet.graphs.secrets import forms_of, hidden, values_in


class SecretMasker:
    """The secrets of one run. `names` are the secret keys; `clear` says that they would be stored for all to read.

    `tasks` says that results of tasks are secret, too. `heard` is what secrets look like that are in no state:
    answers to secret questions, and what a call had that failed.
    """

    __slots__ = ("clear", "heard", "names", "tasks")

    def __init__(self, names: frozenset[str] = frozenset(), tasks: bool = False, clear: bool = False) -> None:
        self.names, self.tasks, self.clear = names, tasks, clear
        self.heard: set[str] = set()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to be discreet about."""
        return not (self.names or self.tasks or self.heard)

    def hear(self, *values: Any) -> None:
        """Remember what these values look like."""
        self.heard |= forms_of(values)

    def look(self, state: Any) -> None:
        """Remember the secrets of a state that will be gone."""
        if not self.idle and isinstance(state, Mapping):
            self.hear(*values_in(dict(dict.items(state)) if isinstance(state, dict) else state, self.names))

    def hide(self, text: str, states: Iterable[Mapping[str, Any]]) -> str:
        """The text with what is secret in these states, or was heard, covered."""
        if self.idle:
            return text
        values = [value for state in states for value in values_in(state, self.names)]
        return hidden(text, self.heard | forms_of(values))
