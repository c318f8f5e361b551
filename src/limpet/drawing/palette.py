"""The colours of pictures, for light and for dark pages. Text has a contrast of 4.5 at least to what it is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

ICONS: Final[Mapping[str, str]] = {
    "done": "M-3.4 0.2L-1 2.6L3.6 -2.4",
    "running": "M-2 -3.4L3.4 0L-2 3.4Z",
    "next": "M-2.6 -3L0.6 0L-2.6 3M0.6 -3L3.6 0L0.6 3",
    "paused": "M-1.8 -3.2L-1.8 3.2M1.8 -3.2L1.8 3.2",
    "failed": "M-2.8 -2.8L2.8 2.8M2.8 -2.8L-2.8 2.8",
    "skipped": "M-3.4 0L3.4 0",
}
"""A small sign for each kind of mark, around the middle of a circle of 15: colour alone isn't for everybody."""


class Colours(NamedTuple):
    """One kind of mark: what is filled, drawn around it and written in it, and the badge."""

    fill: str
    edge: str
    text: str
    badge: str


LIGHT: Final[Mapping[str, Colours]] = {
    "done": Colours("#e9f7ef", "#2f9e60", "#17633a", "#2b8a57"),
    "running": Colours("#e5f0ff", "#2f74d8", "#174ea0", "#2f6fd0"),
    "next": Colours("#eef4ff", "#7aa2dc", "#2a5796", "#527fbd"),
    "paused": Colours("#fff4d6", "#c98a05", "#7a4f00", "#a86f00"),
    "failed": Colours("#fdeaea", "#d23b3b", "#a01f1f", "#c93434"),
    "skipped": Colours("#f3f4f6", "#a5abb6", "#59606c", "#6f7784"),
    "idle": Colours("#fbfbfc", "#cdd2da", "#646c79", "#8b93a0"),
}
DARK: Final[Mapping[str, Colours]] = {
    "done": Colours("#12301f", "#3fae72", "#8fe0b3", "#2b8a57"),
    "running": Colours("#10294d", "#5b9bf5", "#a9ccff", "#2f6fd0"),
    "next": Colours("#17263d", "#5679ab", "#a9c4ea", "#4a74ae"),
    "paused": Colours("#3a2a05", "#d9a02b", "#ffd98a", "#a86f00"),
    "failed": Colours("#3d1618", "#e46a6a", "#ffb3b3", "#c93434"),
    "skipped": Colours("#23272e", "#5b6370", "#a4abb6", "#6f7784"),
    "idle": Colours("#1a1e25", "#3d4450", "#969eab", "#5b6370"),
}


def _marks(colours: Mapping[str, Colours]) -> str:
    rules = []
    for kind, each in colours.items():
        rules += [
            f".hf-{kind}>.hf-box{{fill:{each.fill};stroke:{each.edge}}}",
            f".hf-{kind}>.hf-group,.hf-{kind}>.hf-bar{{stroke:{each.edge}}}",
            f".hf-{kind}>.hf-name,.hf-{kind}>.hf-said{{fill:{each.text}}}",
            f".hf-{kind}>g>.hf-badge{{fill:{each.badge}}}",
            f".hf-{kind}>.hf-dot{{fill:{each.edge}}}.hf-{kind}>.hf-ring{{stroke:{each.edge}}}",
        ]
    return "".join(rules)


def _page(
    page: str, edge: str, ink: str, soft: str, line: str, taken: str, box: str, rim: str, group: str
) -> str:
    return (
        f".hf-page{{fill:{page};stroke:{edge}}}"
        f".hf-title,.hf-name{{fill:{ink}}}.hf-run,.hf-note,.hf-label{{fill:{soft}}}"
        f".hf-line{{stroke:{line}}}.hf-arrow{{fill:{line}}}"
        f".hf-line.hf-taken{{stroke:{taken}}}.hf-arrow.hf-taken{{fill:{taken}}}"
        f".hf-box{{fill:{box};stroke:{rim}}}.hf-group{{fill:{group};stroke:{rim}}}"
        f".hf-dot{{fill:{ink}}}.hf-ring{{stroke:{ink}}}.hf-bar{{stroke:{rim}}}"
        f".hf-tag{{fill:{page};stroke:{edge}}}"
    )


STYLE: Final = (
    ".hf text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".hf-title{font-size:14px;font-weight:600}.hf-run{font-weight:400}"
    ".hf-name{font-size:14px;font-weight:500;text-anchor:middle}"
    ".hf-note,.hf-said,.hf-label,.hf-wrong{font-size:11.5px}"
    ".hf-note,.hf-said,.hf-label{text-anchor:middle}.hf text.hf-left{text-anchor:start}"
    ".hf-line,.hf-ring,.hf-bar,.hf-sign{fill:none}.hf-line{stroke-width:1.4}.hf-line.hf-taken{stroke-width:1.8}"
    ".hf-parallel{stroke-width:2.2}.hf-optional{stroke-dasharray:5 4}"
    ".hf-box,.hf-group{stroke-width:1.4}.hf-ring{stroke-width:1.6}.hf-bar{stroke-width:4;stroke-linecap:round}"
    ".hf-dashed{stroke-dasharray:5 4}.hf-behind{opacity:.75}"
    ".hf-sign{stroke:#fff;stroke-width:1.7;stroke-linecap:round;stroke-linejoin:round}"
    + _page("#ffffff", "#e4e7ec", "#1d2430", "#566070", "#8a94a3", "#4d6a8f", "#f4f7fb", "#8fa3bf", "#fafbfd")
    + ".hf-missing{stroke:#d23b3b}.hf-wrong{fill:#a01f1f}"
    + _marks(LIGHT)
    + "@media (prefers-color-scheme:dark){"
    + _page("#14171c", "#2b313a", "#e8ebf0", "#a3adbb", "#6f7a8a", "#8fb0d8", "#202731", "#5d6f88", "#191e25")
    + ".hf-missing{stroke:#e46a6a}.hf-wrong{fill:#ffb3b3}"
    + _marks(DARK)
    + "}"
)
