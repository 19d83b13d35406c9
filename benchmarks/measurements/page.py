# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tables of the pages of docs/evidence that compare the model with published figures.

:func:`result_tables` sums the comparison up, :func:`row_tables` show each figure by its source, and
:func:`probe_tables` single instructions and transfers; :func:`rewritten` puts them into their pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from textwrap import fill

from benchmarks.measurements.modelled import Found, Summary, goals, recorded, summary
from benchmarks.measurements.probes import PROBES, Compared, compared, factors
from benchmarks.measurements.table import CHECK, FIT, Half, Measurement, OwnKernel

_COLUMNS = 120
_EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
# What the comparison gives; each figure; single instructions and transfers.
RESULT_PAGE = _EVIDENCE / "measurements.md"
ROWS_PAGE = _EVIDENCE / "measured_kernels.md"
PROBES_PAGE = _EVIDENCE / "measured_instructions.md"
MARKER = "<!-- {} of `python -m benchmarks.measurements --page` -->"
PROBES_MARKER = "<!-- {} of `python -m benchmarks.measurements --probes --page` -->"
# The figures that are recorded: of the model as it was first and as it is, and as it is with software descriptors
# wherever the compiler chooses.
BEFORE, NOW, SOFTWARE = "before", "now", "software"
# What a ratio says of its doubts: they are on the rows of the two times.
_AS_FOR_THE_TIMES = "as for the two times"


def select(results: Sequence[Found], half: Half, ratios: bool) -> list[Found]:
    """Return the rows of a half: the ratios of baseline to optimised, or the times that count."""
    rows = [item for item in counted(results) if item.measurement.half == half]
    return [row for row in rows if row.measurement.is_ratio == ratios]


def counted(results: Sequence[Found]) -> list[Found]:
    """Return the rows that count by themselves, without those that only a ratio needs."""
    return [result for result in results if not result.measurement.is_for_ratio]


def result_tables() -> str:
    """The tables that sum the comparison up, from the recorded figures."""
    before, now = recorded(BEFORE), recorded(NOW)
    return "\n\n".join([_goals(now), _summaries(before, now), _worst(before, now), _by_source(before, now)])


def row_tables() -> str:
    """The tables of all rows, by source, from the recorded figures."""
    before = {item.measurement.name: item.ratio for item in recorded(BEFORE)}
    now = counted(recorded(NOW))
    parts = []
    for source in dict.fromkeys(item.measurement.source for item in now):
        rows = [item for item in now if item.measurement.source == source]
        parts.append(f"## {source}")
        for title, is_ratio in (("Times", False), ("Ratios", True)):
            some = [row for row in rows if row.measurement.is_ratio == is_ratio]
            parts += _rows(title, some, before) if some else []
    return "\n\n".join(parts)


def rewritten(page: Path) -> str:
    """The text of a page with the tables between its markers replaced.

    Raises:
        KeyError: for a page without such tables.
    """
    marker, shown = PAGES[page]
    start, end = marker.format("start"), marker.format("end")
    above, rest = page.read_text(encoding="utf-8").split(start)
    _, below = rest.split(end)
    return f"{above}{start}\n\n{shown()}\n\n{end}{below}"


def probe_tables() -> str:
    """The tables of single instructions and transfers, computed, and that of both kinds of descriptors, as recorded."""
    results = {kind: compared(probes) for kind, probes in PROBES.items()}
    medians = ["| rows | number | median factor before | now |", "|---|---|---|---|"]
    for kind, rows in results.items():
        before, now = factors(rows)
        medians.append(f"| {kind} | {len(rows)} | {before:.2f} | {now:.2f} |")
    parts = ["\n".join(medians)]
    for kind, rows in results.items():
        parts += [f"### {kind[0].upper()}{kind[1:]}", *_probe_rows(rows)]
    return "\n\n".join([*parts, "### Both kinds of descriptors on trn1", _both_kinds()])


def _probe_rows(compareds: Sequence[Compared]) -> list[str]:
    """Return a table for each source and chip, with the doubts below it."""
    parts = []
    for hardware, source in dict.fromkeys((row.probe.hardware, row.probe.source) for row in compareds):
        lines = [
            "| what | measured | modelled before | now | modelled / measured before | now |",
            "|---|---|---|---|---|---|",
        ]
        doubts = []
        for row in compareds:
            probe, (before, now) = row.probe, row.ratios
            if (probe.hardware, probe.source) != (hardware, source):
                continue
            modelled = f"{row.before:,.1f} | {row.now:,.1f} | {before:.2f} | {now:.2f}"
            lines.append(f"| {probe.what} | {probe.published} | {modelled} |")
            doubts += [_wrapped(f"- {probe.what}: {probe.doubts}.")] if probe.doubts else []
        parts += [f"On {hardware}, from {source}:", "\n".join(lines)]
        parts += ["\n".join(doubts)] if doubts else []
    return parts


def _both_kinds() -> str:
    """Return the rows of trn1 with both kinds of descriptors.

    The host writes descriptors where addresses are known; the other kind is written by software.
    """
    lines = [
        "| what | measured | modelled / measured | with software descriptors for all transfers |",
        "|---|---|---|---|",
    ]
    software = {record.measurement.name: record.ratio for record in recorded(SOFTWARE)}
    for item in recorded(NOW):
        row = item.measurement
        if row.name in software:
            unit = "" if row.is_ratio else f" {row.unit}"
            lines.append(f"| {row.row} | {row.measured:,g}{unit} | {item.ratio:.2f} | {software[row.name]:.2f} |")
    return "\n".join(lines)


def _groups() -> Iterator[tuple[str, Callable[[Measurement], bool]]]:
    """Parts of the rows that are summed up, by title."""

    def rows_of(half: Half, is_ratio: bool, with_known: bool) -> Callable[[Measurement], bool]:
        return lambda row: row.half == half and row.is_ratio == is_ratio and (with_known or not row.was_known)

    for half in (CHECK, FIT):
        yield f"times, {half} half", rows_of(half, False, True)
        yield f"times, {half} half, without known rows", rows_of(half, False, False)
        yield f"ratios, {half} half", rows_of(half, True, True)


def _summary_of(results: Sequence[Found], belongs: Callable[[Measurement], bool]) -> Summary:
    return summary([item for item in counted(results) if belongs(item.measurement)])


def _summaries(before: Sequence[Found], now: Sequence[Found]) -> str:
    lines = [
        "| rows | model | number | median factor | median modelled / measured | within 1.35 |",
        "|---|---|---|---|---|---|",
    ]
    for title, belongs in _groups():
        for name, results in ((BEFORE, before), (NOW, now)):
            of = _summary_of(results, belongs)
            lines.append(f"| {title} | {name} | {of.rows} | {of.median:.2f} | {of.median_ratio:.2f} | {of.close:.0%} |")
    return "\n".join(lines)


def _worst(before: Sequence[Found], now: Sequence[Found]) -> str:
    lines = ["| rows | model | largest factor | of |", "|---|---|---|---|"]
    for title, belongs in _groups():
        for name, results in ((BEFORE, before), (NOW, now)):
            worst = _summary_of(results, belongs).worst
            lines.append(f"| {title} | {name} | {worst.factor:.2f} | {worst.measurement.row} |")
    return "\n".join(lines)


def _goals(now: Sequence[Found]) -> str:
    """Describe how the half to check meets the goals."""
    results = goals(select(now, CHECK, ratios=False), select(now, CHECK, ratios=True))
    lines = [f"- {goal.text}: {'met' if goal.is_met else '**missed**'}" for goal in results]
    return "\n".join(["Goals for the check half, with the model of this checkout:", "", *lines])


def _by_source(before: Sequence[Found], now: Sequence[Found]) -> str:
    lines = [
        "| source | half | times | median factor before | now |",
        "|---|---|---|---|---|",
    ]
    for source in dict.fromkeys(item.measurement.source for item in now):
        for half in (CHECK, FIT):
            was, some = (
                [item for item in select(element, half, ratios=False) if item.measurement.source == source]
                for element in (before, now)
            )
            if some:
                medians = f"{summary(was).median:.2f} | {summary(some).median:.2f}"
                lines.append(f"| {source} | {half} | {len(some)} | {medians} |")
    return "\n".join(lines)


def _rows(title: str, rows: Sequence[Found], before: Mapping[str, float]) -> list[str]:
    """Return what rows of one source have in common, their table, and what only some of them have, by letters."""
    groups = list(dict.fromkeys(_facts(row.measurement) for row in rows))
    shared = [fact for fact in groups[0] if all(fact in group for group in groups)]
    own = {group: "; ".join(fact for fact in group if fact not in shared) for group in groups}
    letters = dict(zip(filter(own.get, groups), ascii_lowercase, strict=False))
    heads = (["note"] if letters else []) + ["what", "half", "measured", "modelled / measured before", "now"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for item in rows:
        row = item.measurement
        unit = "" if row.is_ratio else f" {row.unit}"
        cells = [row.row, row.half, f"{row.measured:,g}{unit}", f"{before[row.name]:.2f}", f"{item.ratio:.2f}"]
        lines.append(f"| {' | '.join(([letters.get(_facts(row), '')] if letters else []) + cells)} |")
    head = _wrapped(f"{title}. All rows: {'; '.join(shared)}." if shared else f"{title}:")
    notes = [_wrapped(f"- {letter}: {own[group]}.") for group, letter in letters.items()]
    return [head, "\n".join(lines), *(["\n".join(notes)] if notes else [])]


def _wrapped(text: str) -> str:
    """Break a paragraph or an item of a list to the width of a page."""
    indent = "  " if text.startswith("- ") else ""
    return fill(text, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _facts(row: Measurement) -> tuple[str, ...]:
    """Return what is said of a row besides its figures; nothing of a ratio whose two times say it."""
    if row.doubts == _AS_FOR_THE_TIMES:
        return ()
    kernel = (
        "our kernel" if isinstance(row.kernel, OwnKernel) else "their kernel" if row.kernel else "two of our kernels"
    )
    where = f"`{row.section}`" + (f" at {row.commit[:8]}" if row.commit else "")
    cores = f"{row.cores} core" + ("s" if row.cores > 1 else "")
    return row.hardware, cores, row.dtype, kernel, where, *row.doubts.split("; ")


# The pages with generated tables: the marker of the tables, and what writes them.
PAGES: Mapping[Path, tuple[str, Callable[[], str]]] = {
    RESULT_PAGE: (MARKER, result_tables),
    ROWS_PAGE: (MARKER, row_tables),
    PROBES_PAGE: (PROBES_MARKER, probe_tables),
}
