"""A graph as a Mermaid `flowchart`, for pages that draw it themselves, with a subgraph for each graph inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from limpet.drawing.outline import Line, Outline, Shape
from limpet.drawing.palette import LIGHT_MARKS
from limpet.drawing.run_marks import RunMarks
from limpet.drawing.text_width import single_line

_BRACKETS: Final[Mapping[str, tuple[str, str]]] = {
    "start": ("((", "))"),
    "end": ("(((", ")))"),
    "node": ("(", ")"),
    "fan_in": ("(", ")"),
    "map": ("[[", "]]"),
    "task": ("[", "]"),
    "missing": ("[", "]"),
}
_ARROWS: Final[Mapping[str, str]] = {"optional": "-.->", "parallel": "==>", "goto": "-.->", "error": "--x"}
_SAFE_CHARACTERS: Final = frozenset(" _-.,:/+=*!?'()[]")


def mermaid(outline: Outline, run_marks: RunMarks | None = None) -> str:
    """The picture as the text of a Mermaid flowchart. Characters that Mermaid may interpret become entities."""
    names: dict[str, str] = {}
    lines = [f"flowchart {_direction(outline)}"]
    lines += [f"    %% {_comment(each)}" for each in outline.mistakes]
    lines += _body(outline, run_marks, names, "    ")
    lines += _classes(run_marks, names)
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text as it can stand between quotes, whatever it contains."""
    return "".join(_escaped_character(each) for each in single_line(text)) or "#160;"


def _direction(outline: Outline) -> str:
    if outline.flow:
        return "LR"
    return "TB"


def _body(outline: Outline, run_marks: RunMarks | None, names: dict[str, str], indent: str) -> Iterator[str]:
    for shape in outline.shapes:
        names[shape.id] = f"n{len(names)}"
        yield from _shape(shape, run_marks, names, indent)
    for line in outline.lines:
        yield indent + _line(line, names)


def _shape(shape: Shape, run_marks: RunMarks | None, names: dict[str, str], indent: str) -> Iterator[str]:
    name = names[shape.id]
    text = _shape_text(shape, run_marks)
    if shape.inside is None:
        left, right = _BRACKETS[shape.kind]
        yield f'{indent}{name}{left}"{text}"{right}'
        return
    yield f'{indent}subgraph {name} ["{text}"]'
    yield f"{indent}    direction {_direction(shape.inside)}"
    yield from _body(shape.inside, run_marks, names, f"{indent}    ")
    yield f"{indent}end"


def _shape_text(shape: Shape, run_marks: RunMarks | None) -> str:
    parts = [shape.label, shape.note]
    if run_marks is not None and shape.kind not in ("start", "end"):
        mark = run_marks.mark(shape.id)
        if mark.kind != "idle":
            parts.append(mark.words)
    return "<br/>".join(escaped(each) for each in parts if each)


def _line(line: Line, names: Mapping[str, str]) -> str:
    arrow = _ARROWS.get(line.kind, "-->")
    label = ""
    if line.label:
        label = f'|"{escaped(line.label)}"|'
    return f"{names[line.source]} {arrow}{label} {names[line.target]}"


def _classes(run_marks: RunMarks | None, names: Mapping[str, str]) -> Iterator[str]:
    """The colours of marks: a class for each kind that occurs, and the shapes in it."""
    if run_marks is None:
        return
    for kind, colours in LIGHT_MARKS.items():
        members = [name for shape_id, name in names.items() if run_marks.mark(shape_id).kind == kind]
        if members:
            yield f"    classDef {kind} fill:{colours.fill},stroke:{colours.outline},color:{colours.text}"
            yield f"    class {','.join(members)} {kind}"


def _escaped_character(character: str) -> str:
    if character.isalnum() or character in _SAFE_CHARACTERS:
        return character
    return f"#{ord(character)};"


def _comment(text: str) -> str:
    return single_line(text).replace("{", "(").replace("}", ")").replace("%%", "%")
