"""Whether values fit the class that describes a state, where they enter it: the input, and updates.

Only what changes is checked, so a check costs as much as the change. Of a key with a reducer that adds items or
entries, these are checked by the type of the key. What other reducers return is checked as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.errors import InvalidValue, LimpetError, did_you_mean
from limpet.graphs.typed_state.annotations import is_model, plain_type
from limpet.graphs.typed_state.instances import invalid, state_class
from limpet.graphs.typed_state.type_check import why_unfit


class FieldChecks:
    """Checks the values of a state against its class, and gives them as the class makes them of what was given.

    A pydantic model validates values, and may convert them. Those of a dataclass must be of the types of its fields;
    if it has a `__post_init__`, that sees the whole state, too.
    """

    def __init__(self, cls: Any, keys: Mapping[str, Any], secrets: frozenset[str]) -> None:
        self.state_class = state_class(cls)
        self._keys = keys
        self._secrets = secrets
        self._is_model = is_model(cls)
        self._adapters: dict[str, Any] = {}
        """What validates new items or entries of a key, for a model."""
        self._forbids_others = self._is_model and cls.model_config.get("extra") == "forbid"
        self._checks_itself = hasattr(cls, "__pydantic_validator__")
        self.sees_whole = self._checks_itself or hasattr(cls, "__post_init__")
        """Whether the class checks more than one field at once."""
        if self._is_model:
            # A field of a frozen model can't be assigned, so it can't be checked by itself either.
            self.sees_whole = bool(cls.__pydantic_decorators__.model_validators) or bool(
                cls.model_config.get("frozen")
            )

    def first(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values of an input. Raises `InvalidValue`."""
        return self._checked("the input", values, {}, complete=True)

    def changed(self, values: dict[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """New values for keys of a state. Raises `InvalidValue`."""
        return self._checked("the update", values, state, complete=False)

    def added(self, key: str, values: Any) -> Any:
        """New items of a list, or entries of a dict, that the state has under a key. Raises `InvalidValue`."""
        if key not in self._keys:
            return values
        if not self._is_model:
            self._check_type("the update", key, values)
            return values
        try:
            return self._adapter(key).validate_python(values)
        except ValueError as problem:
            raise self._refusal("the update", problem, {key: values}, key) from None

    def deleted(self, key: str) -> None:
        """Raise `InvalidValue` if the class needs this key."""
        if key in self.state_class.needed:
            raise InvalidValue(
                "the update", self._name, key, f"{key!r} can't be deleted, as it has no default"
            )

    def _checked(
        self, what: str, values: dict[str, Any], state: Mapping[str, Any], complete: bool
    ) -> dict[str, Any]:
        known = values
        if not self.state_class.takes_others:
            known = {key: value for key, value in values.items() if key in self._keys}
        if self._forbids_others:
            for key in values:
                if key not in known:
                    reason = f"{key!r} isn't one of its fields{did_you_mean(key, self._keys)}"
                    raise InvalidValue(what, self._name, key, reason)
        if not self._checks_itself:
            for key, value in known.items():
                self._check_type(what, key, value)
        try:
            known = self._converted(known, state, complete)
        except LimpetError:
            raise
        except (TypeError, ValueError) as problem:
            raise self._refusal(what, problem, known) from None
        return {**values, **known}

    def _converted(self, known: dict[str, Any], state: Mapping[str, Any], complete: bool) -> dict[str, Any]:
        """The values as the class makes them of what was given."""
        if not (self._is_model or self.sees_whole):
            return known
        whole = self.state_class.values_in(state) | known
        if self._is_model and complete:
            return self.state_class.values(self.state_class.validated(whole))
        if self.sees_whole:
            if not self._is_model and not self.state_class.needed <= whole.keys():
                return known  # what is missing may come later; an instance is made of it only then
            made = self.state_class.values(self.state_class.validated(whole))
            wanted = self.state_class.derived.union(known)
            return {name: value for name, value in made.items() if complete or name in wanted}
        cls = self.state_class.cls
        instance = cls.model_construct(**whole)
        for key, value in known.items():
            cls.__pydantic_validator__.validate_assignment(instance, key, value)
        return {key: getattr(instance, key) for key in known}

    def _adapter(self, key: str) -> Any:
        """What validates new items of a list or entries of a dict: their types, without limits for the whole."""
        found = self._adapters.get(key)
        if found is None:
            from pydantic import TypeAdapter

            config = self.state_class.cls.model_config
            kept: Any = {
                name: config[name] for name in ("arbitrary_types_allowed", "strict") if name in config
            }
            found = self._adapters[key] = TypeAdapter(plain_type(self._keys[key]), config=kept)
        return found

    def _check_type(self, what: str, key: str, value: Any) -> None:
        reason = why_unfit(value, self._keys[key], key, quoting=not self._secrets)
        if reason:
            raise InvalidValue(what, self._name, key, reason)

    def _refusal(
        self, what: str, problem: Exception, values: Mapping[str, Any], key: str = ""
    ) -> InvalidValue:
        refusal = invalid(what, self.state_class.cls, problem, values, self._secrets)
        if not key:
            return refusal
        return InvalidValue(what, self._name, key, f"{key}: {refusal.reason}")

    @property
    def _name(self) -> str:
        name: str = self.state_class.cls.__name__
        return name
