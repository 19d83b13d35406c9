# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The launches whose modelled times are frozen: small kernels in the idioms of tutorials, and those of this library.

They run without data. ``python -m tests.simulator.timing.frozen`` writes the table beside this file. It was written
once, before the model knew what a compiler does to a kernel, and is the reference about ``AS_ISSUED``: no change of the
model may change it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nkilib.experimental.loss.profiling import profile_launch
from nkilib.experimental.loss.tiling import Tiling
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ModelParameters, profile, spec, using
from nkilib.simulator.timing.parameters import AS_ISSUED

BF16, FP32 = nl.bfloat16, nl.float32
P = 128
BANK = 512


def matmul_into_zeros(lhs_t: Any, rhs: Any) -> Any:
    """``lhs_t.T @ rhs`` with a PSUM tile of zeros for each tile of the result."""
    (depth, rows), columns = lhs_t.shape, rhs.shape[1]
    result = nl.ndarray((rows, columns), lhs_t.dtype, nl.shared_hbm)
    for m in range(0, rows, P):
        for n in range(0, columns, BANK):
            product = nl.zeros((P, BANK), FP32, nl.psum)
            for k in range(0, depth, P):
                left = nl.load(lhs_t[k : k + P, m : m + P])
                right = nl.load(rhs[k : k + P, n : n + BANK])
                nisa.nc_matmul(product, left, right)
            nl.store(result[m : m + P, n : n + BANK], nl.copy(product, lhs_t.dtype))
    return result


def matmul_from_resident_tiles(lhs: Any, rhs: Any) -> Any:
    """``lhs @ rhs`` with transposes on the Tensor engine, both operands in SBUF before the first product."""
    (rows, depth), columns = lhs.shape, rhs.shape[1]
    result = nl.ndarray((rows, columns), lhs.dtype, nl.shared_hbm)
    left = [nl.load(lhs[m : m + P, :]) for m in range(0, rows, P)]
    right = [nl.load(rhs[k : k + P, :]) for k in range(0, depth, P)]
    for m, tile in enumerate(left):
        out = nl.ndarray((P, columns), lhs.dtype)
        for n in range(0, columns, BANK):
            product = nl.ndarray((P, BANK), FP32, nl.psum)
            for k, moving in enumerate(right):
                stationary = nl.copy(nl.transpose(tile[:, k * P : (k + 1) * P]))
                nisa.nc_matmul(product, stationary, moving[:, n : n + BANK], accumulate=k > 0)
            nisa.activation(out[:, n : n + BANK], nl.gelu, product)
        nl.store(result[m * P : (m + 1) * P, :], out)
    return result


def scan_with_broadcast(x: Any, weights: Any, state: Any) -> Any:
    """A linear recurrence whose inputs are broadcast from one partition to all of them."""
    states, steps = weights.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        tile = nl.load(x[row : row + P, :])
        total = nl.zeros((P, steps), FP32)
        for number in range(states):
            decay = nl.exp(nl.multiply(tile, nl.load(state[row : row + P, number : number + 1])))
            weight = nl.broadcast_to(nl.load(weights[number : number + 1, :]), (P, steps))
            scanned = nl.ndarray((P, steps), FP32)
            nisa.tensor_tensor_scan(scanned, decay, nl.multiply(tile, weight), 0.0, nl.multiply, nl.add)
            total = nl.add(total, scanned)
        nl.store(result[row : row + P, :], total)
    return result


def rmsnorm(x: Any, weight: Any) -> Any:
    """The tutorial's RMSNorm, of functions of nl."""
    rows, hidden = x.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    gain = nl.load(weight.reshape((1, hidden)))
    for row in range(0, rows, P):
        tile = nl.load(x[row : row + P, :])
        mean = nl.mean(nl.square(tile), axis=1, keepdims=True, dtype=FP32)
        normed = nl.multiply(tile, nl.rsqrt(nl.add(mean, 1e-6)))
        nl.store(result[row : row + P, :], nl.multiply(normed, nl.broadcast_to(gain, (P, hidden))))
    return result


def softmax_and_norm(x: Any, weight: Any) -> Any:
    rows, hidden = x.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    gain = nl.load(weight.reshape((1, hidden)))
    for row in range(0, rows, P):
        tile = nl.softmax(nl.silu(nl.load(x[row : row + P, :])))
        nl.store(result[row : row + P, :], nl.rms_norm(tile, gain, 1, hidden))
    return result


def mixed_costs(x: Any, y: Any) -> Any:
    """Vector instructions with and without an operand in PSUM, in both widths."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    columns = x.shape[1]
    for row in range(0, x.shape[0], P):
        a, b = nl.load(x[row : row + P, :]), nl.load(y[row : row + P, :])
        wide = nl.copy(b, FP32)
        bank = nl.ndarray((P, columns), FP32, nl.psum)
        nisa.tensor_tensor(bank, wide, wide, nl.multiply)
        nisa.tensor_tensor(wide, bank, wide, nl.add)
        nisa.tensor_tensor(a, a, b, nl.maximum)
        nisa.tensor_tensor(a[:, ::2], a[:, ::2], b[:, ::2], nl.add)
        nisa.tensor_scalar(a, wide, nl.multiply, 2.0)
        nisa.tensor_copy(bank, a)
        nisa.tensor_scalar(a, bank, nl.add, 1.0)
        column = nl.ndarray((P, 1), FP32)
        nisa.tensor_reduce(column, nl.maximum, a, axis=1)
        nisa.scalar_tensor_tensor(a, b, nl.multiply, column, nl.add, bank)
        nl.store(result[row : row + P, :], a)
    return result


def moves(x: Any) -> Any:
    """Transposes by DMA, and rows of few bytes."""
    rows, columns = x.shape
    result = nl.ndarray((columns, rows), x.dtype, nl.shared_hbm)
    copied = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for row in range(0, rows, P):
        for column in range(0, columns, P):
            flipped = nl.load_transpose2d(x[row : row + P, column : column + P])
            nl.store(result[column : column + P, row : row + P], flipped)
        for column in range(0, columns, 32):
            nl.store(copied[row : row + P, column : column + 32], nl.load(x[row : row + P, column : column + 32]))
    return result, copied


def gather_and_scatter(x: Any, index: Any) -> Any:
    rows, columns = x.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    where = nl.load(index)
    for _ in range(0, rows, P):
        tile = nl.ndarray((P, columns), x.dtype)
        nisa.dma_copy(tile, x.ap([[columns, P], [1, columns]], vector_offset=where, indirect_dim=0))
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(result.ap([[columns, P], [1, columns]], vector_offset=where, indirect_dim=0), tile)
    return result


def fresh_tiles(x: Any) -> Any:
    """More tiles one after the other than SBUF and PSUM hold at a time."""
    rows, columns = x.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for row in range(0, rows, P):
        tile = nl.load(x[row : row + P, :])
        for left in range(0, columns, BANK):
            bank = nl.ndarray((P, BANK), FP32, nl.psum)
            nisa.nc_matmul(bank, tile[:, :P], tile[:, left : left + BANK])
            tile = nl.add(tile, nl.sum(nl.exp(bank), axis=1), dtype=x.dtype)
        nl.store(result[row : row + P, :], tile)
    return result


def of_both_cores(x: Any) -> Any:
    """Each core of two works on its half; they swap a tile and meet at a barrier."""
    rows, columns = x.shape
    core, cores = nl.program_id(), nl.num_programs()
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    mine, other = nl.zeros((P, columns), FP32), nl.ndarray((P, columns), FP32)
    for row in range(core * P, rows, P * cores):
        mine = nl.add(mine, nl.exp(nl.load(x[row : row + P, :])))
        if cores > 1:
            nisa.sendrecv(mine, other, 1 - core, 1 - core, 0)
            mine = nl.maximum(mine, other)
        nl.store(result[row : row + P, :], mine)
    if cores > 1:
        nisa.core_barrier(result, (0, 1))
        nl.store(result[core * P : (core + 1) * P, :], nl.load(result[(1 - core) * P : (2 - core) * P, :]))
    return result


class Case(NamedTuple):
    """A kernel and the arrays without data on which it runs."""

    kernel: Callable[..., Any]
    arguments: Sequence[Any]


CASES = {
    "matmul into zeros": Case(matmul_into_zeros, (spec((512, 256), BF16), spec((512, 1024), BF16))),
    "matmul into zeros, float32": Case(matmul_into_zeros, (spec((256, 256), FP32), spec((256, 1024), FP32))),
    "matmul from resident tiles": Case(matmul_from_resident_tiles, (spec((256, 384), BF16), spec((384, 1024), BF16))),
    "scan with broadcast": Case(
        scan_with_broadcast, (spec((256, 512), FP32), spec((4, 512), FP32), spec((256, 4), FP32))
    ),
    "RMSNorm": Case(rmsnorm, (spec((512, 3072), BF16), spec((3072,), BF16))),
    "RMSNorm, float32": Case(rmsnorm, (spec((256, 1024), FP32), spec((1024,), FP32))),
    "softmax and norm": Case(softmax_and_norm, (spec((384, 2048), BF16), spec((2048,), BF16))),
    "mixed costs": Case(mixed_costs, (spec((256, 1024), BF16), spec((256, 1024), BF16))),
    "moves": Case(moves, (spec((256, 256), BF16),)),
    "gather and scatter": Case(gather_and_scatter, (spec((256, 1024), BF16), spec((128, 1), nl.int32))),
    "fresh tiles": Case(fresh_tiles, (spec((1024, 8192), BF16),)),
    "of both cores": Case(of_both_cores, (spec((1024, 2048), BF16),)),
}


TIMES = Path(__file__).with_name("frozen_times.json")
TARGETS = ("trn1", "trn2", "trn3")
_FOR_TWO_CORES = {"of both cores", "RMSNorm", "matmul into zeros"}
_NOT_ON_TRN1 = {"gather and scatter"}


class LibraryCase(NamedTuple):
    """A launch of a kernel of this library. Its tiling is fixed: the chooser may find others as the model changes."""

    positions: int
    vocabulary: int
    dtype: str
    direction: str
    tiling: Tiling
    extended: bool = False


# The forward has a form that is chosen by its modelled time; the one that was frozen is this.
_FORWARD = {"exact_maximum": True}
# A change of these kernels writes their rows again; it says nothing about the model then.
LIBRARY = {
    "cross-entropy forward, bfloat16": LibraryCase(1024, 32128, "bfloat16", "forward", Tiling(128, 8032)),
    "cross-entropy backward, bfloat16": LibraryCase(1024, 32128, "bfloat16", "backward", Tiling(128, 8032)),
    "cross-entropy forward, float32": LibraryCase(384, 50304, "float32", "forward", Tiling(128, 6288)),
    "cross-entropy backward, float32": LibraryCase(384, 50304, "float32", "backward", Tiling(128, 6288)),
    "extended forward, bfloat16": LibraryCase(200, 128256, "bfloat16", "forward", Tiling(100, 4008), True),
    "extended backward, bfloat16": LibraryCase(200, 128256, "bfloat16", "backward", Tiling(100, 4008), True),
}


class Launch(NamedTuple):
    """A kernel of :data:`CASES` or :data:`LIBRARY` on a generation."""

    case: str
    target: str
    cores: int

    def __str__(self) -> str:
        return f"{self.case}, {self.target}, cores={self.cores}"

    def time_us(self, parameters: ModelParameters) -> float:
        """Modelled, not measured."""
        if self.case in LIBRARY:
            of = LIBRARY[self.case]
            return profile_launch(
                *of[:5],
                target=self.target,
                cores=self.cores,
                parameters=parameters,
                extended=of.extended,
                **_FORWARD if of.direction == "forward" else {},
            ).time_us
        kernel, arguments = CASES[self.case]
        with using(target=self.target):
            return profile(nki.jit(kernel)[self.cores], *arguments, parameters=parameters).time_us


def _cores_of(case: str, target: str) -> tuple[int, ...]:
    return (1, 2) if target != "trn1" and case in _FOR_TWO_CORES else (1,)


def launches() -> Iterator[Launch]:
    """Every kernel on every generation that runs it; of those that cores share, on one core and on two."""
    for target in TARGETS:
        is_first = target == "trn1"
        for case in CASES:
            if not is_first or case not in _NOT_ON_TRN1:
                yield from (Launch(case, target, cores) for cores in _cores_of(case, target))
        if not is_first:
            yield from (Launch(case, target, cores) for case in LIBRARY for cores in (1, 2))


def frozen_launches() -> list[tuple[Launch, float]]:
    """The launches, and what they took, in microseconds."""
    return [(Launch(*row["launch"]), row["time_us"]) for row in json.loads(TIMES.read_text())]


if __name__ == "__main__":
    rows = [json.dumps({"launch": launch, "time_us": launch.time_us(AS_ISSUED)}) for launch in launches()]
    TIMES.write_text("[\n" + ",\n".join(rows) + "\n]\n")
