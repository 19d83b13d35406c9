"""Published device measurements beside the model of time, in a half to fit and a half to check.

Kernels of others are not part of this repository: rows that need one are modelled with --sources DIR, a directory of
clones DIR/owner+name; without it they are shown with the factor that was recorded. Modelled, not measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks._display import verdict
from benchmarks.measurements.modelled import Found, Model, goals, record, recorded, summary
from benchmarks.measurements.page import BEFORE, NOW, PAGE, rewritten, select
from benchmarks.measurements.sources import SourceError, Sources
from benchmarks.measurements.table import CHECK, FIT, Half, Measurement, OwnKernel, measurements
from examples._display import make_console, plain_table
from nkilib.nki import NOT_SIMULATED, SIMULATED
from nkilib.simulator import AS_ISSUED


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measurements", description=__doc__)
    parser.add_argument("--sources", type=Path, metavar="DIR", help="clones of the repositories, DIR/owner+name")
    parser.add_argument("--half", choices=(FIT, CHECK), help="the rows of one half only")
    parser.add_argument("--row", default="", metavar="TEXT", help='only rows whose "source|row" contains the text')
    parser.add_argument("--page", action="store_true", help="record the figures and rewrite docs/measurements.md")
    parser.add_argument("--before", action="store_true", help="with the model as it was before it was fitted")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0, or 2 if there is no simulator that models."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    wanted = [row for row in measurements() if options.half in (None, row.half) and options.row in row.name]
    name = BEFORE if options.before else NOW
    with _sources(options.sources) as sources:
        model = Model(sources, AS_ISSUED, with_launches=False) if options.before else Model(sources)
        found, missing = _model(console, wanted, model.figure, recorded(name))
    for half in (FIT, CHECK):
        _show(console, half, found)
    _show_missing(console, missing)
    if options.page:
        record(name, [each for each in found if each.measurement.name not in missing])
        PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


@contextmanager
def _sources(directory: Path | None) -> Iterator[Sources | None]:
    if directory is None:
        yield None
        return
    with Sources(directory) as sources:
        yield sources


def _model(
    console: Console, rows: Sequence[Measurement], figure: Callable[[Measurement], float], earlier: Sequence[Found]
) -> tuple[list[Found], dict[str, str]]:
    """The rows with the model's figures, or with earlier ones, and why these were not modelled, by name."""
    known = {each.measurement.name: each for each in earlier}
    found, missing = [], {}
    for row in rows:
        if console.is_terminal:
            console.print(f"  {row.row} ...", end="\r")
        try:
            found.append(Found(row, figure(row)))
        except SourceError as error:
            missing[row.name] = str(error)
            if row.name in known:
                found.append(known[row.name])
    return found, missing


def _show(console: Console, half: Half, found: Sequence[Found]) -> None:
    times, ratios = select(found, half, ratios=False), select(found, half, ratios=True)
    if times:
        _show_rows(console, f"Half to {half}", times)
        of = summary(times)
        console.print(f"{of.rows} rows, median of modelled / measured {of.median_ratio:.2f}")
    if ratios:
        _show_rows(console, f"Half to {half}: time of a baseline over that of an optimised kernel", ratios)
    for goal in goals(times, ratios):
        console.print(f"{goal.text}:", verdict(goal.is_met))


def _show_rows(console: Console, title: str, found: Sequence[Found]) -> None:
    table = plain_table(title)
    table.add_column("source", overflow="fold")
    table.add_column("what", overflow="fold")
    for column in ("measured", "modelled", "ratio", "factor"):
        table.add_column(column, justify="right")
    for each in found:
        row = each.measurement
        unit = "" if row.is_ratio else " us"
        kernel = " (kernel of ours)" if isinstance(row.kernel, OwnKernel) else ""
        numbers = (f"{row.in_base_units:,g}{unit}", f"{each.modelled:,.4g}{unit}")
        table.add_row(row.source, row.row + kernel, *numbers, f"{each.ratio:.2f}", f"{each.factor:.2f}")
    console.print(table)


def _show_missing(console: Console, missing: dict[str, str]) -> None:
    if not missing:
        return
    console.print(f"Not modelled, shown as recorded: {len(missing)} rows, for want of")
    for reason in sorted(set(missing.values())):
        console.print(f"  {reason}", soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
