# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Published device measurements beside the model of time, in a fit half and a check half.

Kernels of others are not part of this repository: rows that need one are modelled with --sources DIR, a directory of
clones DIR/owner+name; without it they are shown with the factor that was recorded. Modelled, not measured.
"""

from __future__ import annotations

import argparse
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks._display import verdict
from benchmarks.measurements.modelled import Found, Model, goals, record, recorded, summary
from benchmarks.measurements.page import BEFORE, NOW, PAGES, SOFTWARE, rewritten, select
from benchmarks.measurements.probes import PROBES, compared, factors
from benchmarks.measurements.sources import SourceError, Sources
from benchmarks.measurements.table import CHECK, FIT, Half, Measurement, OwnKernel, measurements
from examples._display import make_console, plain_table
from nkilib.nki import NOT_SIMULATED, SIMULATED
from nkilib.simulator import AS_ISSUED, ModelParameters


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measurements", description=__doc__)
    parser.add_argument("--sources", type=Path, metavar="DIR", help="clones of the repositories, DIR/owner+name")
    parser.add_argument("--half", choices=(FIT, CHECK), help="the rows of one half only")
    parser.add_argument("--row", default="", metavar="TEXT", help='only rows whose "source|row" contains the text')
    parser.add_argument(
        "--page", action="store_true", help="record the figures and rewrite the tables of docs/evidence"
    )
    parser.add_argument("--probes", action="store_true", help="single instructions and transfers instead of kernels")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--before", action="store_true", help="with the model as it was before it was fitted")
    which.add_argument(
        "--software", action="store_true", help="with software descriptors wherever the compiler chooses them"
    )
    which.add_argument(
        "--assume",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=_assumption,
        help="a field of ModelParameters, such as issue_cycles=40; may be given several times, and nothing is recorded",
    )
    options = parser.parse_args(arguments)
    if options.assume and (options.page or options.probes):
        parser.error("--assume is for kernels that are printed only: leave out --page and --probes")
    return options


def _assumption(inputs: str) -> tuple[str, Any]:
    """``NAME=VALUE`` as a field of :class:`ModelParameters` and its value, a Python literal or a word."""
    name, is_there, value = inputs.partition("=")
    if not is_there or name not in {field.name for field in fields(ModelParameters)}:
        raise argparse.ArgumentTypeError(f"needs a field of ModelParameters and its value, NAME=VALUE, got {inputs!r}")
    try:
        return name, literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0, or 2 if there is no simulator that models."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    if options.probes:
        _show_probes(console)
        _write_pages(options.page)
        return 0
    wanted = [row for row in measurements() if options.half in (None, row.half) and options.row in row.name]
    name = BEFORE if options.before else SOFTWARE if options.software else NOW
    with _sources(options.sources) as sources:
        model = Model(sources, ModelParameters(**dict(options.assume))) if options.assume else _model_of(name, sources)
        results, missing = _model(console, wanted, model.figure, () if options.assume else recorded(name))
    for half in (FIT, CHECK):
        _show(console, half, results)
    _show_missing(console, missing)
    if options.page:
        record(name, [result for result in results if result.measurement.name not in missing])
    _write_pages(options.page)
    return 0


def _write_pages(is_asked: bool) -> None:
    for page in PAGES if is_asked else ():
        page.write_text(rewritten(page), encoding="utf-8")


def _model_of(name: str, sources: Sources | None) -> Model:
    """The model whose figures are recorded under a name."""
    if name == BEFORE:
        return Model(sources, AS_ISSUED, with_launches=False)
    return Model(sources, ModelParameters(software_descriptors="always") if name == SOFTWARE else None)


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
    known = {item.measurement.name: item for item in earlier}
    result, missing = [], {}
    for row in rows:
        if console.is_terminal:
            console.print(f"  {row.row} ...", end="\r")
        try:
            result.append(Found(row, figure(row)))
        except SourceError as error:
            missing[row.name] = str(error)
            if row.name in known:
                result.append(known[row.name])
    return result, missing


def _show(console: Console, half: Half, results: Sequence[Found]) -> None:
    times, ratios = select(results, half, ratios=False), select(results, half, ratios=True)
    if times:
        _show_rows(console, f"{half.capitalize()} half", times)
        of = summary(times)
        console.print(f"{of.rows} rows, median of modelled / measured {of.median_ratio:.2f}")
    if ratios:
        _show_rows(console, f"{half.capitalize()} half: time of a baseline over that of an optimised kernel", ratios)
    for goal in goals(times, ratios):
        console.print(f"{goal.text}:", verdict(goal.is_met))


def _show_rows(console: Console, title: str, results: Sequence[Found]) -> None:
    table = plain_table(title)
    table.add_column("source", overflow="fold")
    table.add_column("what", overflow="fold")
    for column in ("measured", "modelled", "ratio", "factor"):
        table.add_column(column, justify="right")
    for result in results:
        row = result.measurement
        unit = "" if row.is_ratio else " us"
        kernel = " (kernel of ours)" if isinstance(row.kernel, OwnKernel) else ""
        numbers = (f"{row.in_base_units:,g}{unit}", f"{result.modelled:,.4g}{unit}")
        table.add_row(row.source, row.row + kernel, *numbers, f"{result.ratio:.2f}", f"{result.factor:.2f}")
    console.print(table)


def _show_probes(console: Console) -> None:
    for kind, probes in PROBES.items():
        table = plain_table(f"Single instructions and transfers: {kind}")
        table.add_column("what", overflow="fold")
        for column in ("measured", "before", "now", "ratio before", "ratio"):
            table.add_column(column, justify="right")
        results = compared(probes)
        for row in results:
            ratios = [f"{ratio:.2f}" for ratio in row.ratios]
            table.add_row(row.probe.what, row.probe.published, f"{row.before:,.1f}", f"{row.now:,.1f}", *ratios)
        console.print(table)
        before, now = factors(results)
        console.print(f"median factor {now:.2f}, before these figures were known {before:.2f}")


def _show_missing(console: Console, missing: dict[str, str]) -> None:
    if not missing:
        return
    console.print(f"Not modelled, shown as recorded: {len(missing)} rows, for want of")
    for reason in sorted(set(missing.values())):
        console.print(f"  {reason}", soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
