# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradients in a single launch: three products instead of four, because the backward reuses the logits.

X and W are input and weight, dX, dW and db the gradients of X, W and the bias, N positions, D features, V classes. For
each block of positions, :func:`one_launch` runs the forward, which keeps the logits of each core's classes in HBM and
computes loss and lse over all classes. Then it runs the backward, which loads the kept logits, so that a tile of their
gradient costs a load and no product.

All positions are one block if their logits take no more memory than ``scratch_bytes`` plus the float32 sum of dW that
several blocks would need. Each block but the first adds its dW to this sum, and the last block rounds the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.cores import synchronise
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.cross_entropy.launch import Options, PositionUpstream
from nkilib.experimental.loss.cross_entropy.results import Results
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan, require_fitting_plan
from nkilib.experimental.loss.linear.backward.one_core import write_gradients
from nkilib.experimental.loss.linear.block_schedule import Block, Span, shares_of_cores
from nkilib.experimental.loss.linear.launch import Gradients, LinearTiling
from nkilib.experimental.loss.linear.logits import LogitsInHbm
from nkilib.experimental.loss.linear.operands import with_rounded_input
from nkilib.experimental.loss.linear_cross_entropy.backward import problem_of_launch
from nkilib.experimental.loss.linear_cross_entropy.forward import Keeping, forward_of_core
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import FORWARD, choose_linear_tiling, logits_blocks
from nkilib.experimental.loss.linear_cross_entropy.launch import LinearLaunch, forward_needs, tile_needs
from nkilib.nki import nisa, nl

# The forward's share of the instructions that the program of a core may have.
FORWARD_SHARE = 0.4
# From FEWEST_IN_LOOP blocks of positions on, the blocks between the first and the last one are a device loop, and the
# program has COPIES_WITH_LOOP copies of a block.
FEWEST_IN_LOOP, COPIES_WITH_LOOP = 5, 3


def _gradient_plan(
    part: LinearLaunch, options: Options, tiling: LinearTiling, parts: int, copies: int, gradients: Gradients
) -> BackwardPlan:
    """Return the plan of the gradients of one block of positions, ``part``.

    ``parts`` is the number of blocks, and ``copies`` is how often the program contains the code of a block.
    """
    sizes = BackwardSizes(
        part.num_positions,
        part.num_features,
        part.vocab_size,
        dtype_bytes(part.dtype),
        part.has_classes_first,
        tile_needs(
            has_class_weights=options.needs_class_weights,
            has_rest=options.spread != 0.0 or options.square != 0.0,
            keeps_logits=True,
            sums_bias=gradients.sums_bias_of(part),
            has_temperatures=part.temperature_hbm is not None,
        ),
        adds_to_weight=parts > 1,
        keeps_logits=True,
        program_share=(1.0 - FORWARD_SHARE) / copies,
        weight_itemsize=part.casts.weight,
        staging_bytes=part.casts.backward_staging(part.has_classes_first, keeps_logits=True),
    )
    return BackwardPlan.of(sizes, tiling.position_block, tiling.class_block)


def _forward_tiling(part: LinearLaunch, options: Options) -> LinearTiling:
    """Return the tiling of the forward of one block of positions, ``part``."""
    return choose_linear_tiling(
        part.num_positions,
        part.num_features,
        part.vocab_size,
        part.dtype,
        FORWARD,
        cores=nl.num_programs(),
        target="trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3",
        weight_layout=part.weight_layout,
        forward_needs=forward_needs(part, options),
        input_dtype=part.input_hbm.dtype,
        weight_dtype=part.weight_hbm.dtype,
    )


def _constant_in_hbm(value: float) -> nl.NkiTensor:
    """Return a private float32 [1] tensor in HBM of this core that holds ``value``."""
    value_hbm = nl.ndarray((1,), dtype=nl.float32, buffer=nl.private_hbm, name="grad_scale_of_core_hbm")
    value_sbuf = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=value_sbuf, value=value)
    nisa.dma_copy(dst=value_hbm, src=value_sbuf)
    return value_hbm


@dataclass(frozen=True)
class _PartGradients:
    """The gradients of all blocks of positions, and the tensors in which they are summed.

    Attributes:
        gradients: the gradients of the launch.
        share: the classes of this core.
        weight_sum_hbm: the sum of dW, float32, in the shape of W; None if there is one block.
        part_bias_hbm: db of one block, float32 [V]; None if there is one block.
        part_input_hbm: dX of a block in a device loop, [positions of a block, D], which is copied to dX of the launch;
            transfers that add do not accept an address with a loop variable. None without a loop.
    """

    gradients: Gradients
    share: Span
    weight_sum_hbm: nl.NkiTensor | None
    part_bias_hbm: nl.NkiTensor | None
    part_input_hbm: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearLaunch, gradients: Gradients, share: Span, size: int, count: int) -> _PartGradients:
        """Allocate the sums for ``count`` blocks of ``size`` positions."""

        def scratch(name: str, shape: tuple[int, ...], dtype: nl.DType, is_needed: bool) -> nl.NkiTensor | None:
            return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name=name) if is_needed else None

        weight_shape, input_shape = tuple(launch.weight_hbm.shape), (size, launch.num_features)
        has_loop = count >= FEWEST_IN_LOOP
        return cls(
            gradients,
            share,
            scratch("grad_weight_sum_hbm", weight_shape, nl.float32, count > 1 and gradients.weight_hbm is not None),
            scratch(
                "grad_bias_of_part_hbm", (launch.vocab_size,), nl.float32, count > 1 and gradients.bias_hbm is not None
            ),
            None
            if not has_loop or gradients.input_hbm is None
            else scratch("grad_input_of_part_hbm", input_shape, gradients.input_hbm.dtype, True),
        )

    def of_part(self, block: Block, is_first: bool, is_last: bool) -> Gradients:
        """Return the tensors into which the backward of a block writes its gradients.

        If there are several blocks, the first one stores its dW as the sum, and the last one rounds the sum into dW
        (``is_first``, ``is_last``).
        """
        whole = self.gradients
        input_hbm = whole.input_hbm
        if input_hbm is not None:
            input_hbm = block.of(input_hbm) if isinstance(block.first, int) else self.part_input_hbm
        return Gradients(
            input_hbm,
            whole.weight_hbm if is_last else self.weight_sum_hbm,
            whole.bias_hbm if self.part_bias_hbm is None else self.part_bias_hbm,
            None if is_first else self.weight_sum_hbm,
        )

    def finish_part(self, block: Block, is_first: bool) -> None:
        """Move the gradients of a block of positions from its own tensors, if it has any, to those of the launch.

        The cores copy equal parts of dX. Each core adds db of its own classes to db of the launch, or stores it for the
        first block (``is_first``).
        """
        grad_input_hbm, part_input_hbm = self.gradients.input_hbm, self.part_input_hbm
        if grad_input_hbm is not None and part_input_hbm is not None and not isinstance(block.first, int):
            synchronise(part_input_hbm)
            half = div_ceil(block.size, nl.num_programs())
            first = nl.program_id(0) * half
            rows = min(half, block.size - first)
            nisa.dma_copy(dst=block.part(first, rows).of(grad_input_hbm), src=part_input_hbm[first : first + rows])
            synchronise(part_input_hbm)
        bias_hbm, part_bias_hbm = self.gradients.bias_hbm, self.part_bias_hbm
        if bias_hbm is None or part_bias_hbm is None or self.share.size == 0:
            return
        classes = slice(self.share.first, self.share.end)
        sum_hbm, part_hbm = bias_hbm[classes], part_bias_hbm[classes]
        if is_first:
            nisa.dma_copy(dst=sum_hbm, src=part_hbm)
        else:
            nisa.dma_compute(dst=sum_hbm, srcs=[sum_hbm, part_hbm], reduce_op=nl.add)


@dataclass(frozen=True)
class _Parts:
    """The blocks of positions; each is a forward followed by a backward.

    Attributes:
        launch, options, tiling: the operands, options and tiling of the kernel.
        results: loss and lse of all positions.
        gradients: the gradients of all positions.
        scale_hbm: the factor of the losses, float32 [1].
        shares: the classes of each core.
        kept: the memory for the logits of this core, which all blocks reuse; None if the core has no classes.
        count: the number of blocks.
        copies: how often the program contains the code of a block.
    """

    launch: LinearLaunch
    options: Options
    tiling: LinearTiling
    results: Results
    gradients: _PartGradients
    scale_hbm: nl.NkiTensor
    shares: list[Span]
    kept: LogitsInHbm | None
    count: int
    copies: int

    def run(self, size: int) -> None:
        """Run all blocks, of ``size`` positions each; the last one may have fewer.

        If there are many blocks, all but the first and the last are a device loop.
        """
        last = (self.count - 1) * size
        rest = self.launch.num_positions - last
        if self.count == self.copies:
            for first in range(0, last, size):
                self._run_part(Block(first, size), first == 0, False)
            self._run_part(Block(last, rest), last == 0, True)
            return
        self._run_part(Block(0, size), True, False)
        nl.fori_loop(size, last, lambda first: self._run_part(Block(first, size), False, False), size)
        self._run_part(Block(last, rest), False, True)

    def _run_part(self, block: Block, is_first: bool, is_last: bool) -> None:
        part = self.launch.of_positions(block)
        results = Results(block.of(self.results.loss_hbm), block.of(self.results.lse_hbm))
        keeping = Keeping(self.kept, self.shares, FORWARD_SHARE / self.copies)
        forward_of_core(part, self.options, _forward_tiling(part, self.options), results, keeping)
        # Each core has stored some of the results, and reads the results of the other one.
        synchronise(self.results.lse_hbm)
        upstream = PositionUpstream(
            results.lse_hbm, self.scale_hbm.broadcast(0, block.size), None, None, None, None, None, None
        )
        plan = _gradient_plan(part, self.options, self.tiling, self.count, self.copies, self.gradients.gradients)
        gradients = self.gradients.of_part(block, is_first, is_last)
        write_gradients(problem_of_launch(part, self.options, upstream), plan, gradients, self.kept)
        self.gradients.finish_part(block, is_first)


def one_launch(
    launch: LinearLaunch,
    options: Options,
    tiling: LinearTiling,
    scale: float | nl.NkiTensor,
    scratch_bytes: int,
    results: Results,
    gradients: Gradients,
) -> None:
    """Compute and store loss, lse and the gradients of ``scale`` times the sum of the losses.

    Args:
        launch, options: the operands and options of the kernel.
        tiling: the tiling of the gradients.
        scale: a number, or float32 [1] in HBM.
        scratch_bytes: the number of bytes that the logits of a block may take if there are several blocks.
        results, gradients: the tensors in HBM to write to.

    Raises:
        AssertionError: before anything is written, if the blocks of the tiling do not fit SBUF.
    """
    cut_up = logits_blocks(launch.num_positions, launch.num_features, launch.vocab_size, scratch_bytes)
    size, count = div_ceil(cut_up.positions, PARTITIONS) * PARTITIONS, cut_up.number
    whole = Span(0, min(size, launch.num_positions))
    copies = count if count < FEWEST_IN_LOOP else COPIES_WITH_LOOP
    require_fitting_plan(
        launch.function,
        tiling,
        _gradient_plan(launch.of_positions(Block(*whole)), options, tiling, count, copies, gradients),
    )
    launch = with_rounded_input(launch)
    shares = shares_of_cores(launch.vocab_size, nl.num_programs())
    share = shares[nl.program_id(0)]
    parts = _Parts(
        launch,
        options,
        tiling,
        results,
        _PartGradients.make(launch, gradients, share, size, count),
        scale if isinstance(scale, nl.NkiTensor) else _constant_in_hbm(scale),
        shares,
        LogitsInHbm.make(whole.size, share) if share.size > 0 else None,
        count,
        copies,
    )
    parts.run(size)
