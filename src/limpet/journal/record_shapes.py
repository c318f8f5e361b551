"""The shape of each kind of record, and of a head's summary: which types the parts have that a reader relies on.

A checksum says that a record is what was written. It doesn't say that Limpet wrote it: a file to import may come from
anywhere. So every record that is read is checked here before it is applied, and one of another shape is damage. The
values of a state are the user's and may be anything that can be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from limpet.journal import open_parallel_section as sections
from limpet.journal import waits
from limpet.journal.encoding.codec import decode, decode_for_viewing
from limpet.journal.records import MEMO, MOVE, NESTED, OPEN, SNAPSHOT, STEP, unbundle
from limpet.journal.store import STATUSES
from limpet.journal.waits import AFTER, BEFORE, FAILED_PHASE, PostWait, Question

FIRST_TIME = -62_135_596_800
LAST_TIME = 253_402_300_799
"""The first and the last second that a `datetime` can have."""
COUNT_LIMIT = 2**63
"""All counts are smaller. Databases store no larger numbers."""
MAX_NESTING = 50
"""How deep sections may be nested in each other."""

Check = Callable[[Any], bool]


def decode_records(body: bytes, decode: Callable[[bytes], Any] = decode) -> list[list[Any]]:
    """The records in a body, each of the shape of its kind. Raises ValueError, with the part that is wrong."""
    record = decode(body)
    # Nearly all records of a long journal are steps that set keys, and reading one costs a few microseconds. So these
    # are recognised by one expression, without a call.
    if (
        type(record) is list
        and len(record) == 7
        and record[0] == STEP
        and type(record[1]) is type(record[3]) is int
        and 0 <= record[1] < COUNT_LIMIT
        and 0 <= record[3] < COUNT_LIMIT
        and type(record[2]) is float
        and FIRST_TIME <= record[2] <= LAST_TIME
        and type(record[4]) is str
        and (type(record[5]) is str or record[5] is None)
        and type(record[6]) is dict
    ):
        for key in record[6]:
            if type(key) is not str:
                break
        else:
            return [record]
    records = unbundle(record)
    for each in records:
        _check_record(each)
    return records


def read_summary(note: bytes) -> dict[str, Any]:
    """What a head's note says of its run: see `writer.summary`. Raises ValueError unless it has that shape."""
    summary = decode_for_viewing(note) if note else {}
    if not _has_str_keys(summary):
        raise ValueError("it isn't a dict")
    for name, is_valid in _SUMMARY.items():
        if name in summary:
            _need(is_valid(summary[name]), f"its {name}", summary[name])
    return dict(summary)


def _check_record(record: list[Any]) -> None:
    _check_beginning(record)
    _CHECKS[record[0]](record)


def _check_beginning(record: list[Any]) -> None:
    _, step, at, crashes = record[:4]
    _need(is_count(step), "its step", step)
    _need(is_time(at), "its time", at)
    _need(is_count(crashes), "its number of crashes", crashes)


def _check_step(record: list[Any]) -> None:
    _need_length(record, 7)
    _, _, _, _, node, following, delta = record
    _need(_is_str(node), "its node", node)
    _need(_is_optional_str(following), "its next node", following)
    _check_delta(delta)


def _check_snapshot(record: list[Any]) -> None:
    _need_length(record, 6)
    _check_fields(record[4], "run_id")
    _need(_has_str_keys(record[5]), "its state", record[5])


def _check_move(record: list[Any]) -> None:
    _need_length(record, 5, 6)
    changes = record[4]
    _need(_has_str_keys(changes), "its list of changes", changes)
    for name, value in changes.items():
        is_valid = _MOVES.get(name)
        if is_valid is None:
            raise ValueError(f"it changes {name!r}, which no such record does")
        _need(is_valid(value), f"its {name}", value)
    if len(record) == 6:
        _check_delta(record[5])


def _check_memo(record: list[Any]) -> None:
    _need_length(record, 6)
    _need(_is_str(record[4]), "its key", record[4])


def _check_open(record: list[Any]) -> None:
    _need_length(record, 5)
    _check_opening(record[4])


def _check_nested(record: list[Any]) -> None:
    _need_length(record, 6)
    path = record[4]
    inner = record[5]
    _need(_is_path(path) and bool(path), "its path", path)
    if type(inner) is not list or len(inner) < 5 or inner[0] not in _IN_BRANCHES:
        raise ValueError("its record of a branch is of an unknown kind")
    _check_record(inner)


def _check_delta(delta: Any) -> None:
    if type(delta) is dict:
        _need(_has_str_keys(delta), "its delta", delta)
        return
    if type(delta) is not list or len(delta) not in (4, 5):
        raise ValueError(f"its delta is {_shown(delta)}")
    sets, appends, merges, deletes, *replaces = delta
    _need(_has_str_keys(sets), "what its delta sets", sets)
    _need(_is_dict_of(_is_list, appends), "what its delta appends", appends)
    _need(_is_dict_of(_is_dict, merges), "what its delta merges", merges)
    _need(_is_list_of(_is_str, deletes), "what its delta deletes", deletes)
    _need(_is_list_of(_replaces_items, replaces), "what its delta replaces", replaces)


def _check_fields(fields: Any, *required: str, depth: int = 0) -> None:
    """Check all of a progress but its state. Fields that are empty aren't stored."""
    _need(_has_str_keys(fields), "its list of fields", fields)
    for name in required:
        if name not in fields:
            raise ValueError(f"its {name} is missing")
    for name, value in fields.items():
        is_valid = _FIELDS.get(name)
        if is_valid is not None:
            _need(is_valid(value), f"its {name}", value)
    if "section" in fields:
        _check_section(fields["section"], depth)


def _check_section(section: Any, depth: int) -> None:
    if depth >= MAX_NESTING:
        raise ValueError(f"its sections are nested more than {MAX_NESTING} deep")
    _need(_is_list(section) and len(section) == 2 and _is_list(section[1]), "its section", section)
    opening, branches = section
    _check_opening(opening)
    for branch in branches:
        _need(_is_list(branch) and len(branch) == 4 and _is_key(branch[0]), "a branch", branch)
        _, fields, state, deleted = branch
        _check_fields(fields, "node", "step", depth=depth + 1)
        _need(_has_str_keys(state), "the state of a branch", state)
        _need(_is_list_of(_is_str, deleted), "what a branch deleted", deleted)


def _check_opening(opening: Any) -> None:
    """Check what branches begin with: see `OpenSection`."""
    _need(_has_str_keys(opening), "its opening", opening)
    for name, value in opening.items():
        is_valid = _OPENING.get(name)
        if is_valid is not None:
            _need(is_valid(value), f"the {name} of its opening", value)
    kinds = ("layer", "states", "item", "branches")
    kind = next((each for each in kinds if each in opening), None)
    required = {"layer": ("tasks",), "states": ("entry",), "item": ("entry", "each"), "branches": ()}
    for name in ("source", *(kinds if kind is None else required[kind])):
        if name not in opening:
            raise ValueError(f"the {name} of its opening is missing")
    if kind == "item" and "over" not in opening and "items" not in opening:
        raise ValueError("its opening has no items")
    # Its branches are written again by their kind, which these tell apart.
    if kind == "item":
        _need(
            _is_str(opening["each"]) and _is_str(opening["item"]),
            "what its opening is a map of",
            opening["each"],
        )
    elif kind == "branches":
        _need(opening.get("each") is None, "the each of its opening", opening.get("each"))


def _need(valid: bool, part: str, value: Any) -> None:
    if not valid:
        raise ValueError(f"{part} is {_shown(value)}")


def _need_length(record: list[Any], *lengths: int) -> None:
    if len(record) not in lengths:
        raise ValueError(f"it has {len(record)} parts")


def _shown(value: Any) -> str:
    """A value in an error. Text and containers may be confidential: only their types are shown."""
    if type(value) in (int, float, bool):
        return f"{value!r:.40}"
    return f"a {type(value).__name__} that doesn't fit"


# What a single value may be. `type(…) is` and not `isinstance`: a bool is no number here.


def _is_str(value: Any) -> bool:
    return type(value) is str


def _is_optional_str(value: Any) -> bool:
    return value is None or type(value) is str


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < COUNT_LIMIT


def _is_key(value: Any) -> bool:
    return type(value) is str or is_count(value)


def is_time(value: Any) -> bool:
    """Whether this is a time in seconds. Comparisons with NaN are false."""
    return type(value) in (int, float) and FIRST_TIME <= value <= LAST_TIME


def _is_timer(value: Any) -> bool:
    """Whether this is when a wait ends, which may be later than any date."""
    if type(value) is int:
        return FIRST_TIME <= value < COUNT_LIMIT  # a larger one may be no float
    return type(value) is float and value >= FIRST_TIME


def _is_list(value: Any) -> bool:
    return type(value) is list


def _is_dict(value: Any) -> bool:
    return type(value) is dict


def _has_str_keys(value: Any) -> bool:
    return type(value) is dict and set(map(type, value)) <= _STR


def _is_list_of(is_valid: Check, value: Any) -> bool:
    return type(value) is list and all(map(is_valid, value))


def _is_dict_of(is_valid: Check, value: Any) -> bool:
    return _has_str_keys(value) and all(map(is_valid, value.values()))


def _is_phase(value: Any) -> bool:
    return type(value) is str and value in (BEFORE, AFTER, FAILED_PHASE)


def _is_error(value: Any) -> bool:
    """Whether this is None, or texts by name as `writer.error_data` makes them."""
    return value is None or _is_dict_of(_is_str, value)


def _is_metadata(value: Any) -> bool:
    return (
        _has_str_keys(value)
        and _is_list_of_strs(value.get("secrets", []))
        and _is_list_of_strs(value.get("tags", []))
        and _has_str_keys(value.get("settings", {}))
        and ("trial" not in value or _is_trial(value["trial"]))
    )


def _is_trial(value: Any) -> bool:
    """Whether this is what `sessions/trials.py` notes of a trial."""
    return (
        _has_str_keys(value)
        and is_count(value.get("record"))
        and is_count(value.get("crashes"))
        and _is_bool(value.get("alone"))
    )


def _is_question(value: Any) -> bool:
    return (
        _has_str_keys(value)
        and {"id", "prompt", "node"} <= value.keys() <= set(Question._fields)
        and all(_QUESTION[name](each) for name, each in value.items())
    )


def _is_wait(value: Any) -> bool:
    return (
        _has_str_keys(value)
        and {"kind", "name", "key", "node"} <= value.keys() <= set(PostWait._fields)
        and all(_is_timer(each) if name == "deadline" else _is_str(each) for name, each in value.items())
    )


def _has_parts(*checks: Check | None) -> Check:
    """Whether a value is a list that has a part for each check, and passes it. None means any part."""

    def fits(value: Any) -> bool:
        return (
            type(value) is list
            and len(value) == len(checks)
            and all(not check or check(part) for check, part in zip(checks, value, strict=True))
        )

    return fits


_STR = frozenset({str})
_is_list_of_strs = partial(_is_list_of, _is_str)
_is_caught = _has_parts(_is_str, _is_str, _is_str, is_count, is_time)
_are_questions = partial(_is_list_of, _is_question)
_are_waits = partial(_is_list_of, _is_wait)
_is_letter = _has_parts(_is_str, is_count, None)
_is_numbered = _has_parts(is_count, None)
_replaces_items = partial(_is_dict_of, partial(_is_list_of, _is_numbered))
_is_path = partial(_is_list_of, _is_key)
_is_addressee = _has_parts(_is_path, _is_str)
_is_delivery = _has_parts(_is_str, is_count, None, lambda each: each is None or _is_addressee(each))
_is_receipt = _has_parts(_is_path, _is_str, _is_str, _is_bool)

_IN_BRANCHES = (STEP, MOVE, MEMO, OPEN)

_CHECKS: dict[int, Callable[[list[Any]], None]] = {
    STEP: _check_step,
    SNAPSHOT: _check_snapshot,
    MOVE: _check_move,
    MEMO: _check_memo,
    OPEN: _check_open,
    NESTED: _check_nested,
}

_QUESTION: dict[str, Check] = {
    "id": _is_str,
    "prompt": _is_str,
    "node": _is_str,
    "choices": lambda value: value is None or _is_list(value),
    "schema": lambda value: value is None or _has_str_keys(value),
    "deadline": lambda value: value is None or _is_timer(value),
    "secret": _is_bool,
}


_FIELDS: dict[str, Check] = {
    **dict.fromkeys(("made_by", "reason", "parent", "child_of"), _is_optional_str),
    "run_id": _is_str,
    "graph": _is_str,
    "fingerprint": _is_str,
    "node": _is_str,
    "phase": _is_phase,
    "cleared": _is_bool,
    "step": is_count,
    "at": is_time,
    "status": lambda value: type(value) is str and value in STATUSES,
    "iterations": is_count,
    "visits": lambda value: _is_dict_of(is_count, value),
    "path": _is_list_of_strs,
    "attempts": is_count,
    "questions": _are_questions,
    "answers": _has_str_keys,
    "asked": lambda value: _is_dict_of(_is_str, value),
    "hidden": _is_list_of_strs,
    "memos": _has_str_keys,
    "timers": lambda value: _is_dict_of(_is_timer, value),
    "waits": _are_waits,
    "received": lambda value: _is_dict_of(lambda kept: kept is None or _is_letter(kept), value),
    "mailbox": lambda value: _is_dict_of(lambda box: bool(box) and _is_list_of(_is_numbered, box), value),
    "letters": is_count,
    "error": _is_error,
    "goto": _is_optional_str,
    "caught": _is_caught,
    "config": _is_dict,
    "meta": _is_metadata,
    "deadline": lambda value: value is None or _is_timer(value),
    "began": is_time,
}
"""The fields of a `Progress` that records have, and what each may be."""

_MOVES: dict[str, Check] = {
    **{name: _FIELDS[name] for name in _FIELDS if name not in ("run_id", "step", "path")},
    waits.RESUME: _has_str_keys,
    waits.ANSWER: _has_str_keys,
    waits.ANSWERED_BY: partial(_is_dict_of, _is_str),
    waits.EXPIRE: _is_list_of_strs,
    waits.RETRY_BRANCHES: _is_bool,
    waits.DELIVER: partial(_is_list_of, _is_delivery),
    waits.RECEIVE: _is_receipt,
    waits.EXPIRE_WAITS: _is_timer,
    waits.END_JOINS: _is_list_of_strs,
    waits.CALL_AGAIN: _is_list_of_strs,
    waits.ASK_AGAIN: partial(_is_list_of, _has_parts(_is_str, _is_str)),
    waits.ADVANCE: sections.is_change,
}

_OPENING: dict[str, Check] = {
    "source": _is_str,
    "step": is_count,
    "branches": _is_list_of_strs,
    "each": _is_optional_str,
    "entry": _is_optional_str,
    "item": _is_optional_str,
    "over": _is_optional_str,
    "items": _is_list,
    "states": partial(_is_list_of, _has_parts(_is_key, _has_str_keys)),
    "inside": _is_bool,
    "kept": _is_list_of_strs,
    "layer": is_count,
    "tasks": _is_list_of_strs,
    "folded": _is_bool,
    "later": partial(_is_list_of, sections.is_addition),
    "flow": sections.is_flow,
}

_SUMMARY: dict[str, Check] = {
    "prunable": _is_bool,
    "begun": _is_bool,
    "sequence": is_count,
    "step": is_count,
    "node": _is_str,
    "phase": _is_phase,
    "reason": _is_optional_str,
    "error": _is_error,
    "questions": _are_questions,
    "waits": _are_waits,
    "mailbox": lambda value: _is_dict_of(is_count, value),
    "deadline": _is_timer,
    "child_of": _is_str,
}
