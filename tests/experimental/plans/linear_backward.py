# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the fused backward and of loss and gradients in one launch.

What of the operands stays on chip, and how a core goes through its classes, are tables of their own, because they are
decided by different limits, bytes of SBUF and instructions of a program, and the product of both would be ten times as
long. One launch has parts of the positions, and of each a forward and a backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from nkilib.core.hardware import div_ceil
from nkilib.core.plan_limits import PlanLimits, limits_in_force, shrunk
from nkilib.experimental.loss import linear_cross_entropy_backward, linear_cross_entropy_forward_backward
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes, weight_tiles
from nkilib.experimental.loss.linear.backward.memory_plan import (
    BackwardPlan,
    ClassBlocks,
    ClassCover,
    plan_of_program,
    planned_blocks,
    planned_cover,
)
from nkilib.experimental.loss.linear.backward.rounds import SharedBuffers
from nkilib.experimental.loss.linear.block_schedule import Span, balanced_spans, cut, shares_of_cores
from nkilib.experimental.loss.linear.launch import SCRATCH_BYTES, LinearTiling
from nkilib.experimental.loss.linear_cross_entropy import validation
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import (
    BACKWARD,
    FORWARD_BACKWARD,
    choose_linear_tiling,
    logits_blocks,
)
from nkilib.experimental.loss.linear_cross_entropy.launch import tile_needs
from nkilib.experimental.loss.linear_cross_entropy.one_launch import COPIES_WITH_LOOP, FEWEST_IN_LOOP, FORWARD_SHARE
from tests.experimental.loss.linear_cross_entropy.linear_inputs import OPTIONS, arguments_of, upstream_of
from tests.experimental.plans.coverage import Branches, PlanFamily, Row, Size
from tests.experimental.plans.linear_forward import blocks_of_positions as blocks_of_forward
from tests.experimental.plans.linear_forward import forward_tiling, needs_of, of_kept
from tests.experimental.plans.linear_forward import way_through_classes as way_of_forward
from tests.experimental.plans.linear_sizes import (
    DECISIVE,
    DTYPES,
    TILE,
    VARIANTS,
    Variant,
    linear_family,
    problem_of_size,
    require_room,
    several,
)

_ROUNDOFF = 2.0**-23

_FLOAT32_BYTES = 4


class Planned(NamedTuple):
    """How a launch is cut up.

    Attributes:
        plan: the plan of the operands.
        covers: the loop of each core, where that is all; else empty.
        blocks: the blocks of classes of each core; else empty.
        is_shortened: blocks of classes are shorter than the tiling has them, for a shorter program.
    """

    plan: BackwardPlan
    covers: tuple[ClassCover, ...]
    blocks: tuple[ClassBlocks, ...]
    is_shortened: bool

    @property
    def largest(self) -> int:
        """Classes of the largest block."""
        if self.covers:
            return self.covers[0].size
        return max(max(blocks.lead, blocks.blocks.largest) for blocks in self.blocks)


def planned(plan: BackwardPlan, vocab_size: int, cores: int, num_positions: int) -> Planned:
    """Complete a plan that fits, as ``write_gradients`` does."""
    shares = [share for share in shares_of_cores(vocab_size, cores) if share.size > 0]
    covers = [planned_cover(plan, shares, core, num_positions) for core in range(len(shares))]
    result = tuple(cover for cover in covers if cover is not None)
    if result:
        return Planned(plan, result, (), False)
    short = plan_of_program(plan, shares, num_positions)
    blocks = tuple(planned_blocks(short, shares, core, num_positions) for core in range(len(shares)))
    return Planned(short, (), blocks, short != plan)


def of_backward(size: Size) -> Planned:
    """Plan a launch with the default tiling."""
    return _of_backward(tuple(size.items()), limits_in_force())


@lru_cache(maxsize=1 << 16)
def _of_backward(items: tuple[tuple[str, Any], ...], _limits: PlanLimits) -> Planned:
    size = dict(items)
    backward = sizes_of(size, VARIANTS[size["variant"]])
    plan = BackwardPlan.of(backward, *tiling_of(size))
    require_room(plan.fits)
    return planned(plan, size["classes"], size["cores"], size["positions"])


def tiling_of(size: Size) -> LinearTiling:
    """The tiling that is chosen by default."""
    variant = VARIANTS[size["variant"]]
    return choose_linear_tiling(
        size["positions"],
        size["features"],
        size["classes"],
        size["dtype"],
        BACKWARD,
        cores=size["cores"],
        weight_layout=size["layout"],
        extended=bool(OPTIONS[variant.options]) or variant.further or variant.adds,
    )


def sizes_of(size: Size, variant: Variant) -> BackwardSizes:
    """Return the sizes that the plan depends on."""
    options = OPTIONS[variant.options]
    has_spread = "label_smoothing" in options
    return BackwardSizes(
        size["positions"],
        size["features"],
        size["classes"],
        DTYPES[size["dtype"]].itemsize,
        size["layout"] == "vd",
        tile_needs(
            "bias" in options,
            "class_weight" in options and has_spread,
            "logit_softcap" in options,
            has_spread or "lse_square_scale" in options or variant.further or variant.entropy,
            sums_bias="bias" in options and "bias" in variant.wanted and DTYPES[size["dtype"]].itemsize == 2,
        ),
        adds_to_weight=variant.adds,
    )


def standing(plan: BackwardPlan) -> str:
    """Where X^T and W^T for the logits are."""
    if plan.keeps_logits:
        return "logits are kept"
    if plan.streams_inputs:
        return "X^T and W^T stream"
    if plan.streams_weight:
        return "W^T streams by X^T"
    if plan.buffers.shares_memory:
        return "X^T takes turns with X and W"
    return "X^T stays" if plan.keeps_inputs else "X^T streams"


def parts_of_operands(result: Planned, positions: int, with_weight: bool) -> Branches:
    """Name the number of parts in which the operands of a block are worked on."""
    plan, largest = result.plan, result.largest
    block = balanced_spans(Span(0, positions), plan.position_tiles * TILE)[0]
    stripes = [Span(0, plan.features)]
    if plan.stripe % TILE == 0:
        stripes = balanced_spans(stripes[0], plan.stripe)
    waits = len(stripes) > 1 and plan.buffers.weight_stripes == 1
    groups = 1
    if with_weight and plan.has_classes_first:
        groups = div_ceil(largest, weight_tiles() * TILE)
    elif with_weight:
        tiles = min(weight_tiles() // len(cut(largest, plan.classes_of_tile)), plan.weight_group[0])
        groups = div_ceil(stripes[0].size, tiles * TILE)
    return {
        "pieces of X": ("stay, " if plan.keeps_pieces else "load, ")
        + several(div_ceil(div_ceil(block.size, TILE), plan.buffers.tiles_of_piece)),
        "stripes": several(len(stripes)) + (", W waits" if waits else ""),
        "groups of dW": several(groups),
    }


def blocks_of_positions(plan: BackwardPlan) -> str:
    """One, a first and a last one, or others between them."""
    return ("one", "two", "several")[min(plan.position_blocks, 3) - 1]


def branches_of_operands(size: Size) -> Branches:
    """Name the operands that stay, and the number of parts in which they are worked on."""
    result, plan = of_backward(size), of_backward(size).plan
    branches = {"layout": size["layout"], "logits": standing(plan), "blocks of positions": blocks_of_positions(plan)}
    if plan.streams_weight:
        branches["batches of positions"] = several(plan.batches_of_tiles)
    return branches | parts_of_operands(result, size["positions"], "weight" in VARIANTS[size["variant"]].wanted)


def way_through_classes(result: Planned) -> tuple[str, str]:
    """Name the blocks that are unrolled and those in a loop, and how much an iteration loads for the next one."""
    if result.covers:
        return "cover, " + ("its own" if all(cover.is_exact for cover in result.covers) else "shared"), "nothing"
    lead, blocks = result.blocks[0].lead, result.blocks[0].blocks
    before = "lead, " if lead > 0 else ""
    if blocks.iterations == 0:
        return f"{before}unrolled, {several(blocks.count)}", "nothing"
    ahead = 0 if blocks.opening is None else blocks.opening.size
    loaded = "nothing" if ahead == 0 else "all" if ahead == blocks.size else "some"
    return f"{before}trips of {several(blocks.blocks_per_iteration)}", loaded


def branches_of_classes(size: Size) -> Branches:
    """How a core goes through its classes.

    What a loop loads over an edge, and blocks of positions, count where operands stand in the usual ways.
    """
    result = of_backward(size)
    plan, (way, ahead) = result.plan, way_through_classes(result)
    if plan.streams_inputs:
        # With and without a block before the loop: test_backward.test_inputs_that_stream_beside_the_weight. No small
        # launch takes both by default.
        way = way.removeprefix("lead, ")
    if plan.streams_weight or plan.buffers.shares_memory or result.is_shortened:
        special = standing(plan) if plan.streams_weight or plan.buffers.shares_memory else "others"
        return {"classes": way, "logits": special, "shortened": result.is_shortened}
    return {
        "classes": way,
        "loads over an edge": ahead,
        "blocks of positions": several(plan.position_blocks),
        "keeps X": plan.keeps_pieces,
    }


def _upstream(problem: LinearProblem, variant: Variant) -> tuple[BackwardInputs, dict[str, Any]]:
    """Return the upstream gradients, and maximum and log_sum where the variant has them."""
    forward = linear_forward_reference(problem)
    lse = forward.lse.astype(np.float32)
    pair = {}
    if variant.with_pair:
        logits = problem.logits_of(slice(None), problem.classes_first)
        maximum = problem.options.scores(logits, None).max(axis=1).astype(np.float32)
        pair = {"maximum_hbm": maximum, "log_sum_hbm": (forward.lse - maximum).astype(np.float32)}
    return upstream_of(
        problem, lse, variant.further, forward.entropy.astype(np.float32) if variant.entropy else None
    ), pair


def check_backward(size: Size, **tiling: int) -> None:
    """Launch a size, by default with the tiling that is chosen, and compare all gradients with float64.

    The launch has to take the plan that its branches were read off.
    """
    plans = _checked(size, VARIANTS[size["variant"]], tiling)
    if not tiling:
        assert plans == {of_backward(size).plan}


def check_with_entropy(row: Row) -> None:
    """Launch a row with the gradients of entropy, lse and log-probability too, by the plan that it has without them.

    There is as much more of SBUF as they take.
    """
    size, usual = row.launched, VARIANTS[row.launched["variant"]]
    variant = replace(usual, entropy=True, further=True)
    with shrunk(PlanLimits(**row.limits)):
        expected, tiling = of_backward(size).plan, tiling_of(size)
        whole = BackwardPlan.of(sizes_of(size, usual), *tiling)
    option_bytes = sizes_of(size, variant).option_bytes(whole.class_block, whole.classes_of_tile)
    limits = dict(row.limits)
    if "sbuf_bytes" in limits:
        limits["sbuf_bytes"] += option_bytes - whole.option_bytes
    # The kernel would ask for the default tiling, which has to have room for every option.
    chosen = mock.patch.object(validation, "choose_linear_tiling", return_value=tiling)
    with shrunk(PlanLimits(**limits)), chosen:
        plans = _checked(size, variant, tiling._asdict())
    if "sbuf_bytes" in limits:
        assert plans == {
            replace(
                expected,
                needs=sizes_of(size, variant).needs,
                option_bytes=option_bytes,
                available_bytes=limits["sbuf_bytes"],
            )
        }


def _checked(size: Size, variant: Variant, tiling: dict[str, int]) -> set[BackwardPlan]:
    """The plans that a launch takes, whose gradients are compared with float64."""
    problem = problem_of_size(size)
    upstream, further = _upstream(problem, variant)
    start = None
    if variant.adds:
        start = np.random.default_rng(5).standard_normal(problem.weight.shape).astype(np.float32)
        further["grad_weight_sum_hbm"] = start.copy()
    wanted = [name for name in ("input", "weight", "bias") if name in variant.wanted]
    if problem.bias is None:
        wanted = [name for name in wanted if name != "bias"]
    with mock.patch.object(SharedBuffers, "make", wraps=SharedBuffers.make) as made:
        results = linear_cross_entropy_backward[size["cores"]](
            problem.input,
            problem.weight,
            problem.targets,
            upstream.lse,
            upstream.grad_loss,
            grad_lse_hbm=upstream.grad_lse,
            grad_logprob_hbm=upstream.grad_logprob,
            entropy_hbm=upstream.entropy,
            grad_entropy_hbm=upstream.grad_entropy,
            grad_input_float32=variant.float32,
            **{f"grad_{name}_wanted": name in wanted for name in ("input", "weight", "bias")},
            **further,
            **arguments_of(problem),
            **tiling,
        )
    references, bounds = linear_gradients_and_bounds(problem, upstream)
    for name, result in zip(wanted, results, strict=True):
        actual, bound = np.asarray(result, dtype=np.float64), getattr(bounds, name)
        if name == "weight" and start is not None:
            bound = bound + _ROUNDOFF * (np.abs(start) + np.abs(actual))
            actual = actual - start
        off = np.abs(actual - getattr(references, name))
        assert (off <= bound).all(), f"{name}: {np.nanmax(off / bound)} of its bound, {np.isnan(off).sum()} NaN"
    return {call.args[1] for call in made.call_args_list}


def _family(name: str, branches: Callable[[Size], Branches]) -> PlanFamily:
    kernel, variants = linear_cross_entropy_backward, (*DECISIVE, "sum")  # a sum takes of SBUF
    return linear_family(f"linear_backward_{name}", kernel, branches, check_backward, variants)


OPERANDS = _family("operands", branches_of_operands)
CLASSES = _family("classes", branches_of_classes)


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


def branches_of_forward_in_one(size: Size) -> Branches:
    """How the forward of a part goes through its classes; its gradients have to fit as well."""
    of_gradients(size)
    positions, count, copies = _parts(size)
    kept = of_kept(size, positions, FORWARD_SHARE / copies)
    return {
        "parts": _number_of_parts(count),
        "blocks of positions": blocks_of_forward(kept.plan),
        "classes": way_of_forward(kept.schedule),
    }


def branches_of_classes_in_one(size: Size) -> Branches:
    """How the backward of a part goes through its classes."""
    result = of_gradients(size)
    return {
        "parts": _number_of_parts(_parts(size)[1]),
        "classes": ", ".join(way_through_classes(result)),
    }


def branches_of_operands_in_one(size: Size) -> Branches:
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
    with mock.patch.object(SharedBuffers, "make", wraps=SharedBuffers.make) as made:
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


def _family_in_one(name: str, branches: Callable[[Size], Branches]) -> PlanFamily:
    kernel = linear_cross_entropy_forward_backward
    return linear_family(f"linear_forward_backward_{name}", kernel, branches, check_one_launch)


FORWARDS_IN_ONE = _family_in_one("forwards", branches_of_forward_in_one)
CLASSES_IN_ONE = _family_in_one("classes", branches_of_classes_in_one)
OPERANDS_IN_ONE = _family_in_one("operands", branches_of_operands_in_one)
