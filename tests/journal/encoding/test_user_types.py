"""Registered classes come back exactly, and are never imported: promise H4."""

from __future__ import annotations

import enum
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest

from limpet.errors import UnstorableValue, UsageError
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.user_types import TYPES, TypeRegistry, register_type

T = TypeVar("T")


def back(value: Any) -> Any:
    restored = decode(encode(value))
    assert type(restored) is type(value)
    return restored


@register_type
@dataclass
class Plain:
    text: str
    parts: tuple[int, ...] = ()
    shared: ClassVar[int] = 1


@register_type
@dataclass(frozen=True, slots=True)
class Frozen:
    text: str
    made: list[str] = field(default_factory=list)


@register_type
@dataclass(slots=True)
class FrozenChild:
    plain: Plain | None
    unset: int = field(init=False)


@register_type
@dataclass
class Careful:
    """Its constructor changes what it is given, counts, and wants more than the fields."""

    made: ClassVar[int] = 0
    raw: InitVar[str]
    text: str = field(init=False)
    secret: str = field(default="s", repr=False, compare=False)

    def __post_init__(self, raw: str) -> None:
        Careful.made += 1
        self.text = raw.upper()
        self.extra = [raw]

    @cached_property
    def length(self) -> int:
        return len(self.text)


@register_type
@dataclass
class Box(Generic[T]):
    item: T


class TestDataclasses:
    def test_fields_come_back_with_their_types(self) -> None:
        """H4: plain, frozen and slotted, nested in each other."""
        value = {"a": [Plain("x", (1, 2)), Frozen("y", ["z"])], Frozen: 1}
        del value[Frozen]
        assert back(value) == value
        assert back(Plain("x", (1,))).parts == (1,)
        assert back(Frozen("y", ["z"])) == Frozen("y", ["z"])

    def test_a_frozen_one_stays_frozen(self) -> None:
        """H4: restoring goes around `__setattr__`, not through it."""
        with pytest.raises(AttributeError):
            back(Frozen("y")).text = "z"

    def test_neither_constructor_nor_post_init_runs_again(self) -> None:
        """H4: attributes come back as they are, with those that are no fields."""
        value = Careful("abc", secret="t")
        assert value.length == 3
        value.text = "changed"
        made = Careful.made
        restored = back(value)
        assert vars(restored) == {"text": "changed", "secret": "t", "extra": ["abc"], "length": 3}
        assert Careful.made == made

    def test_a_field_that_was_never_set_stays_unset(self) -> None:
        """H4: for fields that the constructor doesn't take."""
        restored = back(FrozenChild(Plain("x")))
        assert restored.plain == Plain("x")
        assert not hasattr(restored, "unset")

    def test_a_deleted_field_is_refused_when_saving(self) -> None:
        """H4: rather than when it is too late."""
        value = Plain("x")
        del value.text
        with pytest.raises(UnstorableValue, match="its field 'text' is not set") as caught:
            encode({"it": [value]})
        assert caught.value.path == "it[0]"

    def test_a_generic_one_comes_back(self) -> None:
        """H4: what typing hangs on it is left out."""
        assert back(Box[int](3)) == Box(3)

    def test_a_refused_part_is_named_by_its_field(self) -> None:
        """H4: `messages[1].sender`."""
        with pytest.raises(UnstorableValue) as caught:
            encode({"messages": [1, Box(Frozen("x", [object()]))]})  # type: ignore[list-item]
        assert caught.value.path == "messages[1].item.made[0]"

    def test_a_circle_through_one_is_refused(self) -> None:
        """H4: with the place where it closes."""
        box: Box[Any] = Box(None)
        box.item = [box]
        with pytest.raises(UnstorableValue, match="contains itself") as caught:
            encode(box)
        assert caught.value.path == "item[0]"

    def test_a_subclass_has_to_be_registered_itself(self) -> None:
        """H4: it would come back as its base."""

        @dataclass
        class Child(Plain):
            pass

        with pytest.raises(UnstorableValue, match="put @register_type on it"):
            encode(Child("x"))

    def test_one_that_is_also_a_list_needs_both_functions(self) -> None:
        """H4: its items would be lost."""
        with pytest.raises(UsageError, match="needs both to= and restore="):

            @register_type
            @dataclass
            class Both(list[int]):
                name: str = ""


def changed(before: type, after: type, value: Any, **arguments: Any) -> Any:
    """The value, written when the class was `before`, read when it is `after`."""
    after.__qualname__, after.__module__ = before.__qualname__, before.__module__
    data = encode(value)
    register_type(after, **arguments)
    return decode(data)


class TestClassesThatChanged:
    def make(self, slots: bool, **more: Any) -> tuple[type, type]:
        @register_type(name=f"changed {slots} {sorted(more)}")
        @dataclass(slots=slots)
        class Before:
            kept: int

        after = type("After", (), {"__annotations__": {"kept": int, **dict.fromkeys(more, int)}, **more})
        return Before, dataclass(slots=slots)(after)

    @pytest.mark.parametrize("slots", [False, True])
    def test_a_new_field_gets_its_default(self, slots: bool) -> None:
        """P10: values written before the field existed can be read."""
        before, after = self.make(slots, plain=7, made=field(default_factory=lambda: 8))
        name = f"changed {slots} ['made', 'plain']"
        restored = changed(before, after, before(1), name=name)
        assert (type(restored), restored) == (after, after(1, 7, 8))

    def test_a_new_field_without_default_is_an_error_that_says_what_to_do(self) -> None:
        """P10: nothing is made up."""
        before, after = self.make(False, new=field())
        with pytest.raises(UsageError, match=r"without the field 'new'.*restore="):
            changed(before, after, before(1), name="changed False ['new']")

    def test_a_removed_slot_is_an_error_and_restore_reads_the_older_shape(self) -> None:
        """P10: nothing is dropped silently, and the way out works."""

        @register_type
        @dataclass(slots=True)
        class Old:
            kept: int
            gone: int = 2

        @dataclass(slots=True)
        class New:
            kept: int

        value = Old(1)
        data = encode(value)
        with pytest.raises(UsageError, match="with a field 'gone'"):
            changed(Old, New, value)
        register_type(New, restore=lambda stored: New(stored["kept"] + stored["gone"]))
        assert decode(data) == New(3)

    def test_a_renamed_class_is_read_under_both_names(self) -> None:
        """P10: register it under the old name first, then under the new."""

        @register_type(name="old name")
        @dataclass
        class Moved:
            x: int

        old = encode(Moved(1))
        register_type(Moved, name="new name")
        assert decode(old) == decode(encode(Moved(1))) == Moved(1)
        assert b"new name" in encode(Moved(1))


@register_type
class Color(enum.Enum):
    RED = (1, "r")
    CRIMSON = (1, "r")  # noqa: PIE796  an alias
    BLUE = [2]  # noqa: RUF012  an enum's values aren't class attributes


@register_type
class Level(enum.IntEnum):
    LOW = 1


@register_type
class Word(enum.StrEnum):
    YES = "yes"


@register_type
class Right(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3
    RUN = 4


@register_type
class Loose(enum.IntFlag):
    A = 1


class TestEnums:
    @pytest.mark.parametrize(
        "member", [*Color, *Level, *Word, *Right, Right(0), Right.READ | Right.RUN, Loose(9)]
    )
    def test_a_member_comes_back_as_itself(self, member: enum.Enum) -> None:
        """H4: found by its name, whatever its value; combined flags by their value."""
        assert back(member) is member
        assert back({member: [member]} if member.__hash__ else [member]) == {member: [member]}

    def test_a_key_that_looks_like_a_str_stays_a_member(self) -> None:
        """H4: a StrEnum equals its str and isn't one."""
        (key,) = back({Word.YES: 1})
        assert key is Word.YES

    def test_a_member_that_is_gone_is_an_error(self) -> None:
        """P10: with its name."""

        @register_type
        class Less(enum.Enum):
            LEFT = 1

        data = encode(Less.LEFT).replace(b"LEFT", b"LOST")
        with pytest.raises(UsageError, match="LOST"):
            decode(data)


@register_type
class Point(NamedTuple):
    x: int
    y: Any = None


Pair = register_type(namedtuple("Pair", "a b"), name="Pair")


@register_type
class Normal(Point):
    def __new__(cls, x: int, y: Any = None) -> Normal:
        return super().__new__(cls, abs(x), y)


class TestNamedTuples:
    @pytest.mark.parametrize("value", [Point(1, (2,)), Pair("a", [Point(1)]), Normal(-3)])
    def test_it_comes_back_without_its_constructor(self, value: Any) -> None:
        """H4: typing.NamedTuple, collections.namedtuple and subclasses."""
        assert back(value) == value
        assert back({value[0]: {(value[0], "key"): value}}) == {value[0]: {(value[0], "key"): value}}

    def test_a_refused_part_is_named_by_its_field(self) -> None:
        """H4: not by its number."""
        with pytest.raises(UnstorableValue) as caught:
            encode({"p": Point(1, object())})
        assert caught.value.path == "p.y"

    def test_attributes_besides_the_fields_are_refused(self) -> None:
        """H4: they would be lost."""
        value = Normal(1)
        value.note = "x"  # type: ignore[attr-defined]
        with pytest.raises(UnstorableValue, match="attributes besides its fields"):
            encode(value)

    def test_a_changed_one_gets_defaults_or_says_so(self) -> None:
        """P10: like a dataclass."""
        Before = register_type(namedtuple("Before", "a"), name="changing tuple")
        data = encode(Before(1))
        After = namedtuple("Before", "a b", defaults=[2])
        register_type(After, name="changing tuple")
        assert decode(data) == After(1, 2)
        register_type(namedtuple("Before", "c"), name="changing tuple")
        with pytest.raises(UsageError, match=r"with the fields \['a'\] and now has \['c'\]"):
            decode(data)


class TestPydantic:
    @pytest.fixture
    def models(self) -> Any:
        pydantic = pytest.importorskip("pydantic", minversion="2")

        class Models:
            @register_type(name="test Inner")
            class Inner(pydantic.BaseModel):  # type: ignore[name-defined, misc]
                numbers: tuple[int, ...] = ()
                anything: Any = None

            @register_type(name="test Outer")
            class Outer(pydantic.BaseModel):  # type: ignore[name-defined, misc]
                model_config = pydantic.ConfigDict(extra="allow", frozen=True)
                name: str = pydantic.Field(alias="Name")
                inner: Any = None
                _private: list[int] = pydantic.PrivateAttr(default_factory=lambda: [1])

            @register_type(name="test Root")
            class Root(pydantic.RootModel[list[int]]):  # type: ignore[name-defined, misc]
                pass

        Models.pydantic = pydantic  # type: ignore[attr-defined]
        return Models

    def test_a_model_comes_back_attribute_by_attribute(self, models: Any) -> None:
        """H4: aliases, extras, private attributes, frozen, and which fields were set."""
        value = models.Outer(Name="x", inner=models.Inner(numbers=(1,), anything={2: (3,)}), more=[b"y"])
        value._private.append(2)
        restored = back({"m": [value]})["m"][0]
        assert restored == value
        assert type(restored.inner.numbers) is tuple
        assert type(restored.inner.anything[2]) is tuple
        assert restored.model_extra == {"more": [b"y"]}
        assert restored._private == [1, 2]
        assert restored.model_fields_set == value.model_fields_set == {"name", "inner", "more"}
        assert back(models.Inner()).model_fields_set == set()
        assert back(models.Root([1])) == models.Root([1])

    def test_what_a_model_has_besides_fields_is_stored_under_names_that_stay(self, models: Any) -> None:
        """P10: older runs have these names, and a later version must find them."""
        kind = TYPES.of_class(models.Outer)
        assert kind is not None
        value = models.Outer(Name="x", more=1)
        stored = {
            "name": "x",
            "inner": None,
            "(fields set)": ["more", "name"],
            "(extra)": {"more": 1},
            "(private)": {"_private": [1]},
        }
        assert kind.to(value) == stored
        restored = kind.restore(stored)
        assert restored == value
        assert (restored.model_extra, restored._private) == ({"more": 1}, [1])
        assert vars(restored) == {"name": "x", "inner": None}

    def test_a_model_without_extras_has_none_stored_and_none_restored(self, models: Any) -> None:
        """H4: a model that allows them has an empty dict of its own, another one has None."""
        inner = TYPES.of_class(models.Inner)
        assert inner is not None
        assert inner.to(models.Inner(numbers=(1,), anything=2)) == {"numbers": (1,), "anything": 2}
        assert back(models.Inner()).model_extra is None
        assert back(models.Inner()).__pydantic_private__ is None
        first, second = back([models.Outer(Name="x"), models.Outer(Name="x")])
        assert first.model_extra == second.model_extra == {}
        assert first.model_extra is not second.model_extra

    def test_it_isnt_validated_again(self, models: Any) -> None:
        """H4: what model_construct let in comes back too."""
        assert back(models.Inner.model_construct(numbers="not numbers")).numbers == "not numbers"

    def test_a_refused_part_is_named_by_its_field(self, models: Any) -> None:
        """H4: as if it were a dataclass."""
        with pytest.raises(UnstorableValue) as caught:
            encode({"a": models.Inner(anything=[object()])})
        assert caught.value.path == "a.anything[0]"

    def test_new_fields_get_their_defaults_or_say_so(self, models: Any) -> None:
        """P10: values written before a field existed."""
        create = models.pydantic.create_model
        before = register_type(create("Changing", kept=(int, ...)), name="changing model")
        data = encode(before(kept=1))
        register_type(create("Changing", kept=(int, ...), new=(list[int], [5])), name="changing model")
        assert decode(data).new == [5]
        register_type(create("Changing", kept=(int, ...), new=(int, ...)), name="changing model")
        with pytest.raises(UsageError, match="without the field 'new'"):
            decode(data)


class TestNumpy:
    @pytest.fixture
    def numpy(self) -> Any:
        return pytest.importorskip("numpy")

    def test_an_array_comes_back_with_dtype_shape_and_order(self, numpy: Any) -> None:
        """H4: bit by bit, and writable."""
        for array in (
            numpy.arange(6.0).reshape(2, 3),
            numpy.arange(6, dtype=">i2").reshape(2, 3, order="F"),
            numpy.arange(10)[::3],
            numpy.array([[1 + 2j, numpy.nan]], dtype="c8"),
            numpy.array(["a", "bcd\ud800"]),
            numpy.array([b"a", b""]),
            numpy.array(["2024-01-01", "NaT"], dtype="M8[25s]"),
            numpy.array([(1, (2.0, 3.0))], dtype=[("a", "<i4"), ("b", "<f8", (2,))]),
            numpy.array(5),
            numpy.zeros((0, 3), dtype="?"),
        ):
            restored = back({1: [array]})[1][0]
            assert type(restored) is numpy.ndarray
            assert (restored.dtype, restored.shape) == (array.dtype, array.shape)
            assert restored.flags.f_contiguous == numpy.asarray(array, order="K").copy("A").flags.f_contiguous
            assert restored.tobytes() == array.tobytes()
            assert restored.flags.writeable
            assert restored.flags.owndata

    def test_a_scalar_comes_back_as_the_same_kind_of_scalar(self, numpy: Any) -> None:
        """H4: float64 is a float and isn't one."""
        kinds = (numpy.float64, numpy.float32, numpy.int8, numpy.longlong, numpy.ulonglong, numpy.bool_)
        values = [kind(1) for kind in kinds]
        values += [
            numpy.datetime64("2024-01-01", "ns"),
            numpy.timedelta64(5, "h"),
            numpy.str_("é"),
            numpy.bytes_(b""),
        ]
        for value in values:
            assert back(value) == value
            assert back({value: 1}) == {value: 1}
            assert back(value).dtype == value.dtype

    def test_what_numpy_itself_loses_is_refused(self, numpy: Any) -> None:
        """H4: with the path."""

        class Sub(numpy.ndarray):  # type: ignore[misc, name-defined]
            pass

        for value, reason in (
            (numpy.array([object()]), "no exact form in bytes"),
            (numpy.str_("nul\0"), "doesn't give this"),
            (numpy.arange(3).view(Sub), "Sub"),
        ):
            with pytest.raises(UnstorableValue, match=reason) as caught:
                encode({"a": value})
            assert caught.value.path == "a"

    def test_without_numpy_the_error_says_to_import_it(
        self, numpy: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """H4: decoding doesn't import it by itself."""
        data = encode([numpy.arange(3)])
        monkeypatch.delitem(sys.modules, "numpy")
        with pytest.raises(UsageError, match="import numpy before"):
            decode(data)
        assert "numpy" not in sys.modules


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and self.degrees == other.degrees


class Tags(list[Any]):
    pass


register_type(Celsius, to=lambda value: value.degrees, restore=Celsius)
register_type(Tags, to=list, restore=Tags)


class TestRegistering:
    def test_any_class_can_bring_its_own_two_functions(self) -> None:
        """H4: also subclasses of the built-in ones, with paths that lead through them."""
        assert back([Celsius(1.5), Tags(["a", (1,)])]) == [Celsius(1.5), Tags(["a", (1,)])]
        with pytest.raises(UnstorableValue) as caught:
            encode({"tags": Tags([1, object()])})
        assert caught.value.path == "tags[1]"

    def test_a_conversion_that_gets_nowhere_is_refused(self) -> None:
        """H4: `to` must give something simpler."""

        class Loop:
            pass

        class Spiral:
            pass

        register_type(Loop, to=lambda value: value, restore=Loop)
        register_type(Spiral, to=lambda value: [Spiral()], restore=Spiral)
        with pytest.raises(UnstorableValue, match="contains itself"):
            encode(Loop())
        with pytest.raises(UnstorableValue, match="levels deep"):
            encode(Spiral())

    def test_the_decorator_gives_the_class_back_and_names_it_by_its_place(self) -> None:
        """H4: both with and without arguments."""

        @register_type
        @dataclass
        class One:
            x: int = 1

        @register_type(name="Two!")
        @dataclass
        class Two:
            x: int = 1

        assert f"{__name__}:{One.__qualname__}".encode() in encode(One())
        assert b"Two!" in encode(Two())
        assert (back(One()), back(Two())) == (One(), Two())

    def test_a_name_belongs_to_one_class(self) -> None:
        """H4: or values would come back as the wrong class."""
        register_type(Celsius, name="taken", to=lambda value: value.degrees, restore=Celsius)
        with pytest.raises(UsageError, match=r"the name 'taken' is taken by .*Celsius"):
            register_type(Plain, name="taken")
        with pytest.raises(UsageError, match="Limpet itself"):
            register_type(Plain, name="numpy:array")

    def test_registering_twice_changes_nothing(self) -> None:
        """H4: a module may be run again."""
        assert register_type(register_type(Plain)) is Plain
        assert back(Plain("x")) == Plain("x")

    def test_a_redefined_class_takes_the_place_of_the_former(self) -> None:
        """H4: as in a notebook; values of the former class are refused, they wouldn't come back as such."""

        def define() -> Callable[..., Any]:
            @register_type
            @dataclass
            class Cell:
                x: int

            return Cell

        former, latter = define(), define()
        assert back(latter(1)) == latter(1)
        with pytest.raises(UnstorableValue):
            encode(former(1))

    @pytest.mark.parametrize(
        ("cls", "arguments", "message"),
        [
            (object, {}, "needs both"),
            (Celsius, {"to": str}, "needs both"),
            (Celsius, {"restore": Celsius}, "needs both"),
            (int | str, {}, "takes a class"),
            (Plain("x"), {}, "takes a class"),
        ],
    )
    def test_a_wrong_call_says_what_to_do(self, cls: Any, arguments: dict[str, Any], message: str) -> None:
        """H4: at once, not when the first value is saved."""
        with pytest.raises(UsageError, match=message):
            register_type(cls, **arguments)

    def test_registries_are_independent(self) -> None:
        """H4: what is registered in one isn't in another."""
        registry = TypeRegistry()
        assert registry.of_class(Plain) is None
        registry.register(Plain, name="p")
        assert registry.named("p").restore({"text": "x", "parts": ()}) == Plain("x")
        with pytest.raises(UsageError, match=r"register_type\(\.\.\., name='q'\)"):
            registry.named("q")

    def test_many_threads_register_at_once(self) -> None:
        """H4: each name goes to exactly one of them."""
        registry, start = TypeRegistry(), threading.Barrier(8)
        won: list[tuple[int, type]] = []

        def work() -> None:
            mine = [
                dataclass(type(f"C{number}", (), {"__qualname__": f"C{id(start)}"})) for number in range(50)
            ]
            for cls in mine:
                cls.__qualname__ = f"{threading.get_ident()}.{cls.__name__}"
            start.wait()
            for number, cls in enumerate(mine):
                try:
                    registry.register(cls, name=str(number))
                except UsageError:
                    continue
                won.append((number, cls))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(number for number, _ in won) == list(range(50))
        assert all(registry.named(str(number)).cls is cls for number, cls in won)
