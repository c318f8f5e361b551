"""Instances of the classes that describe states: dataclasses and pydantic models."""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from limpet.errors import DefinitionError, InvalidValue, LimpetError, UsageError
from limpet.graphs.secrets import mask_text, text_forms
from limpet.graphs.typed_state.annotations import has_instances, is_model


class StateClass(NamedTuple):
    """A dataclass or pydantic model whose instances hold the values of a state.

    `names` are its fields and `needed` those without a default. Its constructor doesn't take `set_later`, which have
    the values of the state, nor `derived`, which its `__post_init__` computes. If it `takes_others`, an instance has
    all values of the state, as those of a model do that allows extra ones.
    """

    cls: Any
    names: tuple[str, ...]
    needed: frozenset[str]
    set_later: frozenset[str] = frozenset()
    derived: frozenset[str] = frozenset()
    takes_others: bool = False

    def values_in(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a state that an instance has. Each is read from the state by its name, which may note it."""
        if self.takes_others:
            return {name: state[name] for name in state}
        return {name: state[name] for name in self.names if name in state}

    def make(self, state: Mapping[str, Any]) -> Any:
        """An instance with the values of this state. A model isn't validated: its values were, where they entered.

        Raises `UsageError` if a value is missing, and what the class itself raises.
        """
        values = self.values_in(state)
        missing = [name for name in self.names if name in self.needed and name not in values]
        if missing:
            raise self.incomplete(missing)
        if is_model(self.cls):
            return self.cls.model_construct(_fields_set=set(values), **values)
        later = self.set_later | self.derived
        made = self.cls(**{name: value for name, value in values.items() if name not in later})
        for name in self.set_later:
            if name in values:
                object.__setattr__(made, name, values[name])
        return made

    def validated(self, values: Mapping[str, Any]) -> Any:
        """An instance that the class itself has validated. Raises what it raises, a `ValueError` as a rule."""
        if is_model(self.cls):
            return self.cls.model_validate(_as_pydantic_names_them(self.cls, values))
        return self.make(values)

    def values(self, instance: Any) -> dict[str, Any]:
        """The values that an instance has."""
        values = {name: getattr(instance, name) for name in self.names if hasattr(instance, name)}
        if self.takes_others:
            values.update(instance.model_extra or {})
        return values

    def set_values(self, instance: Any) -> dict[str, Any]:
        """The values that say something: those of a model that were set, and didn't come from a default."""
        values = self.values(instance)
        if is_model(self.cls):
            return {name: value for name, value in values.items() if name in instance.model_fields_set}
        return values

    def incomplete(self, missing: Iterable[str]) -> UsageError:
        """The refusal to make an instance of a state that lacks values."""
        listed = ", ".join(map(repr, missing))
        problem = UsageError(f"the state has no {listed}, which {self.cls.__name__} needs")
        return problem.with_advice("give it in the input, or give the field a default")


def state_class(cls: Any) -> StateClass:
    """How instances of a dataclass or pydantic model are made. Raises `DefinitionError` if fields aren't enough."""
    if is_model(cls):
        if getattr(cls, "__pydantic_root_model__", False):
            raise DefinitionError(f"{cls.__name__} can't describe a state: it has one value, and no fields")
        known = cls.model_fields
        needed = frozenset(name for name, field in known.items() if field.is_required())
        return StateClass(cls, tuple(known), needed, takes_others=cls.model_config.get("extra") == "allow")
    names = []
    needed_names = set()
    set_later = set()
    for field in fields(cls):
        names.append(field.name)
        if not field.init:
            set_later.add(field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            needed_names.add(field.name)
    _check_constructor(cls, names)
    if hasattr(cls, "__post_init__"):
        return StateClass(cls, tuple(names), frozenset(needed_names), derived=frozenset(set_later))
    return StateClass(cls, tuple(names), frozenset(needed_names), frozenset(set_later))


def _check_constructor(cls: Any, names: Container[str]) -> None:
    """Raise `DefinitionError` if an instance needs more than its fields, such as an `InitVar`."""
    for parameter in inspect.signature(cls).parameters.values():
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and parameter.default is parameter.empty and parameter.name not in names:
            raise DefinitionError(
                f"{cls.__name__} can't describe a state: its constructor needs {parameter.name!r}, which isn't a "
                "field; give it a default"
            )


def model_of(state: Mapping[str, Any], schema: Any) -> Any:
    """A state as an instance of its schema's class, or as a plain dict. Raises `UsageError` if it isn't one."""
    if schema is None or not has_instances(schema.source):
        return dict(state)
    made_from = state_class(schema.source)
    missing = [name for name in made_from.names if name in made_from.needed and name not in state]
    if missing:
        raise made_from.incomplete(missing)
    try:
        return made_from.validated(made_from.values_in(state))
    except LimpetError:
        raise
    except (TypeError, ValueError) as problem:
        raise invalid("the state", schema.source, problem, state, schema.secrets) from None


def invalid(
    what: str, cls: Any, problem: Exception, values: Mapping[str, Any], secrets: frozenset[str]
) -> InvalidValue:
    """The refusal of values, with what the class itself says. If some keys are secret, no value is quoted."""
    field = ""
    reason = str(problem)
    if hasattr(problem, "errors"):
        found = problem.errors(include_url=False, include_context=False)
        names = {_alias_of(known): name for name, known in getattr(cls, "model_fields", {}).items()}
        field = _place_of(found[0], names)
        reason = "; ".join(_text_of(error, names, quoting=not secrets) for error in found)
    if secrets:
        reason = mask_text(reason, text_forms(values[key] for key in secrets if key in values))
    return InvalidValue(what, cls.__name__, field, reason)


def _place_of(error: Mapping[str, Any], names: Mapping[Any, str]) -> str:
    """Where an error of pydantic is: the name of the field, by which the state knows it, and the way inside of it."""
    first, *rest = error["loc"] or ("",)
    return ".".join(map(str, (names.get(first, first), *rest)))


def _text_of(error: Mapping[str, Any], names: Mapping[Any, str], quoting: bool) -> str:
    """One error of pydantic: the field, what is wrong, and the value, unless it could be a secret."""
    place = _place_of(error, names)
    text = str(error["msg"])
    if place:
        text = f"{place}: {text}"
    if quoting and error["type"] != "missing":
        return f"{text}, not {short_text(error['input'])}"
    return text


def short_text(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    if len(text) > 80:
        return text[:77] + "…"
    return text


def _as_pydantic_names_them(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names that `model_validate` takes: a field's alias, where it has one."""
    named = {}
    for name, value in values.items():
        field = model.model_fields.get(name)
        named[_alias_of(field) or name] = value
    return named


def _alias_of(field: Any) -> str | None:
    """The name by which `model_validate` takes the value of a field, if that isn't the field's own."""
    alias: Any = getattr(field, "validation_alias", None)
    if hasattr(alias, "choices"):
        alias = next((each for each in alias.choices if isinstance(each, str)), None)
    return alias if isinstance(alias, str) else None
