# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the negative log-likelihood: elements at targets are gathered, or the input is streamed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from nkilib.core.hardware import div_ceil
from nkilib.experimental.loss import nll_loss_backward, nll_loss_forward
from nkilib.experimental.loss.nll.few_classes import ClassTiling, is_streamed
from nkilib.experimental.loss.nll.host import (
    nll_loss_bound,
    nll_loss_gradient_bound,
    nll_loss_gradient_reference,
    nll_loss_reference,
)
from nkilib.experimental.loss.skeletons.indexed import Shape, batches_of_block, blocks_of
from nkilib.nki import nl
from tests.experimental.plans.coverage import (
    TYPES,
    Branches,
    Limits,
    PlanFamily,
    Size,
    assert_within,
    count_class,
    cut_class,
)

_ROWS = (1, 2, 3, 128, 129, 255, 256, 257, 1000, 4096, 5000, 131072)
_CLASSES = (2, 3, 10, 21, 100, 256, 257, 1000, 32000, 128256)
_PLACES = (1, 7, 100, 128, 300, 4096, 8192, 65536, 262144)
_SAMPLED = ((1, 2, 129, 1000, 5000), (2, 21, 256, 1000), (1, 100, 4096))
_MOST_ELEMENTS = 2**31
_IGNORED = -100
# Batches that are gathered together: nkilib.experimental.loss.nll.gathered.
_TOGETHER = 16


def branches(size: Size) -> Branches:
    """Name the branches of both directions: forward and backward have one plan."""
    shape, dtype = Shape(size["rows"], size["classes"], size["places"]), getattr(nl, size["dtype"])
    is_stream = is_streamed(shape, dtype)
    taken: Branches = {"way": "streamed" if is_stream else "gathered"}
    if is_stream:
        tiling = ClassTiling.of(shape, dtype)
        tiles = tiling.tiles()
        taken["layout"] = _layout(tiling)
        taken["class_groups"] = cut_class(len(tiling.groups), shape.classes % tiling.classes != 0)
        taken["ends"] = "".join(sorted({_kind_of_tile(tile.flat.rows, tile.flat.columns) for tile in tiles}))
        units = tiles[-1].part + 1
        taken["tiles_share_sums"] = units < len(tiles)
    else:
        blocks = blocks_of(shape)
        batches = [batch for block in blocks[:: size["cores"]] for batch in batches_of_block(shape, block)]
        taken["layout"] = "along rows" if shape.is_along_rows else "along places"
        taken["ends"] = len({batch.positions for batch in batches} | {blocks[-1].rows, blocks[0].rows}) > 2
        taken["rounds"] = count_class(div_ceil(len(batches), _TOGETHER))
        units = len(blocks)
    if size["cores"] == 1:  # tiles and blocks do not depend on it
        return {"cores": "one", "way": taken["way"], "layout": taken["layout"]}
    if units == 1:
        return {"cores": "two, one without positions", "way": taken["way"], "layout": taken["layout"]}
    return {**taken, "cores": "two"}


def _layout(tiling: ClassTiling) -> str:
    if not tiling.has_whole_rows:
        return "places of a row"
    return "whole rows" if tiling.positions > tiling.shape.places else "a row in a partition"


def _kind_of_tile(partitions: int, columns: int) -> str:
    return "w" if partitions == 128 else "1" if partitions == 1 and columns > 1 else "s"


def _sizes(rows: tuple[int, ...], classes: tuple[int, ...], places: tuple[int, ...]) -> Iterator[Size]:
    for dtype, shape in product(("bfloat16", "float32"), product(rows, classes, places)):
        if prod(shape) <= _MOST_ELEMENTS and shape[0] * shape[2] <= 2**20 and shape[1] * shape[2] <= 2**30:
            for cores in (1, 2):
                yield _size(dtype, shape, cores)


def _size(dtype: str, shape: tuple[int, ...], cores: int) -> Size:
    return {"dtype": dtype, "rows": shape[0], "classes": shape[1], "places": shape[2], "cores": cores}


def sizes(wide: bool) -> Iterator[Size]:
    """Yield sizes of classifiers, language models and segmentation."""
    yield from _sizes(_ROWS, _CLASSES, _PLACES) if wide else _sizes(*_SAMPLED)
    # Labels of the words of many sentences: more tiles than a partition keeps sums of.
    yield from (_size("bfloat16", (5000, 20, places), cores) for places in (2000, 2048) for cores in (1, 2))


def shrunk_sizes() -> Iterator[tuple[Size, Limits]]:
    """Yield sizes under limits of few sums."""
    for places, cores in product((250, 256), (1, 2)):
        yield _size("bfloat16", (40, 5, places), cores), {"parts": 16}


def cost(size: Size) -> float:
    """Elements, and what a position costs by itself."""
    return float(size["rows"] * size["places"] * (size["classes"] + 30))


def check(size: Size) -> None:
    """Launches the way that is chosen, within the derived bounds."""
    check_with_tiling(size)


def check_with_tiling(size: Size, streamed: bool | None = None) -> tuple[Any, ...]:
    """Launches either way: losses that are stored, their weighted mean, and the gradients; returns all results."""
    draw, shape = np.random.default_rng(size["rows"]), (size["rows"], size["classes"], size["places"])
    x = (-10.0 * draw.random(shape, np.float32)).astype(TYPES[size["dtype"]])
    targets = draw.integers(0, size["classes"], (shape[0], shape[2])).astype(np.int32)
    targets[1::7] = _IGNORED
    weight = draw.uniform(0.5, 2.0, (size["classes"],)).astype(np.float32)
    arguments: dict[str, Any] = {"class_weight_hbm": weight, "ignore_index": _IGNORED}
    reference = nll_loss_reference(x, targets, weight, _IGNORED)
    way = is_streamed(Shape(*shape), getattr(nl, size["dtype"])) if streamed is None else streamed
    results = []
    for reduction in ("none", "mean"):
        options = {**arguments, "reduction": reduction, "streamed": streamed}
        loss, total = nll_loss_forward[size["cores"]](x, targets, **options)
        exact = reference.reduced(reduction)
        bound = nll_loss_bound(reference, shape, reduction, x.dtype, way)
        assert_within(f"{reduction} of {size}", loss.reshape(exact.shape), exact, bound)
        weights = np.array([reference.weights.sum()])
        assert_within(f"total weight of {size}", total, weights, 2.0**-18 * weights)
        results += [loss, total, _check_gradient(size, x, targets, options, reference)]
    return tuple(results)


def _check_gradient(size: Size, x: Any, targets: Any, options: dict[str, Any], reference: Any) -> Any:
    draw = np.random.default_rng(4)
    grad_loss, upstream = draw.standard_normal(targets.shape).astype(np.float32), None
    if options["reduction"] == "mean":
        grad_loss, total = np.array([1.25], np.float32), np.array([reference.weights.sum()], np.float32)
        options = {**options, "total_weight_hbm": total}
        upstream = grad_loss.astype(np.float64) / total.astype(np.float64)
    gradient = nll_loss_backward[size["cores"]](x, targets, grad_loss, **options)
    exact = nll_loss_gradient_reference(
        x, targets, reference.weights, grad_loss.astype(np.float64) if upstream is None else upstream
    )
    assert_within(f"gradient of {size}", gradient, exact, nll_loss_gradient_bound(exact, x.dtype))
    return gradient


FAMILY = PlanFamily(
    name="nll_loss",
    kernels=lambda size: (nll_loss_forward, nll_loss_backward),
    sizes=sizes,
    branches=branches,
    cost=cost,
    check=check,
    shrunk_sizes=shrunk_sizes,
)
