# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A picture as SVG: shapes and text on a card that is readable on a light and on a dark page.

Colours follow the reader's scheme (``prefers-color-scheme``), the card's background included, so a picture is right
even where a page has another scheme than the system. Equal calls give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 720
MARGIN: Final = 24
# Sizes of text in units of the picture, which a page shows at 700 to 720 pixels.
TITLE, NORMAL, SMALL = 17, 14, 12.5
# The average width of a character over the size of its text; wide enough for the fonts below.
_CHARACTER: Final = {"": 0.55, "b": 0.59, "m": 0.62}
_FONTS: Final = 'system-ui,-apple-system,"Segoe UI","Noto Sans",Helvetica,Arial,sans-serif'
_CODE_FONTS: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
# Fill by class, in light and in dark. The hues of Okabe and Ito, which colour-blind readers tell apart.
_FILLS: Final = {
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#57606a", "#a3adb8"),
    "on": ("#ffffff", "#0d1117"),  # text on one of the hues
    "box": ("#f1f4f7", "#232a33"),
    "soft": ("#dcebf6", "#14344b"),  # a box in the hue of "blue"
    "warm": ("#fbe5d6", "#4a2a14"),  # a box in the hue of "red"
    "fresh": ("#d9f0e8", "#123b30"),  # a box in the hue of "green"
    "blue": ("#0072b2", "#56b4e9"),
    "red": ("#c75300", "#ff8a3d"),
    "green": ("#009e73", "#2cc79b"),
    "amber": ("#e69f00", "#f0b429"),
    "pink": ("#b3588a", "#dd8fbb"),
    "grey": ("#6a737d", "#9aa5b1"),
}
_STROKES: Final = {
    "line": ("#57606a", "#a3adb8"),
    "grid": ("#d8dee4", "#353c45"),
    "edge": ("#b5bec8", "#4a535e"),
    "s-blue": ("#0072b2", "#56b4e9"),
    "s-red": ("#c75300", "#ff8a3d"),
    "s-green": ("#009e73", "#2cc79b"),
}
_CARD: Final = (("#ffffff", "#14181d"), ("#d0d7de", "#3d444d"))  # fill and stroke
_HEAD: Final = 7.0  # length of the head of an arrow


def number(value: float) -> str:
    """Return a coordinate with at most one digit after the point."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def width_of(text: str, size: float = NORMAL, style: str = "") -> float:
    """Return about the width of a text in ``style``: ``"b"`` bold, ``"m"`` code, or neither."""
    return len(text) * size * _CHARACTER[style]


def _rules(scheme: int) -> str:
    fill, stroke = (colours[scheme] for colours in _CARD)
    fills = "".join(f".{name}{{fill:{colours[scheme]}}}" for name, colours in _FILLS.items())
    strokes = "".join(f".{name}{{stroke:{colours[scheme]}}}" for name, colours in _STROKES.items())
    return f".card{{fill:{fill};stroke:{stroke}}}{fills}{strokes}"


class Picture:
    """A card with a title, to which shapes and text are added; the origin is its upper left corner.

    Args:
        height: the height in units, of which the width has :data:`WIDTH`.
        title: the title, shown at the top.
        subtitle: a remark, one line below the title.
        description: the content in words, for readers who do not see the picture.
    """

    def __init__(self, height: float, title: str, subtitle: str, description: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {number(height)}" width="{WIDTH}" '
            f'height="{number(height)}" role="img" aria-labelledby="title desc">\n'
            f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>\n'
            f"<style>text{{font-family:{_FONTS}}}.m{{font-family:{_CODE_FONTS}}}.b{{font-weight:600}}"
            f"path.none{{fill:none}}{_rules(0)}@media (prefers-color-scheme:dark){{{_rules(1)}}}</style>\n"
        )
        self._shapes: list[str] = []
        self.rect(0.5, 0.5, WIDTH - 1, height - 1, "card", radius=10)
        self.text(MARGIN, 34, title, style="b", size=TITLE)
        self.text(MARGIN, 55, subtitle, "muted", size=SMALL)

    def rect(self, x: float, y: float, width: float, height: float, kind: str, radius: float = 0) -> None:
        """Add a rectangle; ``kind`` is a fill, or a fill and a stroke, such as ``"box edge"``."""
        rounded = f' rx="{number(radius)}"' if radius else ""
        self._shapes.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"{rounded} '
            f'class="{kind}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "ink",
        style: str = "",
        size: float = NORMAL,
        anchor: str = "start",
    ) -> None:
        """Add a line of text whose baseline is at ``y``: ``anchor`` is start, middle or end."""
        classes = f"{kind} {style}".strip()
        placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
        attributes = f'x="{number(x)}" y="{number(y)}" font-size="{size:g}" class="{classes}"{placed}'
        self._shapes.append(f"<text {attributes}>{escape(text)}</text>")

    def lines(
        self,
        x: float,
        y: float,
        texts: Sequence[str],
        kind: str = "ink",
        style: str = "",
        size: float = SMALL,
        anchor: str = "start",
    ) -> None:
        """Add lines of text below each other, each as :meth:`text` does."""
        for index, text in enumerate(texts):
            self.text(x, y + index * (size + 4.5), text, kind, style, size, anchor)

    def path(self, commands: str, kind: str, width: float = 0) -> None:
        """Add a path of SVG commands: a filled one, or with a ``width`` a line."""
        drawn = f'none {kind}" stroke-width="{width:g}' if width else kind
        self._shapes.append(f'<path d="{commands}" class="{drawn}"/>')

    def line(self, *points: tuple[float, float], kind: str = "line", width: float = 1.5) -> None:
        """Add a line through ``points``."""
        self.path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), kind, width)

    def arrow(self, *points: tuple[float, float], both: bool = False, width: float = 1.5) -> None:
        """Add a line through ``points`` with a head at its end, or at both ends."""
        self.line(*points, width=width)
        for (from_x, from_y), (x, y) in ((points[-2], points[-1]), *([(points[1], points[0])] if both else [])):
            turn = math.atan2(y - from_y, x - from_x)
            corners = [(x, y)]
            for side in (-0.42, 0.42):
                corners.append((x - _HEAD * math.cos(turn + side), y - _HEAD * math.sin(turn + side)))
            self.path("M" + "L".join(f"{number(a)} {number(b)}" for a, b in corners) + "z", "muted")

    def mark(self, x: float, y: float, shape: str, kind: str, radius: float = 5) -> None:
        """Add a mark at a point: ``shape`` is circle, square or diamond; a stroke as ``kind`` draws its outline."""
        if shape == "circle":
            outline = 'fill-opacity="0" stroke-width="2" ' if kind.startswith("s-") else ""
            self._shapes.append(
                f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" {outline}class="{kind}"/>'
            )
            return
        reach = radius * (0.9 if shape == "square" else 1.25)
        corners = [(-1, -1), (1, -1), (1, 1), (-1, 1)] if shape == "square" else [(0, -1), (1, 0), (0, 1), (-1, 0)]
        points = [f"{number(x + reach * a)} {number(y + reach * b)}" for a, b in corners]
        self.path("M" + "L".join(points) + "z", kind, 2 if kind.startswith("s-") else 0)

    def svg(self) -> str:
        """Return the file."""
        return self._head + "\n".join(self._shapes) + "\n</svg>\n"
