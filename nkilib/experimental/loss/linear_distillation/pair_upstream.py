"""What the backward is given beside the operands: results of the forward, and gradients of them."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Block
from nkilib.nki import nl


@dataclass(frozen=True)
class ModelStatistics:
    """The log-sum-exp of one model over all classes, [N] float32 each.

    Attributes:
        maximum_hbm: the largest z.
        log_sum_hbm: log(sum(exp(z - maximum))).
    """

    maximum_hbm: nl.NkiTensor
    log_sum_hbm: nl.NkiTensor

    def of_positions(self, block: Block) -> ModelStatistics:
        """Those of some positions alone."""
        return ModelStatistics(block.of(self.maximum_hbm), block.of(self.log_sum_hbm))


@dataclass(frozen=True)
class PairUpstream:
    """Vectors [N] in HBM, float32.

    Attributes:
        student, teacher: of each model.
        moment_hbm: KL(student || mixture) or KL(student || teacher), from the forward; not looked at for
            KL(teacher || student).
        grad_divergence_hbm: the gradient of each divergence.
        grad_logprob_hbm: the gradient of each log-probability of a label; None for 0.
    """

    student: ModelStatistics
    teacher: ModelStatistics
    moment_hbm: nl.NkiTensor
    grad_divergence_hbm: nl.NkiTensor
    grad_logprob_hbm: nl.NkiTensor | None

    def of_positions(self, block: Block) -> PairUpstream:
        """What comes to some positions alone."""
        return PairUpstream(
            self.student.of_positions(block),
            self.teacher.of_positions(block),
            block.of(self.moment_hbm),
            block.of(self.grad_divergence_hbm),
            None if self.grad_logprob_hbm is None else block.of(self.grad_logprob_hbm),
        )
