# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of connectionist temporal classification, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

from nkilib.core.hardware import div_ceil
from nkilib.experimental.loss import ctc_loss_backward, ctc_loss_forward
from nkilib.experimental.loss.ctc.gradient import BANK_COLUMNS, PIECE_COLUMNS, kept_bytes, kept_wavefronts, runs
from nkilib.experimental.loss.ctc.host import (
    ctc_loss_bound,
    ctc_loss_gradient_bound,
    ctc_loss_gradient_reference,
    reduced,
    reduction_factors,
)
from nkilib.experimental.loss.ctc.kernels import fitting_layout
from nkilib.experimental.loss.ctc.layout import BatchLayout, BatchShape
from nkilib.experimental.loss.ctc.recursion import ALTERNATING_TILES, run_wavefronts
from nkilib.nki import nl
from tests.experimental.loss.ctc.test_ctc_loss import Batch, batch_of
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

_STEPS = (1, 2, 32, 33, 64, 100, 150, 300, 512, 1000, 1500, 4000)
_SEQUENCES = (1, 2, 3, 16, 32, 64, 100, 128, 256, 257, 300)
_CLASSES = (2, 29, 128, 1000, 5000)
# Fewest labels of two, three and four blocks among them: 62, 94 and 126 of a backward, 126, 190 and 254 of a forward.
_LABELS = (0, 1, 20, 40, 62, 94, 126, 190, 254, 500)
_SAMPLED = ((1, 33, 300, 1500), (1, 2, 64, 256, 257), (29, 1000, 5000), (0, 20, 94, 254))
_SHRUNK = (
    (2, 9, 12, 20, 33, 62, 75, 94, 96, 126, 128, 190, 192, 254, 256),
    (1, 2, 3, 66, 130, 257, 300),
    (3, 5, 600),
    (0, 3, 62, 94, 126, 190, 254),
)


def plan_of(size: Size) -> BatchLayout:
    """The plan that the kernel makes; of a backward, whose forward fits as well."""
    shape, dtype = BatchShape(size["steps"], size["sequences"], size["classes"]), getattr(nl, size["dtype"])
    plans = {
        way: fitting_layout("plan", shape, size["labels"], dtype, way == "backward") for way in ("forward", "backward")
    }
    return plans[size["direction"]]


def _has_loop(plan: BatchLayout, is_forward: bool) -> bool:
    """Whether wavefronts are iterations of a loop of the device: goes through them."""
    loops: list[int] = []
    per_iteration = ALTERNATING_TILES if is_forward else max(ALTERNATING_TILES, kept_wavefronts(plan.blocks))
    with patch.object(nl, "fori_loop", lambda start, end, body, step: loops.append(end)):
        run_wavefronts(plan, is_forward, per_iteration, lambda wavefront: None)
    return bool(loops)


def branches(size: Size) -> Branches:
    """Return the branches of the first core's plan, and whether the second one has sequences."""
    plan, is_forward = plan_of(size), size["direction"] == "forward"
    cores = "one" if size["cores"] == 1 else "two" if plan.groups > 1 else "two, one without sequences"
    groups = cut_class(plan.groups, plan.sequences % plan.rows != 0)
    taken: Branches = {"direction": size["direction"], "cores": cores}
    with on_core(0, size["cores"]):
        own = len(plan.own_groups())
    if cores != "two" or own > 1:
        # A plan does not depend on cores, and groups follow each other whatever is in one. So what is in a group is
        # listed in full where each of two cores has one, and the way through time alone with all other groups.
        return {**taken, "groups": groups, "time": _way_through_time(plan, is_forward)}
    if not is_forward and kept_bytes(plan.group(0)) == 0:  # how classes are cut does not depend on how time is
        banks = count_class(div_ceil(plan.classes, BANK_COLUMNS))
        classes = "several pieces" if plan.classes > PIECE_COLUMNS else f"{banks} of a bank"
        return {**taken, "keeps_one_hot": False, "classes": classes, "runs": count_class(len(runs(plan.pairs)))}
    taken["blocks"] = plan.blocks
    taken["chunks"] = cut_class(plan.chunks, plan.steps % plan.chunk != 0)
    taken["has_loop"] = _has_loop(plan, is_forward)
    return taken


def _way_through_time(plan: BatchLayout, is_forward: bool) -> str:
    if plan.chunks == 1:
        return "a chunk"
    return "chunks in a loop" if _has_loop(plan, is_forward) else "chunks, unrolled"


def _sizes(
    steps: tuple[int, ...], sequences: tuple[int, ...], classes: tuple[int, ...], labels: tuple[int, ...]
) -> Iterator[Size]:
    grid = product(("forward", "backward"), ("bfloat16", "float32"), steps, sequences, classes, labels)
    for direction, dtype, of_steps, of_sequences, of_classes, of_labels in grid:
        for cores in (1, 2):
            yield {
                "direction": direction,
                "dtype": dtype,
                "steps": of_steps,
                "sequences": of_sequences,
                "classes": of_classes,
                "labels": of_labels,
                "cores": cores,
            }


def sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of speech, of characters and of word pieces."""
    return _sizes(_STEPS, _SEQUENCES, _CLASSES, _LABELS) if wide else _sizes(*_SAMPLED)


def shrunk_sizes() -> Iterator[tuple[Size, Limits]]:
    """Chunks of few steps."""
    for kilobytes in (16, 20, 24, 32, 48, 64, 96):
        for size in _sizes(*_SHRUNK):
            if cost(size) <= 3e6:
                yield size, {"sbuf_bytes": kilobytes * 1024}


def cost(size: Size) -> float:
    """Log-probabilities and states, and the instructions of a step; inputs without room for the labels come last."""
    of_step = size["sequences"] * (size["classes"] + 4 * size["labels"] + 8)
    # Of fewer steps than labels no alignment reaches the last block: the more steps, the better, but for a backward of
    # many classes, whose branches do not depend on it.
    is_short = size["steps"] < size["labels"] and (size["direction"] == "forward" or size["classes"] < 128)
    says_little = 1e4 * (size["labels"] / size["steps"]) ** 2 if is_short else 1.0
    return says_little * (size["steps"] * (of_step + 3000) + 1000 * size["sequences"])


def check(size: Size) -> None:
    """A launch, within the derived bounds."""
    check_launch(size)


def _batch_of(size: Size) -> Batch:
    """Sequences with alignments: of labels that differ from their neighbours, where there are several."""
    made = batch_of(size["steps"], size["sequences"], size["classes"], size["labels"])
    lengths = np.minimum(size["labels"], (made.input_lengths + 1) // 2).astype(np.int32)
    if size["classes"] > 2:
        lengths[0] = min(size["labels"], size["steps"])
    places = np.arange(size["sequences"])[:, np.newaxis] + np.arange(size["labels"])
    targets = (1 + places % (size["classes"] - 1)).astype(np.int32) if size["labels"] else None
    log_probs = made.log_probs.astype(TYPES[size["dtype"]])
    return Batch(log_probs, targets, np.maximum(1, made.input_lengths), lengths)


def check_launch(size: Size) -> tuple[Any, ...]:
    """Losses and, of a backward, the gradient, which it returns."""
    batch = _batch_of(size)
    reference, lengths, cores = batch.reference, (batch.input_lengths, batch.target_lengths), size["cores"]
    loss, nll, alpha = ctc_loss_forward[cores](*batch, reduction="none", dtype=nl.float32)
    exact = reduced(reference.losses, batch.target_lengths, "none", False)
    assert_within(f"losses of {size}", loss, exact, ctc_loss_bound(reference, *lengths, "none"))
    mean, *_ = ctc_loss_forward[cores](*batch, zero_infinity=True)
    exact = reduced(reference.losses, batch.target_lengths, "mean", True)
    assert_within(f"mean of {size}", mean, exact, ctc_loss_bound(reference, *lengths, "mean"))
    if size["direction"] == "forward":
        return (loss,)
    upstream = np.linspace(-1.5, 2.0, size["sequences"]).astype(np.float32)
    gradient = ctc_loss_backward[cores](*batch, nll, alpha, upstream, reduction="none", zero_infinity=True)
    factors = reduction_factors(batch.target_lengths, "none") * upstream.astype(np.float64)
    exact = ctc_loss_gradient_reference(batch.log_probs, reference, batch.input_lengths, factors, True)
    bound = ctc_loss_gradient_bound(batch.log_probs, reference, batch.input_lengths, factors, exact)
    assert_within(f"gradient of {size}", gradient, exact, bound)
    return loss, gradient


FAMILY = PlanFamily(
    name="ctc_loss",
    kernels=lambda size: (ctc_loss_forward if size["direction"] == "forward" else ctc_loss_backward,),
    sizes=sizes,
    branches=branches,
    cost=cost,
    check=check,
    shrunk_sizes=shrunk_sizes,
)
