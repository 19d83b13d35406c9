# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Several partitions a position, and several positions a partition: results within the bounds, bits that depend on the
layout alone, and which launches have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import choose_tiling, cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss
from nkilib.simulator import OutOfRangeError, profile, spec, using

from . import extended_checks, loss_checks
from .loss_inputs import BF16, FP32, Array, confident_batch, hard_batch, normal_batch

# By name: the keywords of a layout.
SPLIT, PACKED = "partitions_per_position", "positions_per_partition"
LAYOUTS: dict[str, dict[str, int]] = {
    "split": {SPLIT: 4},
    "split widely": {SPLIT: 16},
    "packed": {PACKED: 2},
    "packed closely": {PACKED: 256},
}
# Positions, classes: one core without any; a tail of the last part; several batches, and the rest of their positions.
FEW, MANY = ((1, 33), (2, 100), (3, 2077), (33, 50), (65, 33)), ((1, 33), (3, 65), (127, 50), (129, 65), (1027, 17))
INF = np.inf


def _cut(vocabulary: int) -> dict[str, int]:
    return {"positions_per_batch": 128, "chunk_size": vocabulary}


@pytest.mark.parametrize(
    ("layout", "positions", "vocabulary"),
    [(name, *size) for name in LAYOUTS for size in (FEW if name.startswith("split") else MANY)],
)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["float32", "bfloat16"])
def test_results_are_within_the_bounds(layout: str, positions: int, vocabulary: int, dtype: Any) -> None:
    logits, targets = normal_batch(positions, vocabulary, seed=positions)
    logits, more = logits.astype(dtype), {**_cut(vocabulary), **LAYOUTS[layout]}
    _, lse = loss_checks.check_forward(logits, targets, dtype, FP32, cores=2, exact_maximum=True, **more)
    reduction = "sum" if positions % 2 else "mean"
    loss_checks.check_backward(logits, targets, lse, dtype, reduction=reduction, cores=2, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hard_rows(layout: str) -> None:
    for logits, targets in (hard_batch(160), confident_batch(40, 130, 0.999)):
        more = {**_cut(logits.shape[1]), **LAYOUTS[layout]}
        _, lse = loss_checks.check_forward(logits, targets, FP32, FP32, cores=2, exact_maximum=True, **more)
        loss_checks.check_backward(logits, targets, lse, FP32, inplace=False, cores=2, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrong", ["zero", "sign", "transposed"])
def test_wrong_results_are_beyond_the_bounds(layout: str, wrong: str) -> None:
    logits, targets = normal_batch(40, 40)
    more = {**_cut(40), **LAYOUTS[layout]}
    loss, lse = loss_checks.forward(logits, targets, cores=2, dtype=loss_checks.as_nl(FP32), **more)
    gradient = loss_checks.backward(logits.copy(), targets, lse, cores=2, dtype=loss_checks.as_nl(FP32), **more)
    broken = {"zero": np.zeros_like, "sign": np.negative, "transposed": lambda a: np.ascontiguousarray(a.T[::-1])}[
        wrong
    ]
    types: dict[str, Any] = {"loss_dtype": FP32, "lse_dtype": FP32}
    with pytest.raises(AssertionError, match="times the bound"):
        loss_checks.assert_loss_and_lse(broken(loss), broken(lse), logits, targets, FP32, **types)
    with pytest.raises(AssertionError, match="times the bound"):
        loss_checks.assert_gradient(broken(gradient), logits, targets, lse, "mean", FP32, gradient_dtype=FP32)


def _results(logits: Array, targets: Array, cores: int, **more: Any) -> list[Array]:
    """Loss, log-sum-exp and gradient, a row for each position."""
    more = {**_cut(logits.shape[1]), "dtype": loss_checks.as_nl(FP32), **more}
    loss, lse = loss_checks.forward(logits, targets, cores=cores, **more)
    gradient = loss_checks.backward(logits.copy(), targets, lse, cores=cores, reduction="sum", **more)
    return [loss, lse, gradient]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_of_a_position_depend_on_nothing_else(layout: str) -> None:
    positions = 60 if layout == "split widely" else 300
    logits, targets = normal_batch(positions, 70)
    every = _results(logits, targets, 2, **LAYOUTS[layout])
    for cores, first, end in ((1, 0, positions), (2, 5, positions), (2, 17, 18), (1, 40, 57)):
        some = _results(logits[first:end].copy(), targets[first:end].copy(), cores, **LAYOUTS[layout])
        for ours, theirs in zip(every, some, strict=True):
            assert ours[first:end].tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["float32", "bfloat16"])
def test_packed_positions_and_all_gradients_have_the_bits_of_one_position_a_partition(dtype: Any) -> None:
    logits, targets = normal_batch(300, 70)
    logits[3, 5], logits[200], logits[201, 7] = INF, -INF, np.nan
    cut: dict[str, Any] = {**_cut(70), "dtype": loss_checks.as_nl(dtype), "exact_maximum": True}
    with np.errstate(all="ignore"):
        usual = loss_checks.forward(logits.astype(dtype), targets, cores=2, **cut)
        packed = loss_checks.forward(logits.astype(dtype), targets, cores=2, **cut, positions_per_partition=2)
        assert [result.tobytes() for result in usual] == [result.tobytes() for result in packed]
        del cut["exact_maximum"]
        gradients = [
            loss_checks.backward(logits.astype(dtype), targets, usual[1], cores=2, **cut, **layout).tobytes()
            for layout in ({}, *LAYOUTS.values())
        ]
    assert len(set(gradients)) == 1


_WEIGHTS = np.linspace(0.25, 2.0, 70).astype(FP32)
OPTIONS: dict[str, ExtendedLoss] = {
    "ignored": ExtendedLoss(ignore_index=3),
    "weights": ExtendedLoss(ignore_index=3, class_weight=_WEIGHTS),
    "square": ExtendedLoss(lse_square_scale=1e-2),
    "temperature": ExtendedLoss(ignore_index=3, temperature=0.5),
    "temperatures": ExtendedLoss(ignore_index=3, temperature=np.linspace(0.5, 3.0, 150).astype(FP32)),
    "smoothing": ExtendedLoss(ignore_index=3, label_smoothing=0.1),
    "smoothed weights": ExtendedLoss(class_weight=_WEIGHTS, label_smoothing=0.1),
    "cap": ExtendedLoss(logit_softcap=20.0),
    "capped smoothing": ExtendedLoss(None, 3, 0.1, 0.5, 1e-2, np.linspace(0.5, 3.0, 150).astype(FP32)),
}


@pytest.mark.parametrize("layout", ["split", "packed"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_the_extended_kernels(layout: str, name: str) -> None:
    options, (logits, targets) = OPTIONS[name], normal_batch(150, 70)
    targets[::9] = options.ignore_index if options.ignore_index >= 0 else targets[::9]
    how = extended_checks.Launch(FP32, positions_per_batch=128, chunk_size=70)
    logits[5, 3:40], logits[7, 1:] = -INF, -INF
    wanted = {"with_log_sum": True, "with_entropy": True}
    results = extended_checks.check_forward(logits, targets, options, how, **wanted, **LAYOUTS[layout])
    rng = np.random.default_rng(1)
    grad_loss, *others = (rng.normal(size=150).astype(FP32) for _ in range(4))
    statistics = {f"{key}_hbm": results[key] for key in ("maximum", "log_sum")}
    entropy = {"entropy_hbm": results["entropy"]}
    for upstream, more in (
        (extended_checks.Upstream(grad_loss), {}),
        (extended_checks.Upstream(grad_loss, *others[:2]), statistics),
        (extended_checks.Upstream(grad_loss, *others), {**statistics, **entropy}),
        (extended_checks.Upstream(grad_loss, None, None, others[2]), entropy),
    ):
        extended_checks.check_backward(
            logits, targets, results["lse"], upstream, options, how, **more, **LAYOUTS[layout]
        )


@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"logit_softcap": 30.0}], ids=["smoothing", "cap"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_hard_rows_of_options(layout: str, options: dict[str, float]) -> None:
    recipe = ExtendedLoss(**options)
    for logits, targets in (hard_batch(30), confident_batch(16, 131, 0.999)):
        how = extended_checks.Launch(FP32, positions_per_batch=128, chunk_size=logits.shape[1])
        results = extended_checks.check_forward(logits, targets, recipe, how, **LAYOUTS[layout])
        upstream = extended_checks.Upstream(np.linspace(0.5, 2.0, len(targets)).astype(FP32))
        extended_checks.check_backward(logits, targets, results["lse"], upstream, recipe, how, **LAYOUTS[layout])


_MORE_PIECES: dict[str, dict[str, float]] = {
    "off": {},
    "smoothing": {"label_smoothing": 0.1},
    "cap": {"logit_softcap": 20.0},
}


@pytest.mark.parametrize("options", _MORE_PIECES.values(), ids=_MORE_PIECES)
def test_more_pieces_than_buffers(options: dict[str, float]) -> None:
    """A piece is loaded into the buffer of an earlier one, which is finished while later ones have begun."""
    logits, targets = normal_batch(2, 19_301)
    how = extended_checks.Launch(FP32, cores=1, positions_per_batch=128, chunk_size=8192)
    recipe, upstream = ExtendedLoss(**options), extended_checks.Upstream(np.ones(2, FP32))
    results = extended_checks.check_forward(logits, targets, recipe, how, partitions_per_position=2)
    lse = results["lse"]
    extended_checks.check_backward(logits, targets, lse, upstream, recipe, how, partitions_per_position=2)
    loss_checks.check_backward(logits, targets, lse, FP32, cores=1, chunk_size=8192, partitions_per_position=2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", [-1, 40, 2**31 - 1])
def test_an_invalid_target_is_an_access_out_of_range(layout: str, target: int) -> None:
    logits, targets = normal_batch(300, 40)
    targets[201] = target
    more = {**_cut(40), **LAYOUTS[layout]}
    expected = loss_checks.names_row_and_target(201, target)
    with pytest.raises(OutOfRangeError, match=expected):
        loss_checks.forward(logits, targets, cores=2, **more)
    gradient = logits.copy()
    with pytest.raises(OutOfRangeError, match=expected):
        loss_checks.backward(gradient, targets, np.ones(300, FP32), cores=2, **more)


def _places(positions: int, vocabulary: int, **more: Any) -> bool:
    """Whether a forward of these sizes has the layout that it asks for."""
    arrays = spec((positions, vocabulary), "float32"), spec((positions,), "int32")
    with using(target="trn2"):
        launch = profile(cross_entropy_forward[2], *arrays, **_cut(min(vocabulary, 8192)), **more)
    return any("cross_entropy/layouts/" in event.place for event in launch.instructions)


def test_launches_without_the_layout_have_one_position_a_partition() -> None:
    assert _places(32, 300, partitions_per_position=4)
    assert _places(32, 300, positions_per_partition=2)
    assert not _places(32, 3, partitions_per_position=4)
    assert not _places(32, 5000, positions_per_partition=2)
    assert not _places(2000, 32000, exact_maximum=False, partitions_per_position=2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({SPLIT: 3}, "partitions_per_position must be a power of two from 1 to 128, got 3"),
        ({SPLIT: 256}, "partitions_per_position must be a power of two from 1 to 128, got 256"),
        ({PACKED: 0}, "positions_per_partition must be an integer from 1 to 256, got 0"),
        ({SPLIT: 2, PACKED: 2}, "positions_per_partition must be 1 with several partitions_per_position"),
    ],
)
def test_refused_layouts(more: dict[str, int], message: str) -> None:
    logits, targets = normal_batch(4, 300)
    with pytest.raises(AssertionError, match=f"cross_entropy_forward: {message}"):
        loss_checks.forward(logits, targets, cores=2, **_cut(300), **more)
    with pytest.raises(AssertionError, match=f"cross_entropy_backward: {message}"):
        loss_checks.backward(logits, targets, np.ones(4, FP32), cores=2, **_cut(300), **more)


def test_the_choice_of_a_layout() -> None:
    def layout(positions: int, vocabulary: int, dtype: str = "bfloat16", direction: str = "forward") -> tuple[int, int]:
        return choose_tiling(positions, vocabulary, dtype, direction)[2:]

    assert layout(32, 32000) == (8, 1)
    assert layout(33, 32000) == (4, 1)
    assert layout(128, 32000) == (2, 1)
    assert layout(129, 32000) == (1, 1)
    assert layout(1, 1000) == (4, 1)
    assert layout(300, 50257) == (1, 1)
    assert layout(300, 50257, direction="backward") == (2, 1)
    assert layout(300, 128256) == (4, 1)
    assert layout(150, 32000, "float32") == layout(150, 32000, "float32", "backward") == (4, 1)
    assert layout(300, 16384, "float32", "backward") == (2, 1)
    assert layout(258, 16384, "float32", "backward") == (1, 1)  # one position is left over for another batch
    assert layout(1, 500) == (1, 2)
    assert layout(8192, 256) == (1, 32)
    assert layout(10**6, 256) == (1, 256)
    assert layout(1024, 4096) == (1, 4)
    assert layout(1022, 4096) == (1, 1)  # positions are left over for another batch
    assert layout(512, 3000) == (1, 2)
    assert layout(512, 4096) == (1, 1)
    assert layout(256, 1500) == (1, 1)
    assert layout(256, 1500, direction="backward") == (1, 2)
    assert layout(512, 4096, "float32", "backward") == (1, 2)
    assert choose_tiling(512, 4096, "float32", "backward", extended=True)[2:] == (1, 1)
    assert layout(1024, 4096, "float32") == (1, 1)
    assert layout(10**6, 4097) == (1, 1)
