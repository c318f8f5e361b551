"""The changes of a state that a class describes: what a node returned or changed has to fit the class's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from limpet.engine.loop.state_changes import Changes, as_update
from limpet.graphs.state import NodeState
from limpet.journal.delta import Delta
from limpet.journal.encoding.codec import encode

if TYPE_CHECKING:
    from limpet.graphs.typed_state.field_checks import FieldChecks


class CheckedChanges(Changes):
    """The same for a state that a dataclass or a pydantic model describes: what changes has to fit its fields."""

    __slots__ = ("checks",)

    def __init__(self, checks: FieldChecks, *settings: Any) -> None:
        super().__init__(*settings)
        self.checks = checks

    def collect(self, private: NodeState, returned: Any) -> bytes:
        """As for others. Raises `InvalidValue`, too."""
        update, whole = as_update(returned, private)
        return self._collect_delta(private, update, whole)

    def _find_delta(self, private: NodeState, update: dict[str, Any], whole: bool) -> Delta:
        delta = super()._find_delta(private, update, whole)
        changed = dict(delta.sets)
        for key, value in delta.live.items():
            if key in delta.appends:
                changed[key] = value  # it was found to have grown; its field may limit the whole
        for key, value in self.checks.changed(changed, self._state_with(delta)).items():
            if not self._is_stored_as(key, value):
                delta.sets[key] = value
                delta.appends.pop(key, None)
                delta.live.pop(key, None)
                self._new_shadows.pop(key, None)
        for key, items in delta.appends.items():
            if key not in delta.live:
                delta.appends[key] = self.checks.added(key, items)
        for key, entries in delta.merges.items():
            delta.merges[key] = self.checks.added(key, entries)
        for key, pairs in delta.replaces.items():
            items = self.checks.added(key, [item for _, item in pairs])
            delta.replaces[key] = [[pair[0], item] for pair, item in zip(pairs, items, strict=True)]
        for key in delta.deletes:
            self.checks.deleted(key)
        return delta

    def _state_with(self, delta: Delta) -> Mapping[str, Any]:
        """The state that new values are checked in: with what is added, if the class checks more than one field."""
        if not (self.checks.sees_whole and (delta.appends or delta.merges or delta.replaces)):
            return self._live
        state = dict(self._live)
        for key, pairs in delta.replaces.items():
            state[key] = list(state[key])
            for index, item in pairs:
                state[key][index] = item
        for key, items in delta.appends.items():
            state[key] = [*state.get(key, ()), *items]
        for key, entries in delta.merges.items():
            state[key] = {**state.get(key, {}), **entries}
        return state

    def _is_stored_as(self, key: str, checked: Any) -> bool:
        """Whether the delta has this value already: a check may convert a value, or return a copy."""
        return key in self._new_shadows and encode(checked, key) == self._new_shadows[key]
