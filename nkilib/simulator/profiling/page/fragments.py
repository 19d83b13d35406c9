# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The parts of a page that are readable without a script: sentences, tables, and a picture of the timeline, as HTML.

:func:`summary` and :func:`figures` show one profile, :func:`comparison` shows two; :func:`picture` is the timeline as
an SVG image, :func:`static` replaces the timeline where no script runs, and :func:`small` is the form for a cell of a
notebook. Everything that comes from a kernel is escaped.

*Content* is the dictionary that a page is made of (:func:`.content.content_of`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from ..why.critical_path import MOST_ANALYSED
from .comparison import Change, Line
from .content import Content

_PS_PER_US = 1e6
_MOST_CHANGES = 100
_MOST_ROWS = 40
# The rows of the picture with their hues, those of Okabe and Ito, which colour-blind readers tell apart.
_HUES = {"dma": "#56B4E9", "tensor": "#D55E00", "vector": "#0072B2", "scalar": "#E69F00", "gpsimd": "#009E73"}
_COLUMNS, _LEFT, _ROW = 600, 110, 18
# Makes a cell of the line of a kernel: a button of the page, or its text.
_Shower = Callable[[Content, Line], str]


def us(picoseconds: float) -> str:
    """Return the text for a duration, in microseconds without the unit."""
    return f"{picoseconds / _PS_PER_US:,.1f}"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    # Cells are HTML; the first ``texts`` columns are texts, the others figures.
    def kind(column: int) -> str:
        return "" if column < texts else ' class="figure"'

    head = "".join(
        f'<th scope="col"{kind(at)}>{escape(text)}</th>' if text else "<td></td>" for at, text in enumerate(heads)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{kind(at)}>{cell}</td>" for at, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def line_text(content: Content, line: Sequence[int]) -> str:
    """Return ``file:line`` of a line, a pair (index of the file, number)."""
    file, number = line
    name = content["files"][file]["name"]
    return f"{name}:{number}" if number else str(name)


def _as_text(content: Content, line: Sequence[int]) -> str:
    return escape(line_text(content, line))


def _as_button(profile: int) -> _Shower:
    # The button shows the line in the timeline and in the source.
    def button(content: Content, line: Sequence[int]) -> str:
        where = f'data-profile="{profile}" data-line="{line[0]:d}:{line[1]:d}"'
        return f'<button type="button" class="to" {where}>{_as_text(content, line)}</button>'

    return button


def _bar(share: float) -> str:
    width = f"{100 * min(1.0, share):.1f}"
    return (
        '<svg class="bar" width="100" height="10" aria-hidden="true"><rect class="of" width="100" height="10"/>'
        f'<rect class="is" width="{width}" height="10"/></svg>'
    )


def _engines(content: Content) -> str:
    time = content["time"] or 1
    rows = [
        (f"{core:d}", escape(name), us(busy), f"{busy / time:.1%}", _bar(busy / time))
        for core, engines in content["busy"]
        for name, busy in engines.items()
    ]
    return _table("Engines by core", ("core", "engine", "busy us", "share of the time", ""), rows, texts=2)


def _hbm(content: Content) -> str:
    rows = [(escape(str(name)), f"{read:,}", f"{written:,}") for name, read, written in content["hbm"][:_MOST_ROWS]]
    more = len(content["hbm"]) - _MOST_ROWS
    rows += [(f"and {more} more", "", "")] if more > 0 else []
    read, written = (sum(row[at] for row in content["hbm"]) for at in (1, 2))
    rows.append(("all", f"{read:,}", f"{written:,}"))
    return _table("HBM bytes by tensor", ("tensor", "read", "written"), rows)


def _peak(content: Content, region: str, show: _Shower) -> str:
    peak = content[region]
    if not peak["bytes"]:
        return f"<p>{region.upper()} is not used.</p>"
    share = peak["bytes"] / peak["capacity"]
    taken, capacity = f"{peak['bytes']:,} bytes of a partition", f"{peak['capacity']:,}"
    caption = f"{region.upper()} peak: {taken}, {share:.0%} of {capacity}"
    tensors = peak["tensors"]
    rows = [
        (escape(str(tensor)), show(content, line), f"{count:,}", f"{nbytes:,}")
        for count, nbytes, tensor, line in tensors[:_MOST_ROWS]
    ]
    more = len(tensors) - _MOST_ROWS
    rows += [(f"and {more} more kinds", "", "", "")] if more > 0 else []
    return _table(caption, ("tile", "made at", "tiles", "bytes of a partition each"), rows, texts=2)


def _findings(content: Content, show: _Shower) -> str:
    items = []
    for finding in content["findings"]:
        saved = f'<strong class="saved">saves {us(finding["saved"])} us</strong> ' if finding["saved"] else ""
        lines = ", ".join(show(content, line) for line in finding["lines"])
        items.append(f"<li>{saved}{escape(finding['text'])} <span class='places'>{lines}</span></li>")
    if not items:
        return "<p>Nothing stands out: no advice, and no fact that is about much of the time.</p>"
    return f'<ul class="findings">{"".join(items)}</ul>'


def _path(content: Content) -> str:
    whole = sum(spent for _, spent in content["path_by_use"]) or 1
    rows = [(escape(str(use)), us(spent), f"{spent / whole:.1%}") for use, spent in content["path_by_use"]]
    return _table("Critical path by use", ("use", "us", "share"), rows)


def _counts(content: Content) -> str:
    untimed = content["untimed"]
    rows = [
        (escape(name) + (" (not timed)" if name in untimed else ""), f"{count:,}") for name, count in content["counts"]
    ]
    return _table("Instructions", ("name", "count"), rows)


def _left_out(content: Content) -> Iterator[str]:
    """Yield a sentence for each thing of which the page shows only a part: instructions, the path, loops."""
    total = sum(core["total"] for core in content["cores"])
    shown = sum(len(core["site"]) for core in content["cores"])
    if shown < total:
        yield (
            f"The timeline shows {shown:,} of {total:,} instructions: an equal share of each core, of which the first "
            f"third is its first ones, and the rest its last ones. Sums cover all instructions."
        )
    analysed = sum(spent for _, spent in content["path_by_use"])
    if 0 < analysed < 0.999 * content["time"]:
        yield (
            f"The critical path and the findings are those of the last {us(analysed)} us: of each core the last "
            f"{MOST_ANALYSED:,} instructions are analysed."
        )
    shown, left_out = len(content["loops"]), content["loops_left_out"]
    if left_out:
        yield f"The timeline shows {shown:,} runs of device loops, the first of each core; {left_out:,} are left out."


def summary(content: Content, profile: int) -> str:
    """Return the sentences and findings about a profile, as HTML with links to the lines.

    Args:
        content: the content.
        profile: the index of the profile in the page.
    """
    found = tuple(finding["text"] for finding in content["findings"])
    said = [sentence for sentence in content["sentences"] if not sentence.endswith(found)]
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in (*said, *_left_out(content)))
    heading = "<h3>Why: advice, each with what it saves, and facts</h3>"
    return f"{sentences}{heading}{_findings(content, _as_button(profile))}"


def figures(content: Content, profile: int) -> str:
    """Return tables of engines, critical path, HBM bytes, instructions and peaks of memory, as HTML.

    Args:
        content: the content.
        profile: the index of the profile in the page.
    """
    show = _as_button(profile)
    tables = (_engines(content), _path(content), _hbm(content), _counts(content))
    peaks = (_peak(content, "sbuf", show), _peak(content, "psum", show))
    return f'<div class="tables">{"".join((*tables, *peaks))}</div>'


def comparison(this: Content, other: Content, changes: Sequence[Change]) -> str:
    """Return the tables that compare two profiles, as HTML.

    Args:
        this: the content of the profile that the page is about.
        other: the content of the profile to compare with.
        changes: the lines, as ``compared(other, this)`` returns them.
    """

    def row(name: str, figures: Sequence[float | None], form: Callable[[float], str]) -> tuple[str, ...]:
        before, after = figures
        shown = ["none" if figure is None else form(figure) for figure in figures]
        change = "" if not before or after is None else f"{after / before - 1:+.1%}"
        return (name, *shown, change)

    both = other, this
    rows = [row("time, us", [content["time"] for content in both], us)]
    rows.append(row("bound, us", [content["bound"] for content in both], us))
    for engine in {name: 0 for content in both for _, engines in content["busy"] for name in engines}:
        most = [max((engines.get(engine, 0) for _, engines in content["busy"]), default=0) for content in both]
        rows.append(row(f"{escape(engine)} busy, us", most, us))
    for name, at in (("HBM bytes read", 1), ("HBM bytes written", 2)):
        rows.append(row(name, [sum(line[at] for line in content["hbm"]) for content in both], lambda n: f"{n:,.0f}"))
    for region in ("sbuf", "psum"):
        name = f"{region.upper()} peak, bytes of a partition"
        rows.append(row(name, [content[region]["bytes"] for content in both], lambda n: f"{n:,.0f}"))
    sums = _table("Figures", ("", "other", "this", "change"), rows)
    shows = _as_button(1), _as_button(0)
    lines = [
        (
            f"<code>{escape(change.text)}</code>",
            shows[0](other, change.before) if change.before else "none",
            shows[1](this, change.after) if change.after else "none",
            *(us(path) for path in change.path_ps),
            f"{change.change_ps / _PS_PER_US:+,.1f}",
            *(us(busy) for busy in change.busy_ps),
        )
        for change in changes[:_MOST_CHANGES]
    ]
    left_out = len(changes) - _MOST_CHANGES
    heads = ("line", "other", "this", "other path us", "this path us", "change us", "other busy us", "this busy us")
    note = f"<p>{left_out:,} lines with smaller changes are left out.</p>" if left_out > 0 else ""
    caption = "Lines, the largest change of the critical path first; busy: all engines and cores added up"
    return f'<div class="tables">{sums}</div>{_table(caption, heads, lines, texts=3)}{note}'


def _bins(content: Content, columns: Content, engine: str) -> list[bool]:
    # For each column of the picture, whether an engine of a core works then.
    busy = [False] * _COLUMNS
    scale = _COLUMNS / (content["time"] or 1)
    start = 0
    engines = [site[0] for site in content["sites"]]
    for site, later, duration in zip(columns["site"], columns["start"], columns["duration"], strict=True):
        start += later
        if engines[site] == engine and duration:
            first, last = int(start * scale), int((start + duration) * scale)
            for at in range(max(0, first), min(last, _COLUMNS - 1) + 1):
                busy[at] = True
    return busy


def _runs(busy: Sequence[bool]) -> str:
    # The SVG path of the runs of busy columns of a row.
    parts, at = [], 0
    while at < len(busy):
        end = at
        while end < len(busy) and busy[end]:
            end += 1
        if end > at:
            parts.append(f"M{_LEFT + at} 0h{end - at}v{_ROW - 4}h-{end - at}z")
        at = end + 1
    return "".join(parts)


def picture(content: Content) -> str:
    """Return the timeline of the engines as an ``img`` element that holds an SVG, with a text for screen readers."""
    shapes, y = [], 24
    for columns, (core, engines) in zip(content["cores"], content["busy"], strict=False):
        for engine in sorted(engines, key=lambda name: list(_HUES).index(name) if name in _HUES else len(_HUES)):
            path = _runs(_bins(content, columns, engine))
            if path:
                label = f'<text x="4" y="{_ROW - 6}">core {core:d} {escape(engine)}</text>'
                fill = _HUES.get(engine, "#555555")
                shapes.append(f'<g transform="translate(0 {y})">{label}<path fill="{fill}" d="{path}"/></g>')
                y += _ROW
    width, title = _LEFT + _COLUMNS + 10, escape(f"{content['kernel']}: {us(content['time'])} us, {content['note']}")
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 6}" font-family="sans-serif" '
        f'font-size="11"><rect width="{width}" height="{y + 6}" fill="#ffffff"/><text x="4" y="15">{title}</text>'
        f"{''.join(shapes)}</svg>"
    )
    words = f"Timeline of the engines of {content['kernel']}, {us(content['time'])} us, {content['note']}."
    encoded = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{encoded}" width="{width}" height="{y + 6}">'


def _lines(content: Content, most: int) -> str:
    rows = [
        (
            _as_text(content, line[:2]),
            us(line[2]),
            f"{line[2] / (content['time'] or 1):.1%}",
            f"{line[3]:,}",
            f"{line[4]:,}",
        )
        for line in sorted(content["lines"], key=lambda line: -line[2])[:most]
    ]
    heads = ("line", "critical path us", "share", "instructions", "bytes moved")
    return _table("Lines with most time on the critical path", heads, rows)


def static(content: Content) -> str:
    """Return the picture and a table of lines, which a page shows in place of its timeline where no script runs."""
    return f"{picture(content)}{_lines(content, _MOST_ROWS)}"


def small(content: Content, most: int = 8) -> str:
    """Return the form for a cell of a notebook: sentences, picture, and the ``most`` lines with most time."""
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in content["sentences"])
    return f"<div>{sentences}{picture(content)}{_lines(content, most)}</div>"
