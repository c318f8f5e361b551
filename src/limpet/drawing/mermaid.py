"""A graph as Mermaid's text, for pages that draw it themselves: `flowchart` with a subgraph for each graph inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from limpet.drawing.outline import Line, Outline, Shape
from limpet.drawing.palette import LIGHT
from limpet.drawing.run_marks import RunMarks
from limpet.drawing.text_width import clean

_SHAPES: Final[Mapping[str, tuple[str, str]]] = {
    "start": ("((", "))"), "end": ("(((", ")))"), "node": ("(", ")"), "fan_in": ("(", ")"), "map": ("[[", "]]"),
    "task": ("[", "]"), "missing": ("[", "]"),
}  # fmt: skip
_SAFE: Final = frozenset(" _-.,:/+=*!?'()[]")


def mermaid(outline: Outline, standing: RunMarks | None = None) -> str:
    """The picture as the text of a Mermaid flowchart. What isn't a letter or harmless is written as an entity."""
    numbers: dict[str, str] = {}
    lines = [f"flowchart {_direction(outline)}"]
    lines += [f"    %% {_comment(each)}" for each in outline.mistakes]
    lines += _body(outline, standing, numbers, "    ")
    return "\n".join([*lines, *_classes(outline, standing, numbers)]) + "\n"


def _direction(outline: Outline) -> str:
    return "LR" if outline.flow else "TB"


def _body(outline: Outline, standing: RunMarks | None, numbers: dict[str, str], indent: str) -> Iterator[str]:
    for shape in outline.shapes:
        numbers[shape.id] = f"n{len(numbers)}"
        yield from _shape(shape, standing, numbers, indent)
    for line in outline.lines:
        yield indent + _line(line, numbers)


def _shape(shape: Shape, standing: RunMarks | None, numbers: dict[str, str], indent: str) -> Iterator[str]:
    name, said = numbers[shape.id], _said(shape, standing)
    if shape.inside is None:
        left, right = _SHAPES[shape.kind]
        yield f'{indent}{name}{left}"{said}"{right}'
        return
    yield f'{indent}subgraph {name} ["{said}"]'
    yield f"{indent}    direction {_direction(shape.inside)}"
    yield from _body(shape.inside, standing, numbers, f"{indent}    ")
    yield f"{indent}end"


def _said(shape: Shape, standing: RunMarks | None) -> str:
    mark = standing.mark(shape.id) if standing is not None else None
    parts = [shape.label, shape.note]
    if mark is not None and mark.kind != "idle" and shape.kind not in ("start", "end"):
        parts.append(mark.words)
    return "<br/>".join(escaped(each) for each in parts if each)


def _line(line: Line, numbers: Mapping[str, str]) -> str:
    arrow = {"optional": "-.->", "parallel": "==>"}.get(line.kind, "-->")
    label = f'|"{escaped(line.label)}"|' if line.label else ""
    return f"{numbers[line.source]} {arrow}{label} {numbers[line.target]}"


def _classes(outline: Outline, standing: RunMarks | None, numbers: Mapping[str, str]) -> Iterator[str]:
    """The colours of marks: of each kind that there is, a class and those that belong to it."""
    if standing is None:
        return
    for kind, colours in LIGHT.items():
        members = [name for place, name in numbers.items() if standing.mark(place).kind == kind]
        if members:
            yield f"    classDef {kind} fill:{colours.fill},stroke:{colours.edge},color:{colours.text}"
            yield f"    class {','.join(members)} {kind}"


def escaped(text: str) -> str:
    """Text as it can stand between quotes, whatever is in it."""
    return (
        "".join(each if each.isalnum() or each in _SAFE else f"#{ord(each)};" for each in clean(text))
        or "#160;"
    )


def _comment(text: str) -> str:
    return clean(text).replace("{", "(").replace("}", ")").replace("%%", "%")
