# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of one core: a block of the gradient of the logits stays in SBUF, and W and X stream past it.

For a block of classes and a block of positions:

1. The logits are computed tile by tile, then the gradient of each tile, and its transpose by Tensor.
2. One stripe of features after another, dX = G W over the classes and dW = G^T X over the positions are computed
   alternately, while W^T of the next block is loaded. With many features W^T streams past X^T in step 1 instead
   (:mod:`.weight_slices`).

Each core has a share of the classes. At the end the cores add up their float32 sums of dX: one stripe of the last block
of classes while the next stripe is computed. The first block stores its dX, and all others add theirs to it; so the
first one is before the device loop (:mod:`.class_blocks`). A program without room for that clears dX first, and a
program with room for a single block has the loop alone (:mod:`.class_cover`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.experimental.loss.linear.backward.class_blocks import plan_of_program, planned_blocks
from nkilib.experimental.loss.linear.backward.class_cover import ClassCover, planned_cover
from nkilib.experimental.loss.linear.backward.geometry import POSITIONS_OF_PROGRAM, BackwardSizes
from nkilib.experimental.loss.linear.backward.gradient_products import GradientProducts
from nkilib.experimental.loss.linear.backward.logit_gradient import LogitGradient
from nkilib.experimental.loss.linear.backward.parts import BackwardParts, BackwardProblem
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.position_parts import write_gradients_of_parts
from nkilib.experimental.loss.linear.backward.rounds import Round
from nkilib.experimental.loss.linear.shared.blocks import Block, Span, Step, shares_of_cores
from nkilib.experimental.loss.linear.shared.kept_logits import KeptLogits
from nkilib.experimental.loss.linear.shared.launch import Gradients, LinearOperands
from nkilib.experimental.loss.linear.shared.sizes import LinearTiling, PositionParts
from nkilib.nki import nl


def program_share(parts: PositionParts) -> float:
    """Return the share of a program's instructions that one copy of a part of the positions may have.

    All copies together may have as many instructions as a program of many positions, which is twice that of a program
    of few.
    """
    has_few = parts.size <= POSITIONS_OF_PROGRAM
    return (2.0 if parts.is_split and has_few else 1.0) / parts.copies


def require_fitting_plan(function: str, tiling: LinearTiling, plan: BackwardPlan) -> None:
    """Check that the blocks fit in SBUF and PSUM.

    Raises:
        AssertionError: if they do not; the message names function, requirement, value and remedy.
    """
    require(
        plan.weight_group[0] > 0,
        f"{function}: class_block must be at most {plan.most_classes} with weight_layout='dv', whose tiles of dW have "
        f"all classes of a block in banks of PSUM, got {tiling.class_block}; pass None, or less",
    )
    require(
        plan.fits,
        f"{function}: position_block {tiling.position_block} and class_block {tiling.class_block} must fit a "
        f"partition of SBUF, {usable_sbuf_bytes()} bytes, and take {plan.sbuf_bytes}; pass None for both, or "
        f"smaller ones",
    )


def write_gradients_of_positions(
    operands: LinearOperands,
    gradients: Gradients,
    parts: PositionParts,
    sizes: BackwardSizes,
    tiling: LinearTiling,
    problem_of: Callable[[Block], BackwardProblem],
) -> None:
    """Write the gradients of all positions, which may be split into parts; the plan of a part must fit.

    Args:
        operands, gradients: the operands and gradients of all positions.
        parts: the parts of the positions.
        sizes: the sizes of a part; its number of positions is replaced by that of each part.
        tiling: the tiling of a part.
        problem_of: a function that returns the problem of a block of positions.
    """

    def write(block: Block, of_part: Gradients) -> None:
        plan = BackwardPlan.of(replace(sizes, num_positions=block.size), *tiling)
        write_gradients(problem_of(block), plan, of_part)

    if parts.is_split:
        write_gradients_of_parts(operands, gradients, parts, write)
    else:
        write(Block(0, operands.num_positions), gradients)


def write_gradients(
    problem: BackwardProblem, plan: BackwardPlan, gradients: Gradients, kept: KeptLogits | None = None
) -> None:
    """Write the gradients according to a plan that fits.

    ``kept`` are the logits of the core's classes, if the launch has them; otherwise they are computed.
    """
    operands = problem.operands
    cores, core = nl.num_programs(), nl.program_id(0)
    shares = shares_of_cores(operands.vocab_size, cores)
    shares = [share for share in shares if share.size > 0]
    partials_hbm = _partials(operands, gradients, len(shares))
    if core >= len(shares):
        return
    cover = planned_cover(plan, shares, core, operands.num_positions)
    if cover is None:
        plan = plan_of_program(plan, shares, operands.num_positions)
    parts = BackwardParts.make(problem, plan, gradients, partials_hbm, core, kept, cover)
    backward = _Backward(parts, LogitGradient(parts), GradientProducts(parts))
    if cover is None:
        backward.run(shares)
    else:
        backward.run_cover(cover)


def _partials(operands: LinearOperands, gradients: Gradients, cores: int) -> list[nl.NkiTensor]:
    """Allocate the float32 sums of dX of each core that has classes."""
    shape = tuple(operands.input_hbm.shape)
    count = 0 if gradients.input_hbm is None else cores
    return [
        nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name=f"partial_grad_input_{core}_hbm")
        for core in range(count)
    ]


@dataclass(frozen=True)
class _Backward:
    """The backward of all rounds of a core.

    Attributes:
        parts: the parts that the rounds share.
        logit_gradient, products: the two halves of a round.
    """

    parts: BackwardParts
    logit_gradient: LogitGradient
    products: GradientProducts

    def run(self, shares: list[Span]) -> None:
        """Go through all blocks of the core; ``shares`` are the classes of each core."""
        parts, streams = self.parts, self.parts.streams
        share, positions = shares[parts.core], parts.positions[0]
        blocks = planned_blocks(parts.plan, shares, parts.core, parts.operands.num_positions)
        self.parts.begin(share.first)
        leading = Block(share.first, blocks.lead)
        first = leading if blocks.lead > 0 else blocks.blocks.opening
        if first is not None:
            streams.load_opening(first, positions)
        else:
            streams.load_first_inputs(positions)
        if not blocks.has_first:
            self._clear()

        def body(step: Step) -> None:
            self._step(step, share)

        if blocks.lead > 0:
            body(Step(leading, 0, blocks.lead, blocks.blocks.opening))
        blocks.blocks.run(body)

    def _clear(self) -> None:
        """Do the first block's initial work in advance, for loops that cannot tell which block is the first."""
        if self.parts.input_gradient is not None:
            self.parts.input_gradient.clear()
        self.parts.streams.load_kept(self.parts.positions[0])

    def run_cover(self, cover: ClassCover) -> None:
        """Go through all blocks of the core in a single loop."""
        self.parts.begin(cover.first)
        self.parts.streams.load_first_inputs(self.parts.positions[0])
        self._clear()
        written_hbm = [
            gradient.gradient_hbm
            for gradient in (self.parts.weight_gradient, self.parts.bias_gradient)
            if gradient is not None
        ]

        def body(step: Step) -> None:
            if self.parts.own_classes is not None:
                self.parts.own_classes.find()
            self._step(step, cover.own)
            if self.parts.own_classes is not None:
                self.parts.own_classes.step(cover.size)
            cover.synchronise(written_hbm)

        cover.run(body)
        if self.parts.input_sum is not None:
            for positions in self.parts.positions:
                for stripe in self.parts.streams.stripes_of_features:
                    self.parts.input_sum.synchronise(positions, stripe)
                    self.parts.input_sum.add(positions, stripe, 0, 1)

    def _step(self, step: Step, share: Span) -> None:
        """Process a block of classes with all positions; ``share`` are all classes of the core."""
        parts, classes = self.parts, step.block
        is_known = isinstance(classes.first, int)
        is_first_of_core = is_known and classes.first == share.first
        is_last_of_core = is_known and classes.first + classes.size == share.end
        late = classes.part(step.loaded, classes.size - step.loaded)
        self.parts.streams.load_late(late, step.loaded, self.parts.positions[0])
        slices = self.parts.streams.slices
        if slices is not None and not slices.is_loaded_ahead(step.loaded):
            slices.load_ahead(classes, parts.positions[0])
        for number, positions in enumerate(self.parts.positions):
            is_last = number + 1 == len(self.parts.positions)
            next_positions = self.parts.positions[0 if is_last else number + 1]
            self._round(
                Round(
                    classes,
                    positions,
                    step.following if is_last else None,
                    None if is_last and is_last_of_core else next_positions,
                    is_first_of_core,
                    is_last_of_core,
                    number == 0,
                    is_last,
                )
            )
        parts.tiles.advance(classes.size)

    def _round(self, round_: Round) -> None:
        self.parts.restart()
        self.products.multiply(round_, self.logit_gradient.make(round_))
