"""Loss and gradients in one launch: three products instead of four, as the logits are kept from one to the other.

For a block of positions the forward keeps the logits of each core's classes in HBM and finds loss and lse of all of
them. Then the backward takes the logits from there, so that a tile of their gradient costs a load and no product.

All positions are one block where their logits take less than what several blocks need: a float32 sum of dW, which each
block but the first one adds to, and the last one rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.results import Results
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear_cross_entropy.backward import require_fitting_plan, write_gradients
from nkilib.experimental.loss.linear_cross_entropy.backward_plan import BackwardPlan, BackwardSizes
from nkilib.experimental.loss.linear_cross_entropy.blocks import Span, balanced_spans, shares_of_cores
from nkilib.experimental.loss.linear_cross_entropy.forward import forward_of_core
from nkilib.experimental.loss.linear_cross_entropy.gradients import Gradients
from nkilib.experimental.loss.linear_cross_entropy.host.memory import logits_blocks
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import FORWARD, LinearTiling, choose_linear_tiling
from nkilib.experimental.loss.linear_cross_entropy.kept_logits import KeptLogits
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch, has_options
from nkilib.nki import nisa, nl

# Of the instructions that the program of a core may have.
_FORWARD_SHARE = 0.4
# Tensors that nisa.dma_compute adds up.
_SOURCES_MAX = 16


def one_launch(
    launch: LinearLaunch,
    options: Options,
    tiling: LinearTiling,
    scale: float | nl.NkiTensor,
    scratch_bytes: int,
    results: Results,
    gradients: Gradients,
) -> None:
    """Write loss, lse and the gradients of ``scale`` times the sum of the losses.

    Args:
        launch, options: of the kernel.
        tiling: of the gradients.
        scale: a number, or float32 [1] in HBM.
        scratch_bytes: that the logits of a block may take where there are several.
        results, gradients: to be written.

    Raises:
        AssertionError: before anything is written, if the blocks of the tiling do not fit SBUF.
    """
    spans = _spans(launch, scratch_bytes)
    first_plan = _plan(_part(launch, spans[0]), options, tiling, len(spans))
    require_fitting_plan(launch.function, tiling, first_plan)
    scale_hbm = scale if isinstance(scale, nl.NkiTensor) else _constant(scale)
    shares = shares_of_cores(launch.vocab_size, nl.num_programs())
    kept = _kept(spans, shares[nl.program_id(0)])
    parts = _PartGradients.make(launch, gradients, len(spans))
    for number, span in enumerate(spans):
        part, part_results = _part(launch, span), _of_results(results, span)
        forward_tiling, program_share = _forward_tiling(part, options), _FORWARD_SHARE / len(spans)
        forward_of_core(part, options, forward_tiling, part_results, shares, kept, program_share)
        _wait_for(part_results)
        upstream = PositionUpstream(
            part_results.lse_hbm, scale_hbm.broadcast(0, span.size), None, None, None, None, None, None
        )
        part_gradients = parts.of_part(span, number)
        write_gradients(part, options, _plan(part, options, tiling, len(spans)), upstream, part_gradients, kept)
    parts.finish()


def _spans(launch: LinearLaunch, scratch_bytes: int) -> list[Span]:
    """The blocks of positions."""
    blocks = logits_blocks(launch.num_positions, launch.num_features, launch.vocab_size, scratch_bytes)
    most = div_ceil(blocks.positions, PARTITIONS) * PARTITIONS
    return balanced_spans(Span(0, launch.num_positions), most)


def _part(launch: LinearLaunch, span: Span) -> LinearLaunch:
    """The launch for some positions alone."""
    rows = slice(span.first, span.end)
    return replace(launch, input_hbm=launch.input_hbm[rows], targets_hbm=launch.targets_hbm[rows])


def _of_results(results: Results, span: Span) -> Results:
    """The views of some positions."""
    rows = slice(span.first, span.end)
    return Results(results.loss_hbm[rows], results.lse_hbm[rows])


def _kept(spans: list[Span], share: Span) -> KeptLogits | None:
    """The scratch of a core with these classes, which all blocks of positions take in turn; None without classes."""
    return KeptLogits.make(max(span.size for span in spans), share) if share.size > 0 else None


def _plan(part: LinearLaunch, options: Options, tiling: LinearTiling, parts: int) -> BackwardPlan:
    """Of the gradients of one of so many parts."""
    sizes = BackwardSizes(
        part.num_positions,
        part.num_features,
        part.vocab_size,
        dtype_bytes(part.dtype),
        part.has_classes_first,
        has_class_weights=options.needs_class_weights,
        has_rest=options.spread != 0.0 or options.square != 0.0,
        adds_to_weight=parts > 1,
        keeps_logits=True,
        program_share=(1.0 - _FORWARD_SHARE) / parts,
    )
    return BackwardPlan.of(sizes, tiling.position_block, tiling.class_block)


def _forward_tiling(part: LinearLaunch, options: Options) -> LinearTiling:
    """Of loss and lse."""
    return choose_linear_tiling(
        part.num_positions,
        part.num_features,
        part.vocab_size,
        part.dtype,
        FORWARD,
        cores=nl.num_programs(),
        target="trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3",
        weight_layout=part.weight_layout,
        extended=has_options(part, options),
    )


def _constant(value: float) -> nl.NkiTensor:
    """float32 [1] in HBM, of this core."""
    value_hbm = nl.ndarray((1,), dtype=nl.float32, buffer=nl.private_hbm, name="grad_scale_of_core_hbm")
    value_sbuf = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=value_sbuf, value=value)
    nisa.dma_copy(dst=value_hbm, src=value_sbuf)
    return value_hbm


def _wait_for(results: Results) -> None:
    """Each core has stored some of the results, and reads what the other one has."""
    if nl.num_programs() > 1:
        nisa.core_barrier(results.lse_hbm, tuple(range(nl.num_programs())))


@dataclass(frozen=True)
class _PartGradients:
    """The gradients of all blocks of positions.

    Attributes:
        gradients: of the launch.
        weight_sum_hbm: of dW, float32, in the shape of W; None with one block.
        biases_hbm: db of each block, float32 [blocks, V]; None with one.
        count: of blocks.
    """

    gradients: Gradients
    weight_sum_hbm: nl.NkiTensor | None
    biases_hbm: nl.NkiTensor | None
    count: int

    @classmethod
    def make(cls, launch: LinearLaunch, gradients: Gradients, count: int) -> _PartGradients:
        """For so many blocks."""
        weight_sum_hbm = biases_hbm = None
        if count > 1 and gradients.weight_hbm is not None:
            shape = tuple(launch.weight_hbm.shape)
            weight_sum_hbm = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name="grad_weight_sum_hbm")
        if count > 1 and gradients.bias_hbm is not None:
            shape = (count, launch.vocab_size)
            biases_hbm = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name="grad_biases_hbm")
        return cls(gradients, weight_sum_hbm, biases_hbm, count)

    def of_part(self, span: Span, number: int) -> Gradients:
        """What block ``number`` writes."""
        whole = self.gradients
        is_first, is_last = number == 0, number + 1 == self.count
        return Gradients(
            None if whole.input_hbm is None else whole.input_hbm[span.first : span.end],
            whole.weight_hbm if is_last else self.weight_sum_hbm,
            whole.bias_hbm if self.biases_hbm is None else self.biases_hbm[number],
            None if is_first else self.weight_sum_hbm,
        )

    def finish(self) -> None:
        """db of all blocks, of which each core has its classes."""
        if self.biases_hbm is None or self.gradients.bias_hbm is None:
            return
        share = shares_of_cores(self.biases_hbm.shape[1], nl.num_programs())[nl.program_id(0)]
        classes = slice(share.first, share.end)
        for first in range(1 if share.size > 0 else self.count, self.count, _SOURCES_MAX - 1):
            sources_hbm = [
                self.biases_hbm[number, classes] for number in range(first, min(first + _SOURCES_MAX - 1, self.count))
            ]
            before_hbm = self.biases_hbm[0, classes] if first == 1 else self.gradients.bias_hbm[classes]
            nisa.dma_compute(dst=self.gradients.bias_hbm[classes], srcs=[before_hbm, *sources_hbm], reduce_op=nl.add)
