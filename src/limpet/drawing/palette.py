"""The colours and the style sheet of SVG pictures, for light and for dark pages.

To change a colour, edit `LIGHT_PAGE`, `DARK_PAGE`, `LIGHT_MARKS` or `DARK_MARKS`. A test holds every text to a
contrast of at least 4.5 with its background. The colours of terminals are in `terminal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

ICONS: Final[Mapping[str, str]] = {
    "done": "M-3.4 0.2L-1 2.6L3.6 -2.4",
    "running": "M-2 -3.4L3.4 0L-2 3.4Z",
    "next": "M-2.6 -3L0.6 0L-2.6 3M0.6 -3L3.6 0L0.6 3",
    "paused": "M-1.8 -3.2L-1.8 3.2M1.8 -3.2L1.8 3.2",
    "failed": "M-2.8 -2.8L2.8 2.8M2.8 -2.8L-2.8 2.8",
    "skipped": "M-3.4 0L3.4 0",
}
"""A small sign for each kind of mark, centered in a circle of diameter 15: not all readers can tell colours apart."""


class MarkColours(NamedTuple):
    """The colours of one kind of mark: the fill of a box, its outline, its text, and the badge with the icon."""

    fill: str
    outline: str
    text: str
    badge: str


class PageColours(NamedTuple):
    """The colours of a page, and of shapes and lines that no run has marked."""

    background: str
    border: str
    text: str
    small_text: str
    line: str
    taken_line: str
    box: str
    box_outline: str
    group: str
    missing_outline: str
    mistake_text: str


LIGHT_PAGE: Final = PageColours(
    background="#ffffff",
    border="#e4e7ec",
    text="#1d2430",
    small_text="#566070",
    line="#8a94a3",
    taken_line="#4d6a8f",
    box="#f4f7fb",
    box_outline="#8fa3bf",
    group="#fafbfd",
    missing_outline="#d23b3b",
    mistake_text="#a01f1f",
)
DARK_PAGE: Final = PageColours(
    background="#14171c",
    border="#2b313a",
    text="#e8ebf0",
    small_text="#a3adbb",
    line="#6f7a8a",
    taken_line="#8fb0d8",
    box="#202731",
    box_outline="#5d6f88",
    group="#191e25",
    missing_outline="#e46a6a",
    mistake_text="#ffb3b3",
)
LIGHT_MARKS: Final[Mapping[str, MarkColours]] = {
    "done": MarkColours("#e9f7ef", "#2f9e60", "#17633a", "#2b8a57"),
    "running": MarkColours("#e5f0ff", "#2f74d8", "#174ea0", "#2f6fd0"),
    "next": MarkColours("#eef4ff", "#7aa2dc", "#2a5796", "#527fbd"),
    "paused": MarkColours("#fff4d6", "#c98a05", "#7a4f00", "#a86f00"),
    "failed": MarkColours("#fdeaea", "#d23b3b", "#a01f1f", "#c93434"),
    "skipped": MarkColours("#f3f4f6", "#a5abb6", "#59606c", "#6f7784"),
    "idle": MarkColours("#fbfbfc", "#cdd2da", "#646c79", "#8b93a0"),
}
DARK_MARKS: Final[Mapping[str, MarkColours]] = {
    "done": MarkColours("#12301f", "#3fae72", "#8fe0b3", "#2b8a57"),
    "running": MarkColours("#10294d", "#5b9bf5", "#a9ccff", "#2f6fd0"),
    "next": MarkColours("#17263d", "#5679ab", "#a9c4ea", "#4a74ae"),
    "paused": MarkColours("#3a2a05", "#d9a02b", "#ffd98a", "#a86f00"),
    "failed": MarkColours("#3d1618", "#e46a6a", "#ffb3b3", "#c93434"),
    "skipped": MarkColours("#23272e", "#5b6370", "#a4abb6", "#6f7784"),
    "idle": MarkColours("#1a1e25", "#3d4450", "#969eab", "#5b6370"),
}


def page_rules(page: PageColours) -> str:
    """The rules for a page, and for what no run has marked."""
    return (
        f".lp-page{{fill:{page.background};stroke:{page.border}}}"
        f".lp-title,.lp-name{{fill:{page.text}}}.lp-run,.lp-note,.lp-label{{fill:{page.small_text}}}"
        f".lp-line{{stroke:{page.line}}}.lp-arrow{{fill:{page.line}}}"
        f".lp-line.lp-taken{{stroke:{page.taken_line}}}.lp-arrow.lp-taken{{fill:{page.taken_line}}}"
        f".lp-box{{fill:{page.box};stroke:{page.box_outline}}}"
        f".lp-group{{fill:{page.group};stroke:{page.box_outline}}}"
        f".lp-dot{{fill:{page.text}}}.lp-ring{{stroke:{page.text}}}.lp-bar{{stroke:{page.box_outline}}}"
        f".lp-tag{{fill:{page.background};stroke:{page.border}}}"
        f".lp-missing,.lp-line.lp-error{{stroke:{page.missing_outline}}}.lp-mistake{{fill:{page.mistake_text}}}"
    )


def mark_rules(marks: Mapping[str, MarkColours]) -> str:
    """The rules for each kind of mark."""
    rules = []
    for kind, colours in marks.items():
        rules += [
            f".lp-{kind}>.lp-box{{fill:{colours.fill};stroke:{colours.outline}}}",
            f".lp-{kind}>.lp-group,.lp-{kind}>.lp-bar{{stroke:{colours.outline}}}",
            f".lp-{kind}>.lp-name,.lp-{kind}>.lp-mark{{fill:{colours.text}}}",
            f".lp-{kind}>g>.lp-badge{{fill:{colours.badge}}}",
            f".lp-{kind}>.lp-dot{{fill:{colours.outline}}}.lp-{kind}>.lp-ring{{stroke:{colours.outline}}}",
        ]
    return "".join(rules)


SHAPE_RULES: Final = (
    ".lp text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".lp-title{font-size:14px;font-weight:600}.lp-run{font-weight:400}"
    ".lp-name{font-size:14px;font-weight:500;text-anchor:middle}"
    ".lp-note,.lp-mark,.lp-label,.lp-mistake{font-size:11.5px}"
    ".lp-note,.lp-mark,.lp-label{text-anchor:middle}.lp text.lp-left{text-anchor:start}"
    ".lp-line,.lp-ring,.lp-bar,.lp-sign{fill:none}.lp-line{stroke-width:1.4}.lp-line.lp-taken{stroke-width:1.8}"
    ".lp-parallel{stroke-width:2.2}.lp-optional{stroke-dasharray:5 4}"
    ".lp-goto{stroke-dasharray:1.5 3}.lp-error{stroke-dasharray:7 3 1.5 3}"
    ".lp-box,.lp-group{stroke-width:1.4}.lp-ring{stroke-width:1.6}.lp-bar{stroke-width:4;stroke-linecap:round}"
    ".lp-dashed{stroke-dasharray:5 4}.lp-behind{opacity:.75}"
    ".lp-sign{stroke:#fff;stroke-width:1.7;stroke-linecap:round;stroke-linejoin:round}"
)

STYLE: Final = (
    SHAPE_RULES
    + page_rules(LIGHT_PAGE)
    + mark_rules(LIGHT_MARKS)
    + "@media (prefers-color-scheme:dark){"
    + page_rules(DARK_PAGE)
    + mark_rules(DARK_MARKS)
    + "}"
)
"""The style sheet of an SVG picture."""

ACCENTS: Final[Mapping[str, tuple[str, str]]] = {
    "accent": ("#176f70", "#63c7bf"),
    "on-accent": ("#ffffff", "#0c2021"),
    "accent-fill": ("#e6f3f2", "#15302f"),
    "shade": ("#f5f7fa", "#1b2027"),
    "shade-strong": ("#e9edf2", "#262d36"),
}
"""More colours of the web page, for light and for dark: links and buttons, and what is selected or pointed at."""


def page_style() -> str:
    """The colours as variables of a style sheet, and the rules of pictures by them: for the web page.

    The attribute `data-theme` of its root is `light` or `dark`, or isn't there, so that the reader's system decides.
    """
    return (
        f":root{{color-scheme:light dark;{_variables()}}}"
        ":root[data-theme=light]{color-scheme:light}:root[data-theme=dark]{color-scheme:dark}"
        f"{_rules_by_variables()}"
    )


def notebook_style() -> str:
    """The same for what a notebook shows, inside of an element of the class `limpet`.

    It follows the theme of the notebook: of JupyterLab, VS Code and Colab. Elsewhere the reader's system decides.
    """
    return (
        f".limpet{{color-scheme:light dark;{_variables()}}}"
        "[data-jp-theme-light=true] .limpet,.vscode-light .limpet,[theme=light] .limpet{color-scheme:light}"
        "[data-jp-theme-light=false] .limpet,.vscode-dark .limpet,[theme=dark] .limpet{color-scheme:dark}"
        f"{_rules_by_variables()}"
    )


def _rules_by_variables() -> str:
    page = PageColours(*(f"var(--{_css_name(name)})" for name in PageColours._fields))
    kinds = {kind: _mark_variables(f"{kind}-{{}}".format) for kind in LIGHT_MARKS}
    unmarked = {"fill": "box", "outline": "box-outline", "text": "text", "badge": "box-outline"}
    kinds["unmarked"] = _mark_variables(unmarked.__getitem__)
    return f"{SHAPE_RULES}{page_rules(page)}{MARKED_RULES}" + "".join(
        f".lp-{kind}{{{variables}}}" for kind, variables in kinds.items()
    )


MARKED_RULES: Final = (
    "[data-node]>.lp-box{fill:var(--m-fill);stroke:var(--m-outline)}"
    "[data-node]>:is(.lp-group,.lp-bar,.lp-ring){stroke:var(--m-outline)}"
    "[data-node]>:is(.lp-name,.lp-mark){fill:var(--m-text)}"
    "[data-node]>g>.lp-badge{fill:var(--m-badge)}[data-node]>.lp-dot{fill:var(--m-outline)}"
)
"""The rules for marked shapes by the variables that their marks set: what `mark_rules` says for each mark."""


def _mark_variables(colour_of: Callable[[str], str]) -> str:
    """The variables that a mark sets for its shape."""
    return "".join(f"--m-{name}:var(--{colour_of(name)});" for name in MarkColours._fields)


def _variables() -> str:
    """The colours, each with its name, for light and for dark."""
    pairs = {
        _css_name(name): (getattr(LIGHT_PAGE, name), getattr(DARK_PAGE, name)) for name in PageColours._fields
    }
    for kind, colours in LIGHT_MARKS.items():
        for name in MarkColours._fields:
            pairs[f"{kind}-{name}"] = (getattr(colours, name), getattr(DARK_MARKS[kind], name))
    pairs |= ACCENTS
    return "".join(f"--{name}:light-dark({light},{dark});" for name, (light, dark) in pairs.items())


def _css_name(name: str) -> str:
    return name.replace("_", "-")
