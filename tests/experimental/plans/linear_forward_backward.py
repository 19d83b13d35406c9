# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of loss and gradients in one launch: parts of the positions, and of each a forward and a backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from unittest import mock

import numpy as np

from nkilib.core.plan_limits import PlanLimits, limits_in_force
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.host.reference import BackwardInputs
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.parts import BackwardParts
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear_cross_entropy import linear_cross_entropy_forward_backward
from nkilib.experimental.loss.linear_cross_entropy.backward.tile_needs import tile_needs
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.memory import SCRATCH_BYTES, logits_blocks
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    linear_forward_reference,
)
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import FORWARD_BACKWARD, choose_linear_tiling
from nkilib.experimental.loss.linear_cross_entropy.one_launch import (
    COPIES_WITH_LOOP,
    FEWEST_IN_LOOP,
    FORWARD_SHARE,
)
from tests.experimental.loss.linear_cross_entropy.linear_inputs import OPTIONS, arguments_of
from tests.experimental.plans.coverage import Branches, PlanFamily, Size
from tests.experimental.plans.linear_backward import (
    Planned,
    blocks_of_positions,
    parts_of_operands,
    planned,
    way_through_classes,
)
from tests.experimental.plans.linear_forward import blocks_of_positions as blocks_of_forward
from tests.experimental.plans.linear_forward import forward_tiling, needs_of, of_kept
from tests.experimental.plans.linear_forward import way_through_classes as way_of_forward
from tests.experimental.plans.linear_sizes import (
    DTYPES,
    TILE,
    VARIANTS,
    linear_family,
    problem_of_size,
    require_room,
    several,
)

_FLOAT32_BYTES = 4


def _parts(size: Size) -> tuple[int, int, int]:
    """Positions of a part, how many parts there are, and how many copies of one in the program."""
    positions, scratch = size["positions"], size.get("scratch_bytes", SCRATCH_BYTES)
    require_room(scratch >= _FLOAT32_BYTES * TILE * size["classes"])
    blocks = logits_blocks(positions, size["features"], size["classes"], scratch)
    copies = blocks.number if blocks.number < FEWEST_IN_LOOP else COPIES_WITH_LOOP
    return min(div_ceil(blocks.positions, TILE) * TILE, positions), blocks.number, copies


def of_gradients(size: Size) -> Planned:
    """Plan the gradients of a whole part, whose loss has to fit as well."""
    return _of_gradients(tuple(size.items()), limits_in_force())


@lru_cache(maxsize=1 << 16)
def _of_gradients(items: tuple[tuple[str, Any], ...], _limits: PlanLimits) -> Planned:
    size = dict(items)
    variant = VARIANTS[size["variant"]]
    options = OPTIONS[variant.options]
    positions, count, copies = _parts(size)
    forward_tiling(size, positions, needs_of(size, kept=True))
    tiling = choose_linear_tiling(
        size["positions"],
        size["features"],
        size["classes"],
        size["dtype"],
        FORWARD_BACKWARD,
        cores=size["cores"],
        weight_layout=size["layout"],
        extended=bool(options),
        scratch_bytes=size.get("scratch_bytes", SCRATCH_BYTES),
    )
    has_spread = "label_smoothing" in options
    backward = BackwardSizes(
        positions,
        size["features"],
        size["classes"],
        DTYPES[size["dtype"]].itemsize,
        size["layout"] == "vd",
        tile_needs(
            has_class_weights="class_weight" in options and has_spread,
            has_rest=has_spread or "lse_square_scale" in options,
            keeps_logits=True,
            sums_bias="bias" in options and "bias" in variant.wanted and DTYPES[size["dtype"]].itemsize == 2,
        ),
        adds_to_weight=count > 1,
        keeps_logits=True,
        program_share=(1.0 - FORWARD_SHARE) / copies,
    )
    plan = BackwardPlan.of(backward, *tiling)
    require_room(plan.fits)
    return planned(plan, size["classes"], size["cores"], positions)


def _number_of_parts(count: int) -> str:
    return "loop" if count >= FEWEST_IN_LOOP else several(count)


def branches_of_forward(size: Size) -> Branches:
    """How the forward of a part goes through its classes; its gradients have to fit as well."""
    of_gradients(size)
    positions, count, copies = _parts(size)
    kept = of_kept(size, positions, FORWARD_SHARE / copies)
    return {
        "parts": _number_of_parts(count),
        "blocks of positions": blocks_of_forward(kept.plan),
        "classes": way_of_forward(kept.schedule),
    }


def branches_of_classes(size: Size) -> Branches:
    """How the backward of a part goes through its classes."""
    result = of_gradients(size)
    return {
        "parts": _number_of_parts(_parts(size)[1]),
        "classes": ", ".join(way_through_classes(result)),
    }


def branches_of_operands(size: Size) -> Branches:
    """Name the number of parts in which the operands of the gradients are worked on."""
    result = of_gradients(size)
    parts = parts_of_operands(result, _parts(size)[0], "weight" in VARIANTS[size["variant"]].wanted)
    return {
        "layout": size["layout"],
        "blocks of positions": blocks_of_positions(result.plan),
        **parts,
    }


def check_one_launch(size: Size, **tiling: int) -> None:
    """Launch a size, by default with the tiling that is chosen, and compare all results with float64.

    The launch has to take the plan of the gradients that its branches were read off.
    """
    variant, problem = VARIANTS[size["variant"]], problem_of_size(size)
    wanted = [name for name in ("input", "weight", "bias") if name in variant.wanted]
    if problem.bias is None:
        wanted = [name for name in wanted if name != "bias"]
    scale = np.float32(1.0 / len(problem.targets))
    scratch = {"scratch_bytes": size["scratch_bytes"]} if "scratch_bytes" in size else {}
    with mock.patch.object(BackwardParts, "make", wraps=BackwardParts.make) as made:
        results = linear_cross_entropy_forward_backward[size["cores"]](
            problem.input,
            problem.weight,
            problem.targets,
            grad_scale=float(scale),
            **{f"grad_{name}_wanted": name in wanted for name in ("input", "weight", "bias")},
            **scratch,
            **arguments_of(problem),
            **tiling,
        )
    if not tiling:
        assert of_gradients(size).plan in [call.args[1] for call in made.call_args_list]
    forward = linear_forward_reference(problem)
    upstream = BackwardInputs(forward.lse.astype(np.float32), np.full(len(problem.targets), scale, np.float32))
    exact, bounds_of_exact = linear_gradients_and_bounds(problem, upstream)
    references = {"loss": forward.loss, "lse": forward.lse, **exact._asdict()}
    bounds = linear_forward_bounds(problem) | bounds_of_exact._asdict()
    for name, result in zip(("loss", "lse", *wanted), results, strict=True):
        off = np.abs(np.asarray(result, dtype=np.float64) - references[name])
        assert (off <= bounds[name]).all(), f"{name}: {np.nanmax(off / bounds[name])} of its bound"


def _family(name: str, branches: Callable[[Size], Branches]) -> PlanFamily:
    kernel = linear_cross_entropy_forward_backward
    return linear_family(f"linear_forward_backward_{name}", kernel, branches, check_one_launch)


FORWARDS = _family("forwards", branches_of_forward)
CLASSES = _family("classes", branches_of_classes)
OPERANDS = _family("operands", branches_of_operands)
