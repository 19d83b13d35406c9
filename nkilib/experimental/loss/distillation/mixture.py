# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The log of the mixture over the student's probability, and what a launch knows of it.

With M = beta P + (1 - beta) Q and r = log(P / Q),

    L = log(M / Q) = log(beta e^r + 1 - beta) = softplus(r + log(beta / (1 - beta))) + log(1 - beta),

one function of Scalar, whatever the size of r is.
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
    """Constants of beta.

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
        """Of a launch whose beta is between 0 and 1."""
        beta = launch.options.beta
        return cls(launch.scale, log(beta) - log1p(-beta), log1p(-beta))

    def bias(self, center_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """What :meth:`take_logs` adds: log odds - c / T, of rows whose differences of logits less c are T * r."""
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
        """L - log(1 - beta), of differences teacher - student."""
        nisa.activation(dst=dst, op=nl.softplus, data=difference_sbuf, scale=self.scale, bias=bias_sbuf)


def center_of(launch: Launch, totals: Totals) -> nl.NkiTensor:
    """T * (lse of the teacher - lse of the student), once S of both are there."""
    return center(totals.teacher, totals.student, launch.options.temperature)
