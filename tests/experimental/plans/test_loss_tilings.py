# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results do not depend on how a launch is cut up: one input under many legal tilings, against float64 and each other.

Every launch is within the bound of its family, so that two results are within two bounds of each other. Where each
element stands alone, or sums are taken in one order whatever the tiling is, their bits are equal as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from tests.experimental.plans import cross_entropy, ctc, distillation, elementwise, margins, nll_loss, rowwise
from tests.experimental.plans.coverage import Size

KILOBYTE = 1024


def bits_of(results: Any) -> list[bytes]:
    """Return the bytes of each result."""
    every = results if isinstance(results, tuple | list) else (results,)
    return [np.asarray(result).tobytes() for result in every]


def assert_equal_bits(launches: list[list[bytes]]) -> None:
    """Assert that all launches, of which there are several, are bitwise identical."""
    assert len(launches) > 1 and all(launch == launches[0] for launch in launches)


# Chunks: one; two, whole and ragged; several; more than the statistics of a batch have columns.
_CHUNKS = (700, 350, 333, 100, 5)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ("plain", "bfloat16"),
        ("plain", "float32"),
        ("recipe", "float32"),
        ("probabilities", "bfloat16"),
        ("entropy", "bfloat16"),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_cross_entropy(direction: str, options: str, dtype: str) -> None:
    """Neither batches nor chunks matter, nor whether a maximum or a shift is taken; batches change no bit."""
    size: Size = {"target": "trn2", "direction": direction, "options": options, "cores": 2, "dtype": dtype}
    size |= {"positions": 140, "vocabulary": 700}
    has_shift = direction == "forward" and options in ("plain", "entropy")
    for chunk_size in _CHUNKS:
        forms: list[dict[str, bool]] = [{}]
        if has_shift and chunk_size < 700:
            forms = [{"exact_maximum": True}, {"exact_maximum": False}]
        for form in forms:
            tiling = {"chunk_size": chunk_size, **form}
            results = bits_of(cross_entropy.check_with_tiling(size, positions_per_batch=64, **tiling))
            if chunk_size == 333:
                others = [cross_entropy.check_with_tiling(size, positions_per_batch=n, **tiling) for n in (13, 128)]
                assert_equal_bits([results, *(bits_of(other) for other in others)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_each_element_of_a_gradient_of_cross_entropy(dtype: str) -> None:
    """Stands alone, so that chunks change no bit."""
    size: Size = {"target": "trn2", "direction": "backward", "options": "plain", "cores": 2, "dtype": dtype}
    size |= {"positions": 140, "vocabulary": 700}
    tilings = [{"positions_per_batch": 64, "chunk_size": chunk_size} for chunk_size in _CHUNKS]
    assert_equal_bits([bits_of(cross_entropy.check_with_tiling(size, **tiling)) for tiling in tilings])


_OF_ELEMENTS = [
    ("mse_loss", "both", "elements"),
    ("mse_loss", "stored", "elements"),
    ("mse_loss, weighted", "summed", "rows"),
    ("mse_loss, weighted", "backward", "columns"),
    ("binary_cross_entropy_with_logits, both weights", "summed", "elements"),
    ("binary_cross_entropy_with_logits, both weights", "backward", "rows"),
    ("kl_div", "summed", "elements"),
    ("kl_div", "backward", "elements"),
]


@pytest.mark.parametrize("shape", [(150, 1100), (3000, 20)])
@pytest.mark.parametrize(("kind", "launch", "weights"), _OF_ELEMENTS)
def test_elementwise_losses(kind: str, launch: str, weights: str, shape: tuple[int, int]) -> None:
    size: Size = {"kind": kind, "launch": launch, "weights": weights, "dtype": "bfloat16", "cores": 2}
    size |= {"rows": shape[0], "columns": shape[1]}
    tilings = ((512, 2), (512, 3), (200, 2), (700, 3), (1536, 2), (3072, 3))
    results = [
        bits_of(elementwise.check_with_tiling(size, columns=columns, buffers=buffers)) for columns, buffers in tilings
    ]
    assert_equal_bits(results if launch in ("stored", "backward") else results[:2])


@pytest.mark.parametrize("launch", ["forward", "backward"])
@pytest.mark.parametrize(
    "kind", ["triplet_margin_loss", "cosine_embedding_loss", "multilabel_soft_margin_loss, weighted"]
)
def test_row_wise_losses(kind: str, launch: str) -> None:
    size: Size = {"kind": kind, "launch": launch, "dtype": "float32", "cores": 2}
    long: Size = {**size, "rows": 300, "columns": 700}
    short: Size = {**size, "rows": 1500, "columns": 9}
    tilings = [(long, {"columns": columns, "each": 1}) for columns in (700, 699, 512, 350, 64)]
    tilings += [(long, {"columns": 700, "each": 2}), (short, {"columns": 4, "each": 1})]
    tilings += [(short, {"columns": 9, "each": rows}) for rows in (1, 2, 3, 5, 12)]
    for of_size, tiling in tilings:
        launches = [rowwise.check_with_tiling(of_size, **tiling, buffers=buffers) for buffers in (2, 3)]
        assert_equal_bits([bits_of(launch) for launch in launches])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kernel", ["divergence", "mixture"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_distillation(direction: str, kernel: str, dtype: str) -> None:
    size: Size = {"direction": direction, "kernel": kernel, "dtype": dtype, "cores": 2}
    size |= {"positions": 140, "vocabulary": 1100}
    for chunk_size in (1100, 1024, 550, 500, 128, 31):
        distillation.check_with_tiling(size, chunk_size=chunk_size)


@pytest.mark.parametrize("kilobytes", [10, 16, 40, 200])
def test_distillation_in_groups_of_any_size(kilobytes: int) -> None:
    """The groups are chunks that are worked on together; rows are kept or read twice."""
    size: Size = {"kernel": "mixture", "dtype": "bfloat16", "cores": 2, "positions": 140, "vocabulary": 1100}
    with shrunk(PlanLimits(sbuf_bytes=kilobytes * KILOBYTE)):
        for direction in ("forward", "backward"):
            distillation.check_with_tiling({**size, "direction": direction}, chunk_size=64)


@pytest.mark.parametrize("shape", [(300, 21, 1), (5, 21, 300), (140, 10, 7), (1, 200, 300), (300, 256, 3)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nll_loss(shape: tuple[int, int, int], dtype: str) -> None:
    """Stored losses are bitwise identical either way."""
    rows, classes, places = shape
    size: Size = {"dtype": dtype, "rows": rows, "classes": classes, "places": places, "cores": 2}
    ways = [nll_loss.check_with_tiling(size, streamed) for streamed in (True, False, None)]
    assert_equal_bits([bits_of(way[:1]) for way in ways])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_multi_margin_loss(dtype: str) -> None:
    size: Size = {"dtype": dtype, "rows": 300, "classes": 700, "cores": 2}
    for chunk_size in (4096, 701, 700, 699, 350, 256, 100, 31):
        margins.check_multi_margin_with_tiling(size, chunk_size=chunk_size)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_multilabel_margin_loss(direction: str) -> None:
    """Groups of one block of rows and of several are bitwise identical."""
    size: Size = {"direction": direction, "dtype": "float32", "rows": 700, "classes": 20, "cores": 2}
    results = []
    for limits in (PlanLimits(), PlanLimits(sbuf_bytes=1024), PlanLimits(sbuf_bytes=1536)):
        with shrunk(limits):
            results.append(bits_of(margins.check_multilabel(size)))
    assert_equal_bits(results)


@pytest.mark.parametrize(("steps", "labels", "room"), [(75, 9, (200, 28, 20)), (40, 70, (200, 40, 22))])
def test_ctc_loss(steps: int, labels: int, room: tuple[int, ...]) -> None:
    """Chunks of many and of few time steps change no bit of losses and gradients."""
    size: Size = {"direction": "backward", "dtype": "float32", "sequences": 3, "classes": 6, "cores": 2}
    size |= {"steps": steps, "labels": labels}
    results, chunks = [], set()
    for kilobytes in room:
        with shrunk(PlanLimits(sbuf_bytes=kilobytes * KILOBYTE)):
            chunks.add(ctc.plan_of(size).chunk)
            results.append(bits_of(ctc.check_launch(size)))
    assert len(chunks) == len(room)
    assert_equal_bits(results)
