# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tables of docs/evidence/measurements.md: :func:`tables` of the measurements, :func:`probe_tables` of single
instructions and transfers; :func:`rewritten` puts them into the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.measurements.modelled import Found, Summary, goals, recorded, summary
from benchmarks.measurements.probes import PROBES, Compared, compared, factors
from benchmarks.measurements.table import CHECK, FIT, Half, Measurement, OwnKernel

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "measurements.md"
MARKER = "<!-- {} of `python -m benchmarks.measurements --page` -->"
PROBES_MARKER = "<!-- {} of `python -m benchmarks.measurements --probes --page` -->"
# The figures that are recorded: of the model as it was first and as it is, and as it is with software descriptors
# wherever the compiler chooses.
BEFORE, NOW, SOFTWARE = "before", "now", "software"
_PARTS: tuple[tuple[str, Half, bool], ...] = (
    ("Times, check half", CHECK, False),
    ("Times, fit half", FIT, False),
    ("Ratios, check half", CHECK, True),
    ("Ratios, fit half", FIT, True),
)


def select(results: Sequence[Found], half: Half, ratios: bool) -> list[Found]:
    """Return the rows of a half: the ratios of baseline to optimised, or the times that count."""
    rows = [item for item in counted(results) if item.measurement.half == half]
    return [row for row in rows if row.measurement.is_ratio == ratios]


def counted(results: Sequence[Found]) -> list[Found]:
    """Return the rows that count by themselves, without those that only a ratio needs."""
    return [result for result in results if not result.measurement.is_for_ratio]


def tables() -> str:
    """All tables, from the recorded figures."""
    before, now = recorded(BEFORE), recorded(NOW)
    parts = [_summaries(before, now), _goals(now), _by_source(before, now)]
    for title, half, ratios in _PARTS:
        parts += [f"### {title}", _rows(select(before, half, ratios), select(now, half, ratios))]
    return "\n\n".join(parts)


def rewritten(text: str) -> str:
    """The page's text with the tables between its markers replaced."""
    for marker, shown in ((MARKER, tables()), (PROBES_MARKER, probe_tables())):
        start, end = marker.format("start"), marker.format("end")
        above, rest = text.split(start)
        _, below = rest.split(end)
        text = f"{above}{start}\n\n{shown}\n\n{end}{below}"
    return text


def probe_tables() -> str:
    """The tables of single instructions and transfers, computed, and that of both kinds of descriptors, as recorded."""
    results = {kind: compared(probes) for kind, probes in PROBES.items()}
    medians = ["| rows | number | median factor before | now |", "|---|---|---|---|"]
    for kind, rows in results.items():
        before, now = factors(rows)
        medians.append(f"| {kind} | {len(rows)} | {before:.2f} | {now:.2f} |")
    every = [row for rows in results.values() for row in rows]
    return "\n\n".join(["\n".join(medians), _probe_rows(every), _both_kinds()])


def _probe_rows(compareds: Sequence[Compared]) -> str:
    lines = [
        "| what | hardware | measured | modelled before | now | modelled / measured before | now | source | caveats |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in compareds:
        probe, (before, now) = row.probe, row.ratios
        modelled = f"{row.before:,.1f} | {row.now:,.1f} | {before:.2f} | {now:.2f}"
        lines.append(
            f"| {probe.what} | {probe.hardware} | {probe.published} | {modelled} | {probe.source} | {probe.doubts} |"
        )
    return "\n".join(lines)


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


def _groups(half: Half) -> Iterator[tuple[str, Callable[[Measurement], bool]]]:
    """Parts of a half's rows that are summed up, by title."""
    rows = f"{half} half"
    yield f"Times, {rows}", lambda row: row.half == half and not row.is_ratio
    yield (
        f"of these, not known before the split, {rows}",
        lambda row: row.half == half and not (row.is_ratio or row.was_known),
    )
    yield f"Ratios, {rows}", lambda row: row.half == half and row.is_ratio


def _summaries(before: Sequence[Found], now: Sequence[Found]) -> str:
    lines = [
        "| rows | model | number | median factor | median modelled / measured | within 1.35 | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for half in (CHECK, FIT):
        for title, belongs in _groups(half):
            for name, element in ((BEFORE, before), (NOW, now)):
                some = [item for item in counted(element) if belongs(item.measurement)]
                if some:
                    lines.append(_summary_line(title, name, summary(some)))
    return "\n".join(lines)


def _goals(now: Sequence[Found]) -> str:
    """Describe how the half to check meets the goals."""
    results = goals(select(now, CHECK, ratios=False), select(now, CHECK, ratios=True))
    lines = [f"- {goal.text}: {'met' if goal.is_met else '**missed**'}" for goal in results]
    return "\n".join(["Check half, now:", "", *lines])


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


def _summary_line(title: str, model: str, of: Summary) -> str:
    worst = f"{of.worst.factor:.2f} ({of.worst.measurement.row})"
    return f"| {title} | {model} | {of.rows} | {of.median:.2f} | {of.median_ratio:.2f} | {of.close:.0%} | {worst} |"


def _rows(before: Sequence[Found], now: Sequence[Found]) -> str:
    lines = [
        "| what | hardware | dtype | measured | modelled / measured before | now | kernel | source | caveats |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    earlier = {item.measurement.name: item.ratio for item in before}
    for element in now:
        row = element.measurement
        cores = f"{row.hardware}, {row.cores} core" + ("s" if row.cores > 1 else "")
        kernel = "ours" if isinstance(row.kernel, OwnKernel) else "theirs" if row.kernel else "two rows"
        unit = "" if row.is_ratio else f" {row.unit}"
        was = f"{earlier[row.name]:.2f}" if row.name in earlier else ""
        source = f"{row.source}, `{row.section}`" + (f" at {row.commit[:8]}" if row.commit else "")
        lines.append(
            f"| {row.row} | {cores} | {row.dtype} | {row.measured:,g}{unit} | {was} | {element.ratio:.2f} | "
            f"{kernel} | {source} | {row.doubts} |"
        )
    return "\n".join(lines)
