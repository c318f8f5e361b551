"""A graph as Mermaid's text, for pages that draw it themselves: `flowchart` with a subgraph for each graph inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from limpet.drawing.outline import Line, Outline, Shape
from limpet.drawing.palette import LIGHT
from limpet.drawing.run_marks import RunMarks
from limpet.drawing.text_width import single_line

_SHAPES: Final[Mapping[str, tuple[str, str]]] = {
    "start": ("((", "))"), "end": ("(((", ")))"), "node": ("(", ")"), "fan_in": ("(", ")"), "map": ("[[", "]]"),
    "task": ("[", "]"), "missing": ("[", "]"),
}  # fmt: skip
_SAFE: Final = frozenset(" _-.,:/+=*!?'()[]")


def mermaid(outline: Outline, run_marks: RunMarks | None = None) -> str:
    """The picture as the text of a Mermaid flowchart. What isn't a letter or harmless is written as an entity."""
    numbers: dict[str, str] = {}
    lines = [f"flowchart {_direction(outline)}"]
    lines += [f"    %% {_comment(each)}" for each in outline.mistakes]
    lines += _body(outline, run_marks, numbers, "    ")
    return "\n".join([*lines, *_classes(outline, run_marks, numbers)]) + "\n"


def _direction(outline: Outline) -> str:
    return "LR" if outline.flow else "TB"


def _body(
    outline: Outline, run_marks: RunMarks | None, numbers: dict[str, str], indent: str
) -> Iterator[str]:
    for shape in outline.shapes:
        numbers[shape.id] = f"n{len(numbers)}"
        yield from _shape(shape, run_marks, numbers, indent)
    for line in outline.lines:
        yield indent + _line(line, numbers)


def _shape(shape: Shape, run_marks: RunMarks | None, numbers: dict[str, str], indent: str) -> Iterator[str]:
    name, said = numbers[shape.id], _said(shape, run_marks)
    if shape.inside is None:
        left, right = _SHAPES[shape.kind]
        yield f'{indent}{name}{left}"{said}"{right}'
        return
    yield f'{indent}subgraph {name} ["{said}"]'
    yield f"{indent}    direction {_direction(shape.inside)}"
    yield from _body(shape.inside, run_marks, numbers, f"{indent}    ")
    yield f"{indent}end"


def _said(shape: Shape, run_marks: RunMarks | None) -> str:
    mark = run_marks.mark(shape.id) if run_marks is not None else None
    parts = [shape.label, shape.note]
    if mark is not None and mark.kind != "idle" and shape.kind not in ("start", "end"):
        parts.append(mark.words)
    return "<br/>".join(escaped(each) for each in parts if each)


def _line(line: Line, numbers: Mapping[str, str]) -> str:
    arrow = {"optional": "-.->", "parallel": "==>"}.get(line.kind, "-->")
    label = f'|"{escaped(line.label)}"|' if line.label else ""
    return f"{numbers[line.source]} {arrow}{label} {numbers[line.target]}"


def _classes(outline: Outline, run_marks: RunMarks | None, numbers: Mapping[str, str]) -> Iterator[str]:
    """The colours of marks: of each kind that there is, a class and those that belong to it."""
    if run_marks is None:
        return
    for kind, colours in LIGHT.items():
        members = [name for place, name in numbers.items() if run_marks.mark(place).kind == kind]
        if members:
            yield f"    classDef {kind} fill:{colours.fill},stroke:{colours.edge},color:{colours.text}"
            yield f"    class {','.join(members)} {kind}"


def escaped(text: str) -> str:
    """Text as it can stand between quotes, whatever is in it."""
    return (
        "".join(each if each.isalnum() or each in _SAFE else f"#{ord(each)};" for each in single_line(text))
        or "#160;"
    )


def _comment(text: str) -> str:
    return single_line(text).replace("{", "(").replace("}", ")").replace("%%", "%")
