# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tables of the demo; none is wider than 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from examples._display import plain_table
from examples._measure import Error, Measurement, Work

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")
MEBI = 1 << 20


def measurement_tables(measurements: Sequence[Measurement]) -> RenderableType:
    """Return tables of the accuracy of all cases and of their work."""
    return Group(_error_table(measurements), _instruction_table(measurements), _traffic_table(measurements))


def is_within_bounds(measurements: Sequence[Measurement]) -> bool:
    """Whether every result of every case is as close to float64 as it has to be."""
    return all(error.of_bound <= 1.0 for m in measurements for error in (m.loss, m.lse, m.gradient))


def _error_table(measurements: Sequence[Measurement]) -> Table:
    table = plain_table("Largest error, and largest share of the allowed error")
    for column in ("model", "dtype"):
        table.add_column(column)
    for column in ("loss", "log-sum-exp", "gradient"):
        table.add_column(column, justify="right")
    for m in measurements:
        errors = [_error(error) for error in (m.loss, m.lse, m.gradient)]
        table.add_row(m.case.name, m.case.dtype_name, *errors)
    return table


def _instruction_table(measurements: Sequence[Measurement]) -> Table:
    table = _table_of_passes("Instructions by engine, both cores together", *ENGINES)
    for m in measurements:
        for name, work in _passes(m):
            table.add_row(*name, *(str(work.instructions.get(engine, 0)) for engine in ENGINES))
    return table


def _traffic_table(measurements: Sequence[Measurement]) -> Table:
    table = _table_of_passes(
        "HBM traffic in MiB, and seconds on this computer", "read", "written", "N·V·bytes", "seconds"
    )
    for m in measurements:
        for name, work in _passes(m):
            sizes = (work.hbm_read, work.hbm_written, m.case.logits_bytes)
            table.add_row(*name, *(f"{size / MEBI:.3f}" for size in sizes), f"{work.seconds:.3f}")
    return table


def _table_of_passes(title: str, *columns: str) -> Table:
    table = plain_table(title)
    for column in ("model", "dtype", "pass"):
        table.add_column(column)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _passes(m: Measurement) -> list[tuple[tuple[str, str, str], Work]]:
    """Return the first three cells of both rows of a case, each with the work for the other cells."""
    return [((m.case.name, m.case.dtype_name, "forward"), m.forward), (("", "", "backward"), m.backward)]


def _error(error: Error) -> Text:
    style = "green" if error.of_bound <= 1.0 else "bold red"
    return Text.assemble(f"{error.largest:.1e}  ", (f"{error.of_bound:4.0%}", style))
