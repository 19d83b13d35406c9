# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The log of the ratio of the mixture to the student's probability, and its constants in a launch.

With M = beta P + (1 - beta) Q and r = log(P / Q),

    L = log(M / Q) = log(beta e^r + 1 - beta) = softplus(r + log(beta / (1 - beta))) + log(1 - beta),

one function of Scalar, for any size of r.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p

from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.distillation.options import Launch
from nkilib.experimental.loss.distillation.totals import Totals, center
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Mixture:
    """The constants that depend on beta and the temperature.

    Attributes:
        scale: 1 / T.
        log_odds: log(beta / (1 - beta)).
        log_rest: log(1 - beta).
    """

    scale: float
    log_odds: float
    log_rest: float

    @classmethod
    def of(cls, launch: Launch) -> Mixture:
        """Return the constants of a launch whose beta is between 0 and 1."""
        beta = launch.options.beta
        return cls(launch.scale, log(beta) - log1p(-beta), log1p(-beta))

    def bias(self, center_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the bias of :meth:`take_logs`: log odds - c / T, where c is ``center_sbuf``.

        The differences of logits minus c are T * r.
        """
        bias_sbuf = float32_like(center_sbuf)
        nisa.tensor_scalar(
            dst=bias_sbuf,
            data=center_sbuf,
            op0=nl.multiply,
            operand0=-self.scale,
            op1=nl.add,
            operand1=self.log_odds,
        )
        return bias_sbuf

    def take_logs(self, dst: nl.NkiTensor, difference_sbuf: nl.NkiTensor, bias_sbuf: nl.NkiTensor) -> None:
        """Compute L - log(1 - beta) from the differences teacher - student."""
        nisa.activation(dst=dst, op=nl.softplus, data=difference_sbuf, scale=self.scale, bias=bias_sbuf)


def center_of(launch: Launch, totals: Totals) -> nl.NkiTensor:
    """Return T * (lse of the teacher - lse of the student), once the sums of exponentials of both are complete."""
    return center(totals.teacher, totals.student, launch.options.temperature)
