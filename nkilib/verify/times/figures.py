# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The timed figures: those of docs/explanation/performance_model.md, and launches of the library's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from nkilib.experimental.loss import (
    choose_tiling,
    cross_entropy_backward,
    cross_entropy_forward,
    extended_cross_entropy_forward,
)
from nkilib.nki import nki, nl
from nkilib.verify.times import kernels, published
from nkilib.verify.times.figure import Figure
from nkilib.verify.times.timed import Shape, Timed

_US: Final = 1e-6
_NS: Final = 1e-9
# The largest accepted deviation of the model, by the goals of docs/explanation/performance_model.md.
CLOSE: Final = 1.15
ROUGH: Final = 1.30
_GB_PER_S: Final = 368e9

_rmsnorm_quant: Final = nki.jit(published.rmsnorm_quant)
_matmul: Final = nki.jit(published.matmul)
_tiled_matmul: Final = nki.jit(published.tiled_matmul)

# Links of a chain.
_FEW: Final = 8
_MANY: Final = 40


def _chain(title: str, kernel: Any, shape: Shape, published_ns: float | None) -> Figure:
    many, few = (Timed(name, kernel, {"x": shape}, {"links": n}) for name, n in (("many", _MANY), ("few", _FEW)))
    return Figure(
        f"time: {title}",
        False,
        "a link of a chain, in which each waits for the one before",
        many,
        few,
        _MANY - _FEW,
        None if published_ns is None else published_ns * _NS,
        CLOSE,
    )


def _chains() -> Iterator[Figure]:
    for columns, ns in ((4096, 3713.0), (128, 401.0)):
        shape = Shape((published.PARTITIONS, columns), "bfloat16")
        yield _chain(f"exp, N={columns}", kernels.chain_of_exp, shape, ns)
    wide = Shape((published.PARTITIONS, 16384), "bfloat16")
    yield _chain("tensor_scalar_reduce, N=16384", kernels.chain_of_tensor_scalar_reduce, wide, 17250.0)
    yield _chain("activation_reduce, N=16384", kernels.chain_of_activation_reduce, wide, 14000.0)
    # A link is a load with its latency. Only the time of its rows is published, which no difference of launches shows.
    for title, sizes in (("load [4, 4096] bf16, one DMA engine", (4, 4096)), ("load [128, 128] bf16", (128, 128))):
        yield _chain(title, kernels.chain_of_loads, Shape(sizes, "bfloat16"), None)


def _rates() -> Iterator[Figure]:
    """Yield loads of rows of several lengths, compared with the published share of the peak rate."""
    few, many = 16, 32
    for row_bytes, percent in ((256, 10), (512, 21), (1024, 42), (2048, 81), (4096, 97)):
        many_loads, few_loads = (
            Timed(
                name,
                kernels.rows_loaded,
                {"x": Shape((links * published.PARTITIONS, row_bytes // 2), "bfloat16")},
                {"links": links},
            )
            for name, links in (("many", many), ("few", few))
        )
        seconds = published.PARTITIONS * row_bytes / (_GB_PER_S * percent / 100)
        yield Figure(
            f"time: DMA rate of one queue, rows of {row_bytes} B",
            False,
            "a load of 128 rows, from one queue, none of which waits for another",
            many_loads,
            few_loads,
            many - few,
            seconds,
            ROUGH,
        )


def _whole(title: str, timed: Timed, published_seconds: float | None, within: float, is_quick: bool = False) -> Figure:
    return Figure(f"time: {title}", is_quick, "a whole launch", timed, None, 1, published_seconds, within)


def _published_kernels() -> Iterator[Figure]:
    products = {"lhs_t": Shape((8192, 4096), "float32"), "rhs": Shape((8192, 8192), "float32")}
    yield _whole("matmul, every tile loaded", Timed("matmul", _tiled_matmul, products), 39.89e-3, CLOSE)
    yield _whole("matmul, in blocks", Timed("matmul", _matmul, products), 28.2e-3, CLOSE)
    for rows, hidden, us in (
        (2048, 8192, 458.2),
        (2048, 16384, 866.81),
        (32768, 8192, 6287.0),
        (32768, 16384, 13214.4),
    ):
        shapes = {"x": Shape((rows, hidden), "bfloat16"), "gamma": Shape((1, hidden), "bfloat16")}
        timed = Timed("rmsnorm", _rmsnorm_quant, shapes, cores=2)
        yield _whole(f"RMSNorm-Quant, S={rows // 1024}K, H={hidden}", timed, us * _US, ROUGH)


def _losses() -> Iterator[Figure]:
    """Yield the plain kernels with the tiling of `choose_tiling`."""
    for positions, vocabulary in ((512, 32768), (4096, 32128), (4096, 129280)):
        shapes = {"logits_hbm": Shape((positions, vocabulary), "bfloat16"), "targets_hbm": Shape((positions,), "int32")}
        for direction, kernel, further, options in (
            ("forward", cross_entropy_forward, {}, {"lse_dtype": nl.float32}),
            ("backward", cross_entropy_backward, {"lse_state_hbm": Shape((positions,), "float32")}, {"inplace": True}),
        ):
            tiling = choose_tiling(positions, vocabulary, "bfloat16", direction)._asdict()
            timed = Timed(direction, kernel, {**shapes, **further}, {**tiling, **options}, 2)
            is_quick = (positions, direction) == (512, "forward")
            yield _whole(f"cross_entropy_{direction}, {positions} x {vocabulary}", timed, None, ROUGH, is_quick)


def _token_scores() -> Iterator[Figure]:
    """Yield log-probability and entropy of every position, which recipes of reinforcement learning need."""
    for positions, vocabulary in ((512, 32768), (4096, 129280)):
        shapes = {"logits_hbm": Shape((positions, vocabulary), "bfloat16"), "targets_hbm": Shape((positions,), "int32")}
        tiling = choose_tiling(positions, vocabulary, "bfloat16", "forward", extended=True)._asdict()
        timed = Timed("scores", extended_cross_entropy_forward, shapes, {**tiling, "with_entropy": True}, 2)
        yield _whole(f"log-probability and entropy, {positions} x {vocabulary}", timed, None, ROUGH)


def figures() -> list[Figure]:
    """Return all figures, in the order in which they are timed."""
    return [*_losses(), *_token_scores(), *_chains(), *_rates(), *_published_kernels()]
