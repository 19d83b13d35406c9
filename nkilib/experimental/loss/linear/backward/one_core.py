# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of an output layer on one core, which keeps a block of G in SBUF while X and W stream.

N positions, D features, V classes; X [N, D] and W are the operands, G is the gradient of the logits; dX, dW and db are
the gradients of X, W and the bias. A *round* is the work on one block of classes with one block of positions, a
*stripe* is a range of features. A *part* is a range of positions: very many positions are split into parts, each with a
backward of its own.

:func:`write_gradients` loops over the blocks of a core. In a round:

1. The logits are computed tile by tile, then G of each tile, and the transpose of G by Tensor.
2. For one stripe after another, dX = G W over the classes and dW = G^T X over the positions are computed alternately,
   while W^T of the next block is loaded. With many features W^T streams during step 1 instead
   (:class:`.streams.WeightSlices`).

Each core works on its own classes. At the end the cores add up their float32 sums of dX, one stripe of features while
the next one is computed. The first block stores its dX, and all others add theirs to it; so the first one is before the
device loop (:class:`.memory_plan.ClassBlocks`). A program without room for that clears dX first, and a program with
room for a single block has the loop alone (:class:`.memory_plan.ClassCover`).

Per-position values take SBUF, and each tile of positions takes instructions. So a launch of very many positions
(:func:`write_gradients_of_positions`) splits them into parts, and repeats the backward for each part in a device loop.
dW and db are added up in float32 over the parts, and dW is rounded once, at the end. dX of a part is the dX of a launch
of these positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nkilib.core.cores import synchronise
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.gradient_products import GradientProducts
from nkilib.experimental.loss.linear.backward.logit_gradient import LogitGradient
from nkilib.experimental.loss.linear.backward.memory_plan import (
    BackwardPlan,
    ClassCover,
    plan_of_program,
    planned_blocks,
    planned_cover,
)
from nkilib.experimental.loss.linear.backward.rounds import Round, SharedBuffers
from nkilib.experimental.loss.linear.backward.tile_maker import BackwardProblem
from nkilib.experimental.loss.linear.block_schedule import Block, PositionParts, Span, Step, cut, shares_of_cores
from nkilib.experimental.loss.linear.launch import Gradients, LinearOperands, LinearTiling
from nkilib.experimental.loss.linear.logits import LogitsInHbm
from nkilib.nki import nisa, nl


def _partials(operands: LinearOperands, gradients: Gradients, cores: int) -> list[nl.NkiTensor]:
    """Allocate for each core that has classes its sum of dX, float32 [N, D]; none if dX is not wanted."""
    shape = tuple(operands.input_hbm.shape)
    count = 0 if gradients.input_hbm is None else cores
    return [
        nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name=f"partial_grad_input_{core}_hbm")
        for core in range(count)
    ]


@dataclass(frozen=True)
class _CoreBackward:
    """The backward of a core: one round for each block of classes and each block of positions.

    Attributes:
        shared: the buffers that the rounds share.
        logit_gradient, products: the two halves of a round.
    """

    shared: SharedBuffers
    logit_gradient: LogitGradient
    products: GradientProducts

    def run(self, shares: list[Span]) -> None:
        """Process all blocks of the core; ``shares`` are the classes of each core."""
        shared, streams = self.shared, self.shared.streams
        share, positions = shares[shared.core], shared.positions[0]
        blocks = planned_blocks(shared.plan, shares, shared.core, shared.operands.num_positions)
        self.shared.begin(share.first)
        leading = Block(share.first, blocks.lead)
        first = leading if blocks.lead > 0 else blocks.blocks.opening
        if first is not None:
            streams.load_opening(first, positions)
        else:
            streams.load_inputs_alone(positions)
        if not blocks.has_first:
            self._clear()

        def body(step: Step) -> None:
            self._step(step, share)

        if blocks.lead > 0:
            body(Step(leading, 0, blocks.lead, blocks.blocks.opening))
        blocks.blocks.run(body)

    def _clear(self) -> None:
        # For device loops in which no block is known to be the first one, which would do this.
        if self.shared.input_gradient is not None:
            self.shared.input_gradient.clear()
        self.shared.streams.load_kept(self.shared.positions[0])

    def run_cover(self, cover: ClassCover) -> None:
        """Process all classes of ``cover`` in a single device loop.

        These are the classes that belong to this core, and classes of the other core if this core's classes do not fill
        the blocks.
        """
        self.shared.begin(cover.first)
        self.shared.streams.load_inputs_alone(self.shared.positions[0])
        self._clear()
        written_hbm = [
            gradient.gradient_hbm
            for gradient in (self.shared.weight_gradient, self.shared.bias_gradient)
            if gradient is not None
        ]

        def body(step: Step) -> None:
            if self.shared.own_classes is not None:
                self.shared.own_classes.find()
            self._step(step, cover.own)
            if self.shared.own_classes is not None:
                self.shared.own_classes.step(cover.size)
            cover.synchronise(written_hbm)

        cover.run(body)
        if self.shared.input_sum is not None:
            for positions in self.shared.positions:
                for stripe in self.shared.streams.stripes_of_features:
                    self.shared.input_sum.synchronise(positions, stripe)
                    self.shared.input_sum.add(positions, stripe, 0, 1)

    def _step(self, step: Step, share: Span) -> None:
        """Process a block of classes with all positions; ``share`` is the range of all classes of the core."""
        shared, classes = self.shared, step.block
        is_known = isinstance(classes.first, int)
        is_first_of_core = is_known and classes.first == share.first
        is_last_of_core = is_known and classes.first + classes.size == share.end
        late = classes.part(step.loaded, classes.size - step.loaded)
        self.shared.streams.load_late(late, step.loaded, self.shared.positions[0])
        slices = self.shared.streams.slices
        if slices is not None and not slices.is_loaded_ahead(step.loaded):
            slices.load_ahead(classes, shared.positions[0])
        for number, positions in enumerate(self.shared.positions):
            is_last = number + 1 == len(self.shared.positions)
            next_positions = self.shared.positions[0 if is_last else number + 1]
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
        shared.tiles.advance(classes.size)

    def _round(self, round_: Round) -> None:
        self.shared.restart()
        self.products.multiply(round_, self.logit_gradient.make(round_))


def write_gradients(
    problem: BackwardProblem, plan: BackwardPlan, gradients: Gradients, kept: LogitsInHbm | None = None
) -> None:
    """Compute and store the gradients.

    Args:
        problem: the operands and the tile maker of the loss.
        plan: a plan that fits.
        gradients: the tensors that get the gradients.
        kept: the logits of the core's classes if the forward kept them; None to compute them.
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
    shared = SharedBuffers.make(problem, plan, gradients, partials_hbm, core, kept, cover)
    backward = _CoreBackward(shared, LogitGradient(shared), GradientProducts(shared))
    if cover is None:
        backward.run(shares)
    else:
        backward.run_cover(cover)


# Zeros of a partition that sums are cleared with.
_ZEROS = 2048


def _store_zeros(sum_hbm: nl.NkiTensor) -> None:
    zeros_sbuf = nl.ndarray((PARTITIONS, _ZEROS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sbuf, value=0.0)
    rows, columns = sum_hbm.shape
    whole = rows // PARTITIONS * PARTITIONS
    for span in cut(columns, _ZEROS):
        place_hbm = sum_hbm.slice(1, span.first, span.end)
        if whole > 0:
            tiles_hbm = place_hbm.slice(0, 0, whole).reshape_dim(0, (whole // PARTITIONS, PARTITIONS))
            source_sbuf = zeros_sbuf[:, 0 : span.size].expand_dim(1).broadcast(1, whole // PARTITIONS)
            nisa.dma_copy(dst=tiles_hbm.permute((1, 0, 2)), src=source_sbuf)
        if whole < rows:
            nisa.dma_copy(dst=place_hbm.slice(0, whole, rows), src=zeros_sbuf[0 : rows - whole, 0 : span.size])


@dataclass(frozen=True)
class _PartSums:
    """The gradients of a launch that splits its positions into parts, and the tensors in which they are summed.

    Attributes:
        gradients: the gradients of the launch.
        share: the classes of this core.
        has_classes_first: whether dW is [V, D]; else it is [D, V].
        weight_sum_hbm: the float32 sum of dW: a separate tensor, dW itself if it is float32, or the caller's sum; None
            if dW is not wanted.
        part_bias_hbm: db of a part, float32 [V]; None if db is not wanted.
        part_input_hbm: dX of a part, which is then copied into dX of the launch: transfers that add cannot take an
            address that depends on a loop variable. None if dX is not wanted.
    """

    gradients: Gradients
    share: Span
    has_classes_first: bool
    weight_sum_hbm: nl.NkiTensor | None
    part_bias_hbm: nl.NkiTensor | None
    part_input_hbm: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearOperands, gradients: Gradients, size: int) -> _PartSums:
        """Allocate the sums for parts of ``size`` positions; ``launch`` has the operands of all positions."""

        def scratch(name: str, shape: tuple[int, ...], dtype: nl.DType) -> nl.NkiTensor:
            return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name=name)

        weight_hbm, input_hbm, bias_hbm = gradients.weight_hbm, gradients.input_hbm, gradients.bias_hbm
        weight_sum_hbm = weight_hbm
        if weight_hbm is not None and weight_hbm.dtype != nl.float32:
            weight_sum_hbm = scratch("grad_weight_sum_hbm", tuple(weight_hbm.shape), nl.float32)
        part_input_hbm = None
        if input_hbm is not None:
            part_input_hbm = scratch("grad_input_of_part_hbm", (size, launch.num_features), input_hbm.dtype)
        return cls(
            gradients,
            shares_of_cores(launch.vocab_size, nl.num_programs())[nl.program_id(0)],
            launch.has_classes_first,
            weight_sum_hbm,
            None if bias_hbm is None else scratch("grad_bias_of_part_hbm", (launch.vocab_size,), nl.float32),
            part_input_hbm,
        )

    def clear(self) -> None:
        """Store zeros in the sums, except in a sum that belongs to the caller."""
        if self.share.size == 0:
            return
        if self.weight_sum_hbm is not None and not self.gradients.adds_to_weight:
            _store_zeros(self._own(self.weight_sum_hbm))
        if self.gradients.bias_hbm is not None:
            _store_zeros(self.gradients.bias_hbm[self.share.first : self.share.end].expand_dim(0))

    def of_part(self, block: Block) -> Gradients:
        """Return the tensors into which the backward of the part with the positions ``block`` writes its gradients."""
        input_hbm = self.part_input_hbm
        if input_hbm is not None and block.size < input_hbm.shape[0]:
            input_hbm = input_hbm[0 : block.size]
        return Gradients(input_hbm, self.weight_sum_hbm, self.part_bias_hbm, self.weight_sum_hbm)

    def finish_part(self, block: Block, of_part: Gradients) -> None:
        """Copy dX of the part with the positions ``block`` into dX of the launch, and add db of the part to the sum of
        db.

        Each core copies half of dX, and adds db of its own classes. ``of_part`` are the gradients of the part.
        """
        grad_input_hbm, part_input_hbm = self.gradients.input_hbm, of_part.input_hbm
        if grad_input_hbm is not None and part_input_hbm is not None:
            synchronise(part_input_hbm)
            half = div_ceil(block.size, nl.num_programs())
            first = nl.program_id(0) * half
            rows = min(half, block.size - first)
            if rows > 0:
                nisa.dma_copy(dst=block.part(first, rows).of(grad_input_hbm), src=part_input_hbm[first : first + rows])
            synchronise(part_input_hbm)
        bias_hbm, part_bias_hbm = self.gradients.bias_hbm, of_part.bias_hbm
        if bias_hbm is not None and part_bias_hbm is not None and self.share.size > 0:
            classes = slice(self.share.first, self.share.end)
            sum_hbm = bias_hbm[classes]
            nisa.dma_compute(dst=sum_hbm, srcs=[sum_hbm, part_bias_hbm[classes]], reduce_op=nl.add)

    def finish(self) -> None:
        """Round the float32 sum of dW into dW."""
        weight_hbm, sum_hbm = self.gradients.weight_hbm, self.weight_sum_hbm
        if weight_hbm is None or sum_hbm is None or weight_hbm.dtype == nl.float32 or self.share.size == 0:
            return
        nisa.dma_copy(dst=self._own(weight_hbm), src=self._own(sum_hbm))

    def _own(self, weight_hbm: nl.NkiTensor) -> nl.NkiTensor:
        return weight_hbm.slice(0 if self.has_classes_first else 1, self.share.first, self.share.end)


WriteGradients = Callable[[Block, Gradients], None]


def _write_in_parts(
    operands: LinearOperands, gradients: Gradients, parts: PositionParts, write: WriteGradients
) -> None:
    """Compute and store the gradients of all positions, part by part.

    Args:
        operands, gradients: the operands and gradients of all positions.
        parts: the parts of the positions, at least two.
        write: a function that computes the gradients of a block of positions and stores them in the given tensors; dW
            is added to the values there.
    """
    sums = _PartSums.make(operands, gradients, parts.size)
    sums.clear()

    def run(block: Block) -> None:
        of_part = sums.of_part(block)
        write(block, of_part)
        sums.finish_part(block, of_part)

    end = parts.whole * parts.size
    nl.fori_loop(0, end, lambda first: run(Block(first, parts.size)), parts.size)
    if parts.rest > 0:
        run(Block(end, parts.rest))
    sums.finish()


def write_gradients_of_positions(
    operands: LinearOperands,
    gradients: Gradients,
    parts: PositionParts,
    sizes: BackwardSizes,
    tiling: LinearTiling,
    problem_of: Callable[[Block], BackwardProblem],
) -> None:
    """Compute and store the gradients of all positions, which may be split into parts; the plan of a part must fit.

    Args:
        operands, gradients: the operands and gradients of all positions.
        parts: the parts of the positions.
        sizes: the sizes of a part; ``num_positions`` is replaced by the size of each part.
        tiling: the tiling of a part.
        problem_of: a function that returns the problem of a block of positions.
    """

    def write(block: Block, of_part: Gradients) -> None:
        plan = BackwardPlan.of(replace(sizes, num_positions=block.size), *tiling)
        write_gradients(problem_of(block), plan, of_part)

    if parts.is_split:
        _write_in_parts(operands, gradients, parts, write)
    else:
        write(Block(0, operands.num_positions), gradients)
