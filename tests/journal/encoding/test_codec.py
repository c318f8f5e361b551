"""Exact or refused: promise H4, and the part of P10 that is about values."""

from __future__ import annotations

import contextlib
import copy
import enum
import math
import pathlib
import struct
import subprocess
import sys
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.errors import LimpetError, UnstorableValue, UnsupportedFormat, UsageError
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.user_types import register_type

ZONES = [ZoneInfo(key) for key in ("Europe/Oslo", "America/New_York") if key in available_timezones()]
FIXED = [
    UTC,
    timezone(timedelta(hours=5, minutes=45)),
    timezone(timedelta(hours=-3), "BRT"),
    timezone(timedelta(0), "Zulu"),
    timezone(timedelta(seconds=1, microseconds=7)),
]


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down: 1 isn't True, -0.0 isn't 0.0, nan is nan."""
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return struct.pack(">d", one) == struct.pack(">d", other)
        case complex():
            return same([one.real, one.imag], [other.real, other.imag])
        case dict():
            return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
        case list() | tuple() | deque():
            return len(one) == len(other) and all(map(same, one, other))
        case set() | frozenset():
            found = {item: item for item in other}
            return one == other and all(same(item, found[item]) for item in one)
        case datetime() | time():
            bare = one.replace(tzinfo=None), other.replace(tzinfo=None)
            return bare[0] == bare[1] and one.fold == other.fold and same(one.tzinfo, other.tzinfo)
        case timezone():
            return repr(one) == repr(other)
        case ZoneInfo():
            return one is other
        case Decimal():
            return one.as_tuple() == other.as_tuple()
    return bool(one == other)


def test_a_comparison_that_is_no_stricter_than_equality_would_prove_nothing() -> None:
    """H4: the helper of these tests tells apart what `==` doesn't."""
    assert not same(1, True)
    assert not same(0.0, -0.0)
    assert not same({1: "a"}, {1.0: "a"})
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not same(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=FIXED[3]))
    assert same(math.nan, math.nan)


texts = st.text(st.characters(exclude_categories=()), max_size=8)
zones = st.sampled_from([None, *FIXED, *ZONES])
folds = st.integers(0, 1)
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=8),
    st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.datetimes(), zones, folds),
    st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.times(), zones, folds),
    st.dates(),
    st.timedeltas(),
    st.sampled_from([*FIXED, *ZONES]),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.complex_numbers(allow_nan=False),
    st.builds(range, st.integers(), st.integers(), st.integers(min_value=1)),
    st.builds(pathlib.PurePosixPath, texts.map(lambda text: text.replace("\0", ""))),
    st.builds(pathlib.PureWindowsPath, st.sampled_from(["C:/a/b", "a\\b", "//host/share/x", "."])),
    st.just(...),
)
hashables = st.recursive(
    hashables,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    hashables | st.floats() | st.builds(slice, hashables, hashables) | st.binary(max_size=8).map(bytearray),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
        st.sets(hashables, max_size=4),
        st.lists(inner, max_size=3).map(lambda items: deque(items, 5)),
        st.dictionaries(hashables, inner, max_size=3).map(OrderedDict),
        st.dictionaries(texts, inner, max_size=3).map(lambda items: defaultdict(list, items)),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(values)
def test_whatever_is_stored_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    """H4: over every supported type, nested in every container."""
    assert same(decode(encode(value)), value)


@settings(max_examples=60, deadline=None)
@given(values)
def test_an_unchanged_value_has_unchanged_bytes(value: Any) -> None:
    """H4: changes made in place are noticed by comparing bytes."""
    assert encode(value) == encode(value)
    assert encode([value, value])[1:] == encode(value) * 2


@settings(max_examples=60, deadline=None)
@given(values)
def test_a_value_has_the_same_bytes_whichever_way_leads_to_them(value: Any) -> None:
    """H4: what stands next to a value, and so takes the careful way with it, doesn't change its bytes."""
    odd = bytearray(b"odd")
    assert encode([value, odd]) == encode([value, 0])[:-1] + encode(odd)


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_containers_of_any_size_have_the_same_bytes_either_way(count: int) -> None:
    """H4: lists, dicts with str keys and with others, small and large."""
    odd = bytearray(b"odd")
    assert encode([*range(count), odd])[: -len(encode(odd))] == encode([*range(count), 0])[:-1]
    keyed = dict.fromkeys(map(str, range(count)), 0)
    assert encode({**keyed, "odd": odd})[: -len(encode(odd))] == encode({**keyed, "odd": 0})[:-1]
    assert decode(encode({**dict.fromkeys(range(count)), "odd": odd})) == {
        **dict.fromkeys(range(count)),
        "odd": odd,
    }


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60) | values.map(encode).flatmap(lambda data: st.permutations(list(data)).map(bytes))
)
def test_random_bytes_are_a_value_error_or_some_value(data: bytes) -> None:
    """H5: nothing else escapes from decoding, so that the reader can report damage."""
    with contextlib.suppress(ValueError, LimpetError):
        decode(data)


@pytest.mark.parametrize(
    "value",
    [
        2**63 - 1,
        2**64 - 1,
        2**64,
        -(2**63),
        -(2**63) - 1,
        10**5000,
        -0.0,
        math.nan,
        math.inf,
        "\ud800 lone",
        {"\udfff": 1},
        [bytearray(b"x"), b"x", bytearray()],
        {"deep": [{"er": [bytearray(300), bytearray(70_000)]}]},
        (bytearray(b"in a tuple"),),
        {1: "int", True + 1: "two", 3.0: "float", None: "none", (1, (2,)): "tuple", frozenset([1]): "set"},
        {True: "yes"},
        {1.0: "float"},
        {"a": {1: {"b": {2: ({3: 4},)}}}},
        (),
        ((), [], {}, set(), frozenset()),
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=(ZONES or FIXED)[0]),
        datetime.max,
        datetime.min.replace(tzinfo=UTC),
        time(1, 2, 3, 4, tzinfo=FIXED[2], fold=1),
        timedelta.min,
        timedelta.max,
        Decimal("-0E+3"),
        Decimal("sNaN123"),
        Fraction(10**40, 3),
        complex(-0.0, math.nan),
        range(10**30, 0, -7),
        slice(None, "x", (1,)),
        pathlib.Path("a/../b"),
        pathlib.PurePath("."),
        ...,
        uuid.UUID(int=2**128 - 1),
        OrderedDict([("b", 1), ("a", 2)]),
        Counter("mississippi"),
        deque([1, (2,)], maxlen=3),
        deque([1]),
        defaultdict(None, {"a": 1}),
        defaultdict(set, {1: {2}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_of_the_hard_cases_comes_back_exactly(value: Any) -> None:
    """H4: the borders of every type."""
    back = decode(encode(value))
    assert same(back, value)
    assert getattr(back, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(back, "default_factory", None) is getattr(value, "default_factory", None)
    assert same(decode(encode({"in": [value]})), {"in": [value]})


def test_a_uuid_keeps_how_safely_it_was_made() -> None:
    """H4: is_safe isn't part of a UUID's equality, and comes back all the same."""
    value = uuid.UUID(int=7, is_safe=uuid.SafeUUID.safe)
    assert decode(encode(value)).is_safe is uuid.SafeUUID.safe


def test_an_ordered_dict_keeps_an_order_that_was_changed() -> None:
    """H4: move_to_end is seen by iterating it, not by the dict underneath."""
    value = OrderedDict(a=1, b=2, c=3)
    value.move_to_end("a")
    assert same(decode(encode(value)), value)


def test_equal_plain_values_have_equal_bytes() -> None:
    """H4: a copy with the same order of keys is encoded alike."""
    value = {"a": [1, 2.5, None, True, {"b": "c" * 300}], "d": {"e": list(range(1000))}}
    assert encode(copy.deepcopy(value)) == encode(value)


def test_plain_data_is_plain_message_pack() -> None:
    """H4: any MessagePack reader can read it."""
    value = {"a": [1, -1, 2**40, 1.5, "é", b"\xc4", None, True], "b": {}}
    assert ormsgpack.unpackb(encode(value)) == value


class Kind(enum.Enum):
    ONE = 1


class Tags(list[str]):
    pass


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (object(), "the top", "an object (builtins.object); only data can be stored"),
        ({"f": test_plain_data_is_plain_message_pack}, "f", "a function ("),
        ({"a": {"b": [0, len]}}, "a.b[1]", "a builtin_function_or_method (builtins.len)"),
        (
            {"locks": [threading.Lock()]},
            "locks[0]",
            "only data can be stored. Register the type with register_type()",
        ),
        ({"g": (i for i in ())}, "g", "a generator (builtins.generator)"),
        ({"messages": [{}, {"sender": object()}]}, "messages[1].sender", "an object"),
        ({"data": {"odd key": object()}}, 'data["odd key"]', "an object"),
        ({"data": {'say "hi"': object()}}, r'data["say \"hi\""]', "an object"),
        ({"data": {"it's": object()}}, 'data["it\'s"]', "an object"),
        ({"data": {"\ud800": object()}}, r'data["\ud800"]', "an object"),
        ({"data": {7: object()}}, "data[7]", "an object"),
        ({"data": {(1, "a"): object()}}, "data[(1, 'a')]", "an object"),
        ({"data": {10**5000: object()}}, "data[int]", "an object"),
        ({"data": {"x" * 100: object()}}, "data." + "x" * 100, "an object"),
        ({"data": {b"x" * 100: object()}}, "data[b'" + "x" * 56 + "…]", "an object"),
        ({"data": {object(): 1}}, "data{key}", "an object"),
        ({"data": {Text("a"): 1}}, "data{key}", "would come back as a plain str"),
        ({"tags": {object()}}, "tags{element}", "an object"),
        ({"t": (1, [2, object()])}, "t[1][1]", "an object"),
        ({"d": deque([object()])}, "d.items[0]", "an object"),
        ({"od": OrderedDict(x=object())}, "od.x", "an object"),
        ({"view": memoryview(b"x")}, "view", "store bytes(value)"),
        ({"tags": Tags()}, "tags", "which would come back as a plain list; register the class"),
        ({"kind": Kind.ONE}, "kind", "isn't registered; put @register_type on it"),
        ({"cls": int}, "cls", "a class (builtins.int)"),
        ({"space": SimpleNamespace()}, "space", "a SimpleNamespace"),
        ({"dd": defaultdict(lambda: 1)}, "dd", "default_factory"),
        ({"error": ValueError("x")}, "error", "only data can be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_key_path(value: Any, path: str, reason: str) -> None:
    """H4: the path leads to the very value, and the reason says what it is."""
    with pytest.raises(UnstorableValue) as caught:
        encode(value)
    assert (caught.value.path or "the top") == path
    assert reason in caught.value.reason
    assert f"the value at {path} can't be stored" in str(caught.value)


def test_a_coroutine_that_was_not_awaited_is_refused_with_what_to_do() -> None:
    """H4: most often an `await` was forgotten."""

    async def late() -> int:
        return 1

    coroutine = late()
    with pytest.raises(UnstorableValue, match=r"a coroutine .*, which has to be awaited first"):
        encode({"x": coroutine})
    coroutine.close()


def test_a_path_starts_where_the_caller_says() -> None:
    """H4: a value that is encoded on its own still has its place in the state."""
    with pytest.raises(UnstorableValue) as caught:
        encode([{"sender": object()}], "messages")
    assert caught.value.path == "messages[0].sender"


def test_a_zone_of_a_foreign_class_is_refused_at_the_datetime_that_has_it() -> None:
    """H4: tzinfo classes besides timezone and ZoneInfo have to be registered."""

    class Foreign(timezone.__base__):  # type: ignore[misc, name-defined]
        pass

    with pytest.raises(UnstorableValue) as caught:
        encode({"at": [datetime(2024, 1, 1, tzinfo=Foreign())]})
    assert caught.value.path == "at[0].tzinfo"


def cycle_of_lists() -> tuple[Any, str]:
    value: dict[str, Any] = {"a": [1, {"b": []}]}
    value["a"][1]["b"].append(value["a"])
    return value, "a[1].b[0]"


def cycle_of_int_keys() -> tuple[Any, str]:
    value: dict[Any, Any] = {}
    value[1] = {"x": value}
    return value, "[1].x"


def cycle_through_a_tuple() -> tuple[Any, str]:
    items: list[Any] = []
    items.append((items,))
    return {"t": items}, "t[0][0]"


@pytest.mark.parametrize("make", [cycle_of_lists, cycle_of_int_keys, cycle_through_a_tuple])
def test_a_value_that_contains_itself_is_refused_where_the_circle_closes(make: Any) -> None:
    """H4: never a RecursionError."""
    value, path = make()
    with pytest.raises(UnstorableValue, match="it contains itself") as caught:
        encode(value)
    assert caught.value.path == path


def nest(levels: int, wrap: Any) -> Any:
    value: Any = "core"
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS = [
    lambda value: [value],
    lambda value: {"k": value},
    lambda value: {1: value},
    lambda value: (value,),
    lambda value: [(value,)],
    lambda value: deque([value]),
]


def unnest(value: Any) -> int:
    levels = 0
    while value != "core":
        value = value[0] if not isinstance(value, dict) else next(iter(value.values()))
        levels += 1
    return levels


@pytest.mark.parametrize("wrap", WRAPS)
def test_two_hundred_levels_are_stored(wrap: Any) -> None:
    """H4: nesting within the stated limit comes back whole."""
    levels = 200 if wrap not in WRAPS[4:] else 100
    assert unnest(decode(encode(nest(levels, wrap)))) >= levels


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("levels", [500, 100_000])
def test_what_is_nested_too_deeply_is_refused_with_a_path(wrap: Any, levels: int) -> None:
    """H4: never a RecursionError, let alone a crash."""
    with pytest.raises(UnstorableValue, match="nested") as caught:
        encode({"deep": nest(levels, wrap)})
    assert caught.value.path.startswith("deep")
    assert len(caught.value.path) <= 200


def test_a_full_stack_isnt_a_recursion_error_either() -> None:
    """H4: a value that fits by its own depth is refused, not half encoded, when Python's stack runs out."""
    value = {"deep": nest(150, lambda value: (value,))}

    def descend() -> None:
        try:
            descend()
        except RecursionError:
            encode(value)

    with pytest.raises(UnstorableValue, match="Python's stack"):
        descend()
    assert decode(encode(value)) == value


def test_deep_mixed_nesting_that_was_stored_can_be_read_in_a_thread_with_a_small_stack() -> None:
    """H4: the nesting that is accepted is bounded by what decoding can take, or it would end the process."""
    value: Any = "core"
    for level in range(2000):
        value = (value,) if level % 240 == 0 else [value]
        if level % 100 == 0:
            try:
                data = encode(value)
            except UnstorableValue:
                break
    size = threading.stack_size(1024 * 1024)
    try:
        levels: list[int] = []
        thread = threading.Thread(target=lambda: levels.append(unnest(decode(data))))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert levels
    assert levels[0] >= 200


def test_decoding_imports_nothing_that_the_data_names() -> None:
    """H4: a class is found by its registered name or not at all."""
    assert "this" not in sys.modules
    for name in ("this:s", "os:system", "builtins:eval"):
        data = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb([name, "1 + 1"])))
        with pytest.raises(UsageError, match=rf"'{name}'.*register_type\(") as caught:
            decode(data)
        assert "before reading" in str(caught.value)
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("tag", "payload", "message"),
    [
        (18, b"No/Where", "doesn't know the time zone 'No/Where': pip install tzdata"),
        (23 if sys.platform == "win32" else 24, b"a", "Path can't be read on this system; store Pure paths"),
    ],
)
def test_what_this_machine_lacks_isnt_damage(tag: int, payload: bytes, message: str) -> None:
    """H4: a value that was stored elsewhere and can't be made here says what is missing."""
    with pytest.raises(UsageError, match=message):
        decode(ormsgpack.packb([ormsgpack.Ext(tag, payload)]))


def test_a_kind_of_value_from_the_future_is_said_to_be_one() -> None:
    """P10: an unknown tag is a newer format, not damage."""
    with pytest.raises(UnsupportedFormat, match="newer Limpet"):
        decode(ormsgpack.packb([ormsgpack.Ext(127, b"")]))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\xa5abc", b"\xd4\x05", b"\xc7\x03\x0dabc"])
def test_bytes_that_are_no_value_are_a_value_error(data: bytes) -> None:
    """H5: the reader makes DamagedRecord of it."""
    with pytest.raises(ValueError, match="not an encoded value"):
        decode(data)


def test_an_error_of_one_decoding_is_not_reported_by_the_next() -> None:
    """H5: what a callback raised is kept per call."""
    with pytest.raises(UsageError):
        decode(ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(["no:such", 1]))))
    with pytest.raises(ValueError, match="not an encoded value"):
        decode(b"\xc1")


class Stubborn:
    raises: BaseException | None = None


def stubborn_to(value: Stubborn) -> int:
    if Stubborn.raises:
        raise Stubborn.raises
    return 1


def stubborn_restore(stored: int) -> Stubborn:
    if Stubborn.raises:
        raise Stubborn.raises
    return Stubborn()


register_type(Stubborn, to=stubborn_to, restore=stubborn_restore)


def test_ctrl_c_within_a_users_conversion_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: ormsgpack swallows what its callbacks raise; the codec doesn't."""
    data = encode([Stubborn(), (Stubborn(),)])
    monkeypatch.setattr(Stubborn, "raises", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        encode([Stubborn()])
    with pytest.raises(KeyboardInterrupt):
        encode({1: (Stubborn(),)})
    with pytest.raises(KeyboardInterrupt):
        decode(data)


def test_a_failing_conversion_says_where_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: errors of `to` carry the path, errors of `restore` the name of the type."""
    data = encode({"a": [Stubborn()]})
    monkeypatch.setattr(Stubborn, "raises", LookupError("gone"))
    with pytest.raises(UnstorableValue, match="LookupError: gone") as refused:
        encode({"a": [Stubborn()]})
    assert refused.value.path == "a[0]"
    with pytest.raises(
        UsageError, match=r"Stubborn' can't be restored: LookupError: gone.*restore="
    ) as failed:
        decode(data)
    assert isinstance(failed.value.__cause__, LookupError)


def test_values_written_by_the_first_version_can_be_read() -> None:
    """P10: the tags are the format. Add to this list, never change it."""
    data = bytes.fromhex(GOLDEN)
    value = [
        (1, "a"), {2}, frozenset([3]), {4: 5}, 2**64, "\ud800", bytearray(b"b"), 1j, range(1, 9, 2), slice(1, 2),
        ..., datetime(2024, 2, 29, 23, 59, 58, 7, UTC, fold=1), datetime(2024, 1, 1), date(2024, 2, 29),
        time(1, 2, 3, 4, timezone(timedelta(hours=1), "X")), timedelta(-1, 2, 3), uuid.UUID(int=1),
        Decimal("1.50"), Fraction(1, 3), pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("C:/a"),
        OrderedDict(a=1), Counter(a=2), deque([1], 2), defaultdict(list, a=[]),
    ]  # fmt: skip
    assert same(decode(data), value)
    assert encode(value) == data


GOLDEN = (
    "dc0019d6019201a161d5029102d5039103c70304920405c70905010000000000000000c70306eda080d40762d80800000000"
    "000000003ff0000000000000d60993010902d60a930102c0c7000bc70d0c07e8021d173b3a00000007015ac70c0c07e80101"
    "0000000000000000d60d07e8021dc71d0e0102030000000400c7121092c70c0f0000000000000e1000000000a158c70c0fff"
    "ffffff0000000200000003d81100000000000000000000000000000001d613312e3530c70314920103c70315612f62d61643"
    "3a5c61c71d0092b7636f6c6c656374696f6e733a4f7264657265644469637481a16101c7190092b3636f6c6c656374696f6e"
    "733a436f756e74657281a16102c7240092b1636f6c6c656374696f6e733a646571756582a56974656d739101a66d61786c65"
    "6e02c7310092b7636f6c6c656374696f6e733a64656661756c746469637482a7666163746f7279a46c697374a56974656d73"
    "81a16190"
)


def test_importing_the_codec_imports_little_besides_ormsgpack() -> None:
    """H4: types of modules that the program hasn't imported cost it nothing."""
    script = (
        "import sys, types, ormsgpack\n"
        "package = types.ModuleType('limpet'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['limpet'] = package; before = set(sys.modules)\n"
        "import limpet.journal.encoding.codec, limpet.journal.encoding.envelope\n"
        "print(*sorted(name for name in set(sys.modules) - before if 'limpet' not in name))"
    )
    source = pathlib.Path(sys.modules["limpet.errors"].__file__ or "").parent
    ran = subprocess.run([sys.executable, "-c", script, source], capture_output=True, text=True, check=True)
    heavy = {"decimal", "fractions", "zoneinfo", "pathlib", "numpy", "pydantic", "json", "asyncio", "pickle"}
    assert not heavy & set(ran.stdout.split())
