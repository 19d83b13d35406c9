# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Published figures of single instructions and transfers, compared with the model before and after they were known.

All but one are of trn1; the kernels are ours, after the probes that were measured. Modelled, not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.measurements.kernels import PARTITIONS, WIDE, Issue, Tiles, loads, repeated
from nkilib.nki import nisa, nl
from nkilib.simulator import ModelParameters, profile, spec, using
from nkilib.simulator.timing.parameters import NS_PER_US

# What the model took for pauses and for software descriptors before these figures were known.
BEFORE = ModelParameters(issue_cycles=100.0, software_us=0.3)
KILN = "foxl-ai/kiln, `docs/neuron-notes.md` at fc21e10d"
# How often an instruction is repeated, and the first repeats, which do not count, as in the published probe.
_FEW, _MANY = 16, 272
# Bytes of a partition in each part of what is loaded, and how many parts.
_PART_BYTES, _PARTS = 65536, 4


@dataclass(frozen=True)
class Probe:
    """A published figure of one kind of instruction, or of transfers of one form.

    Attributes:
        what: was measured.
        least, most: the figure, or what several of them lie between.
        unit: ``ns`` an instruction, or ``GB/s``.
        modelled: computes the model's figure under assumptions; None stands for the default ones.
        hardware: the generation.
        source: who published it, and where.
        doubts: the doubts about the measurement.
    """

    what: str
    least: float
    most: float
    unit: str
    modelled: Callable[[str, ModelParameters | None], float]
    hardware: str = "trn1"
    source: str = KILN
    doubts: str = ""

    @property
    def measured(self) -> float:
        """The figure, or the middle of several."""
        return (self.least + self.most) / 2

    @property
    def published(self) -> str:
        """The figure as it was published."""
        figure = f"{self.least:,g}" if self.least == self.most else f"{self.least:,g} to {self.most:,g}"
        return f"{figure} {self.unit}"

    def figure(self, parameters: ModelParameters | None = None) -> float:
        """The model's figure. Modelled, not measured."""
        return self.modelled(self.hardware, parameters)


@dataclass(frozen=True)
class Compared:
    """A published figure with the model's, before it was known and now. Modelled, not measured."""

    probe: Probe
    before: float
    now: float

    @property
    def ratios(self) -> tuple[float, float]:
        """Modelled over measured, before and now."""
        return self.before / self.probe.measured, self.now / self.probe.measured


def compared(probes: Sequence[Probe]) -> list[Compared]:
    """The figures of some rows."""
    return [Compared(probe, probe.figure(BEFORE), probe.figure()) for probe in probes]


def factors(compareds: Sequence[Compared]) -> tuple[float, float]:
    """The median of how far the model is off, either way, before and now: at least 1."""
    before, now = (median(max(row.ratios[at], 1 / row.ratios[at]) for row in compareds) for at in range(2))
    return before, now


def _instruction_ns(
    issue: Issue, hardware: str, parameters: ModelParameters | None, *, products: Any = None, results: Any = None
) -> float:
    """Nanoseconds from one instruction of a kind to the next."""
    kernel = repeated(issue, products or nl.bfloat16, results or nl.float32)
    with using(target=hardware):
        profiled = profile(kernel, spec((PARTITIONS, WIDE), nl.float32), _MANY, parameters=parameters)
    first, last = profiled.instructions[_FEW - _MANY - 1], profiled.instructions[-1]
    return (last.start_us - first.start_us) / (_MANY - _FEW) * NS_PER_US


def _rate(
    hardware: str,
    parameters: ModelParameters | None,
    *,
    chunk: int,
    reads: bool,
    rows: int = PARTITIONS,
    runs: int = 1,
) -> float:
    """GB/s of loads of ``rows`` x ``chunk`` bytes; ``reads`` says whether their addresses are read at run time."""

    def time_us(parts: int) -> float:
        shapes = spec((parts, PARTITIONS, _PART_BYTES), nl.uint8), spec((1, parts), nl.int32)
        return profile(loads, *shapes, chunk, rows, runs, reads, parameters=parameters).time_us

    with using(target=hardware):
        taken_us = time_us(_PARTS) - time_us(1)
    return (_PARTS - 1) * PARTITIONS * _PART_BYTES / (taken_us * NS_PER_US)


def _table_load_ns(hardware: str, parameters: ModelParameters | None) -> float:
    """Nanoseconds that an activation takes longer for another function than that of the one before."""
    alone, in_turn = (_instruction_ns(issue, hardware, parameters) for issue in (_exp, _exp_or_tanh))
    return in_turn - alone


# Instructions.


def _product(columns: int, rows: int = PARTITIONS, stationary: int = PARTITIONS) -> Issue:
    """A product of stationary [rows, stationary] and moving [rows, columns], always the same."""

    def issue(tiles: Tiles, number: int) -> None:
        target = tiles.product[0:stationary, 0:columns]
        nisa.nc_matmul(target, tiles.stationary[0:rows, 0:stationary], tiles.moving[0:rows, 0:columns])

    return issue


def _other_product(columns: int) -> Issue:
    """A product of moving [128, columns] with another stationary [128, 128] each time."""

    def issue(tiles: Tiles, number: int) -> None:
        first = number % 4 * PARTITIONS
        stationary = tiles.stationary[:, first : first + PARTITIONS]
        nisa.nc_matmul(tiles.product[:, 0:columns], stationary, tiles.moving[:, 0:columns])

    return issue


def _reduced_bank(tiles: Tiles, number: int) -> None:
    nisa.tensor_reduce(tiles.sums, nl.maximum, tiles.bank, axis=1)


def _reduced(columns: int) -> Issue:
    return lambda tiles, number: nisa.tensor_reduce(tiles.sums, nl.maximum, tiles.wide[:, 0:columns], axis=1)


def _copied_by_vector(tiles: Tiles, number: int) -> None:
    nisa.tensor_copy(tiles.result[:, 0:512], tiles.bank, engine=nisa.vector_engine)


def _scaled_and_added(tiles: Tiles, number: int) -> None:
    target, other = tiles.result[:, 0:512], tiles.wide[:, 0:512]
    nisa.scalar_tensor_tensor(target, tiles.bank, nl.multiply, 0.5, nl.add, other)


def _two_in_sbuf(tiles: Tiles, number: int) -> None:
    target, first, second = tiles.result[:, 0:512], tiles.wide[:, 0:512], tiles.wide[:, 512:1024]
    nisa.tensor_tensor(target, first, second, nl.multiply, engine=nisa.vector_engine)


def _one_in_psum(tiles: Tiles, number: int) -> None:
    target, second = tiles.result[:, 0:512], tiles.wide[:, 512:1024]
    nisa.tensor_tensor(target, tiles.bank, second, nl.multiply, engine=nisa.vector_engine)


def _scaled(tiles: Tiles, number: int) -> None:
    nisa.tensor_scalar(tiles.result[:, 0:2048], tiles.wide[:, 0:2048], nl.multiply, 0.5, engine=nisa.vector_engine)


def _counted(tiles: Tiles, number: int) -> None:
    nisa.tensor_scalar_reduce(tiles.result, tiles.wide, nl.greater_equal, tiles.column, nl.add, tiles.sums)


def _copied_by_scalar(columns: int) -> Issue:
    def issue(tiles: Tiles, number: int) -> None:
        source = tiles.bank if columns == 512 else tiles.wide[:, 0:columns]
        nisa.activation(tiles.result[:, 0:columns], nl.copy, source)

    return issue


def _exp_and_sum(columns: int) -> Issue:
    def issue(tiles: Tiles, number: int) -> None:
        source = tiles.bank if columns == 512 else tiles.wide[:, 0:columns]
        target = tiles.result[:, 0:columns]
        nisa.activation_reduce(target, nl.exp, source, nl.add, tiles.sums, bias=tiles.column)

    return issue


def _exp(tiles: Tiles, number: int) -> None:
    nisa.activation(tiles.result[:, 0:PARTITIONS], nl.exp, tiles.wide[:, 0:PARTITIONS])


def _exp_or_tanh(tiles: Tiles, number: int) -> None:
    function = nl.tanh if number % 2 else nl.exp
    nisa.activation(tiles.result[:, 0:PARTITIONS], function, tiles.wide[:, 0:PARTITIONS])


def _ns(what: str, measured: float, issue: Issue, **arguments: Any) -> Probe:
    """An instruction of a kind; ``arguments`` are its types, or attributes of the row."""
    types = {name: arguments.pop(name) for name in ("products", "results") if name in arguments}
    return Probe(what, measured, measured, "ns", partial(_instruction_ns, issue, **types), **arguments)


def _gb_per_s(what: str, least: float, most: float, doubts: str = "", **arguments: Any) -> Probe:
    return Probe(what, least, most, "GB/s", partial(_rate, **arguments), doubts=doubts)


BF16, FP32 = nl.bfloat16, nl.float32
_SHORT = "measured at 8 to 64 KiB a row"
_UNSAID = "where its addresses come from is not stated"

TRANSFERS = (
    _gb_per_s("loads of 128 x 8 KiB, known addresses", 261, 264, _SHORT, chunk=8192, reads=False),
    _gb_per_s("loads of 128 x 8 KiB, addresses from registers", 261, 264, _SHORT, chunk=8192, reads=True),
    _gb_per_s("loads of 128 x 64 KiB, known addresses", 261, 264, _SHORT, chunk=65536, reads=False),
    _gb_per_s("loads of 32 x 8 KiB, addresses from registers", 196, 196, chunk=8192, rows=32, reads=True),
    _gb_per_s("loads of 128 x 1 KiB, addresses from registers", 95, 95, _UNSAID, chunk=1024, reads=True),
    _gb_per_s(
        "loads of 128 x 16 runs of 512 B", 160, 160, "approximate; within a kernel", chunk=8192, runs=16, reads=True
    ),
)
VECTOR = (
    _ns("tensor_reduce max [128, 512] in PSUM", 494, _reduced_bank),
    _ns("tensor_reduce [128, 2048]", 1908, _reduced(2048)),
    _ns("tensor_reduce [128, 128]", 147, _reduced(128)),
    _ns("tensor_copy [128, 512], PSUM to bf16", 447, _copied_by_vector, results=BF16),
    _ns("scalar_tensor_tensor [128, 512], one side in PSUM", 505, _scaled_and_added),
    _ns("tensor_tensor [128, 512], both in SBUF", 1039, _two_in_sbuf),
    _ns("tensor_tensor [128, 512], one in PSUM", 494, _one_in_psum),
    _ns("tensor_scalar [128, 2048]", 1894, _scaled),
    _ns("tensor_scalar_reduce [128, 2112]", 2154, _counted),
)
SCALAR = (
    _ns("activation copy [128, 512], PSUM to bf16", 383, _copied_by_scalar(512), results=BF16),
    _ns("activation copy [128, 128]", 106, _copied_by_scalar(128)),
    _ns("activation exp [128, 512] with the sum, PSUM to bf16", 466, _exp_and_sum(512), results=BF16),
    _ns("activation exp [128, 2048] with the sum", 1574, _exp_and_sum(2048), results=BF16),
    Probe("load of an activation table", 1283, 1283, "ns", _table_load_ns),
)
_NOTES = "notes of a workshop on trn2, NKI 0.6"
TENSOR = (
    _ns("nc_matmul bf16, moving [128, 512]", 219, _product(512)),
    _ns("nc_matmul bf16, moving [128, 256]", 175, _product(256)),
    _ns("nc_matmul bf16, moving [128, 128]", 48, _product(128)),
    _ns("nc_matmul fp32, moving [128, 512]", 1150, _product(512), products=FP32),
    _ns("nc_matmul bf16, 8 columns stationary, moving [128, 512]", 421, _product(512, stationary=8)),
    _ns("nc_matmul bf16, 64 rows, moving [64, 512]", 271, _product(512, rows=64)),
    _ns("nc_matmul bf16, 1 row, moving [1, 512]", 373, _product(512, rows=1)),
    _ns("nc_matmul fp32, 1 column stationary, moving [128, 128]", 233, _product(128, stationary=1), products=FP32),
    _ns("nc_matmul bf16, other stationary each time, moving [128, 128]", 40, _other_product(128)),
    _ns(
        "nc_matmul bf16, other stationary each time, moving [128, 1]",
        87,
        _other_product(1),
        hardware="trn2",
        source=_NOTES,
        doubts="derived from 375 GB/s of weights per core, a single figure",
    ),
)
# By what is probed.
PROBES = {"transfers": TRANSFERS, "Vector": VECTOR, "Scalar": SCALAR, "Tensor": TENSOR}
