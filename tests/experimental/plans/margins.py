# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the margins between classes: of one target a row, and of several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from nkilib.core.hardware import div_ceil
from nkilib.core.host.error_bounds import UNIT, reduction_factor, rounding
from nkilib.core.rows.stream import num_chunks
from nkilib.experimental.loss import (
    multi_margin_loss_backward,
    multi_margin_loss_forward,
    multilabel_margin_loss_backward,
    multilabel_margin_loss_forward,
)
from nkilib.experimental.loss.multi_margin import registry_entry as multi_margin_bounds
from nkilib.experimental.loss.multi_margin.launch import BUFFERS, choose_multi_margin_tiling
from nkilib.experimental.loss.multi_margin.registry_entry import MultiMarginReference
from nkilib.experimental.loss.multilabel_margin import registry_entry as multilabel_bounds
from nkilib.experimental.loss.multilabel_margin.kernels import BACKWARD_BYTES_OF_CLASS, FORWARD_BYTES_OF_CLASS
from nkilib.experimental.loss.multilabel_margin.launch import Launch
from nkilib.experimental.loss.multilabel_margin.registry_entry import MultilabelMarginReference
from nkilib.experimental.loss.skeletons.indexed import Shape, blocks_of
from nkilib.simulator import spec
from tests.experimental.plans.coverage import (
    TYPES,
    Branches,
    Limits,
    PlanFamily,
    Size,
    assert_within,
    count_class,
    cut_class,
    on_core,
)

_ROWS = (1, 2, 3, 128, 255, 256, 257, 512, 513, 700, 1000, 4096, 5000, 20000, 131072)
_CLASSES = (1, 2, 10, 100, 1000, 2048, 4096, 4097, 5000, 8192, 10000, 32000, 128256, 262144)
_LABELS = (1, 2, 20, 100, 500, 1000, 2000, 4096)
_SAMPLED_ROWS = (1, 2, 257, 1000, 131072)
_SAMPLED_CLASSES = (2, 100, 1000, 4096)
_MARGIN = 0.75


def multi_margin_branches(size: Size) -> Branches:
    """Name both cores' branches, since blocks do not depend on cores. Both directions and both p have one plan."""
    shape = Shape(size["rows"], size["classes"], 1)
    blocks, chunk_size = blocks_of(shape), choose_multi_margin_tiling(size["classes"]).chunk_size
    own = len(blocks[:: size["cores"]])
    taken: Branches = {"cores": "one" if size["cores"] == 1 else "two", "own_blocks": count_class(own)}
    if size["cores"] == 1:
        return taken
    if len(blocks) == 1:
        taken["cores"] = "two, one without rows"
    first_size = div_ceil(chunk_size, 2)
    chunks = num_chunks(size["classes"], first_size, chunk_size)
    taken["chunks"] = cut_class(chunks, (size["classes"] - first_size) % chunk_size != 0)
    taken["turns_of_buffers"] = count_class(div_ceil(chunks * own, BUFFERS))
    taken["ends"] = blocks[-1].rows < blocks[0].rows
    return taken


def multilabel_branches(size: Size) -> Branches:
    """Name the branches of the first core; each core takes the same row where there is only one."""
    shape = size["rows"], size["classes"]
    bytes_of_class = FORWARD_BYTES_OF_CLASS if size["direction"] == "forward" else BACKWARD_BYTES_OF_CLASS
    with on_core(0, size["cores"]):
        groups = Launch("plan", spec(shape, size["dtype"]), spec(shape, "int32"), "mean").groups(bytes_of_class)
    return {
        "direction": size["direction"],
        "cores": "one" if size["cores"] == 1 else "two",
        "groups": cut_class(len(groups), len(groups[-1]) < len(groups[0])),
        "blocks_of_group": count_class(len(groups[0])),
        "is_one_row": size["rows"] == 1,
    }


def _sizes(rows: tuple[int, ...], classes: tuple[int, ...], directions: tuple[str, ...]) -> Iterator[Size]:
    for direction, of_rows, of_classes, cores in product(directions, rows, classes, (1, 2)):
        yield {
            "direction": direction,
            "dtype": "float32" if of_rows % 2 else "bfloat16",
            "rows": of_rows,
            "classes": of_classes,
            "cores": cores,
        }


def multi_margin_sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of classifiers."""
    return _sizes(_ROWS, _CLASSES, ("both",)) if wide else _sizes(_SAMPLED_ROWS, _SAMPLED_CLASSES, ("both",))


def multilabel_sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of classifiers whose rows are on chip."""
    directions = ("forward", "backward")
    return _sizes(_ROWS, _LABELS, directions) if wide else _sizes(_SAMPLED_ROWS, _SAMPLED_CLASSES, directions)


def shrunk_multilabel_sizes() -> Iterator[tuple[Size, Limits]]:
    """Groups of few blocks."""
    for sbuf_bytes in (1024, 1536, 2048, 4096, 8192):
        for size in _sizes((257, 500, 513, 600, 700, 1100, 1200, 1300), (5, 20), ("forward", "backward")):
            yield size, {"sbuf_bytes": sbuf_bytes}


def cost(size: Size) -> float:
    """Elements, and what a row costs by itself."""
    return float(size["rows"] * (size["classes"] + 30))


def check_multi_margin(size: Size) -> None:
    """Launches with the chooser's tiling, within the derived bounds."""
    check_multi_margin_with_tiling(size)


def check_multi_margin_with_tiling(size: Size, **tiling: int) -> list[Any]:
    """Launches with any tiling: losses, their mean, and the gradient, of p = 1 and 2; returns all results."""
    draw = np.random.default_rng(size["classes"])
    x = draw.standard_normal((size["rows"], size["classes"]), np.float32).astype(TYPES[size["dtype"]])
    targets = draw.integers(0, size["classes"], size["rows"]).astype(np.int32)
    weight = draw.uniform(0.5, 2.0, (size["classes"],)).astype(np.float32)
    results = []
    for p in (1, 2):
        reference = MultiMarginReference.of(x, targets, weight, p, _MARGIN)
        arguments = {"class_weight_hbm": weight, "p": p, "margin": _MARGIN, **tiling}
        losses = reference.losses()
        stored = multi_margin_loss_forward[size["cores"]](x, targets, reduction="none", **arguments)
        bound = multi_margin_bounds.loss_bounds(x, reference, _MARGIN) + rounding(losses, x.dtype)
        assert_within(f"losses of {size}, p = {p}", stored, losses, bound)
        mean = multi_margin_loss_forward[size["cores"]](x, targets, reduction="mean", **arguments)
        factor = reduction_factor(x.shape[:1], "mean")
        exact = np.array([factor * losses.sum()])
        bound = factor * multi_margin_bounds.sum_bound(x, reference, _MARGIN) + UNIT * np.abs(exact)
        assert_within(f"mean of {size}, p = {p}", mean, exact, bound)
        upstream = draw.standard_normal((size["rows"],)).astype(np.float32)
        gradient = multi_margin_loss_backward[size["cores"]](x, targets, upstream, reduction="none", **arguments)
        of_rows = upstream.astype(np.float64)
        bound = multi_margin_bounds.gradient_bounds(x, reference, _MARGIN, of_rows)
        assert_within(f"gradient of {size}, p = {p}", gradient, reference.gradient(of_rows), bound)
        results += [stored, mean, gradient]
    return results


def check_multilabel(size: Size) -> list[Any]:
    """Launches within the derived bounds: losses and their mean, or the gradient; returns them."""
    draw = np.random.default_rng(size["classes"])
    x = draw.standard_normal((size["rows"], size["classes"]), np.float32).astype(TYPES[size["dtype"]])
    targets = draw.integers(0, size["classes"], x.shape).astype(np.int32)
    targets[np.arange(len(x)), np.minimum(np.arange(len(x)) % 4, size["classes"] - 1)] = -1
    reference, cores = MultilabelMarginReference.of(x, targets), size["cores"]
    if size["direction"] == "backward":
        upstream = draw.standard_normal(len(x)).astype(np.float32)
        gradient = multilabel_margin_loss_backward[cores](x, targets, upstream, reduction="none")
        of_rows = upstream.astype(np.float64)
        bound = multilabel_bounds.gradient_bounds(x, reference, of_rows)
        assert_within(f"gradient of {size}", gradient, reference.gradient(of_rows), bound)
        return [gradient]
    losses = reference.losses()
    stored = multilabel_margin_loss_forward[cores](x, targets, reduction="none")
    bound = multilabel_bounds.loss_bounds(x, reference) + rounding(losses, x.dtype)
    assert_within(f"losses of {size}", stored, losses, bound)
    mean = multilabel_margin_loss_forward[cores](x, targets, reduction="mean")
    factor = reduction_factor(x.shape[:1], "mean")
    exact = np.array([factor * losses.sum()])
    bound = factor * multilabel_bounds.sum_bound(x, reference) + UNIT * np.abs(exact)
    assert_within(f"mean of {size}", mean, exact, bound)
    return [stored, mean]


MULTI_MARGIN = PlanFamily(
    name="multi_margin_loss",
    kernels=lambda size: (multi_margin_loss_forward, multi_margin_loss_backward),
    sizes=multi_margin_sizes,
    branches=multi_margin_branches,
    cost=cost,
    check=check_multi_margin,
)
MULTILABEL_MARGIN = PlanFamily(
    name="multilabel_margin_loss",
    kernels=lambda size: (
        multilabel_margin_loss_forward if size["direction"] == "forward" else multilabel_margin_loss_backward,
    ),
    sizes=multilabel_sizes,
    branches=multilabel_branches,
    cost=cost,
    check=check_multilabel,
    shrunk_sizes=shrunk_multilabel_sizes,
)
