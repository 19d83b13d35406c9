# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensors that the backward takes besides logits and targets, and the terms of the softmax computed from
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.tiles import float32_like, product, scaled, with_nan_of_infinite
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class UniformUpstream:
    """The same upstream gradient for all losses.

    Attributes:
        lse_hbm: the log-sum-exp, [N].
        scale: the gradient of each loss.
    """

    lse_hbm: nl.NkiTensor
    scale: float


@dataclass(frozen=True)
class PositionUpstream:
    """The upstream gradients and statistics of each position: vectors [N] in HBM, None for absent ones.

    Attributes:
        lse_hbm: the log-sum-exp.
        grad_loss_hbm: gradient of each loss; only linear cross-entropy may do without it (None).
        grad_lse_hbm, grad_logprob_hbm: gradients of each lse, and of each target's log-probability.
        target_weight_hbm: the class weight ``w[t]`` of each target, or for class probabilities the sum of each
            position's factors.
        weight_sum: the sum of all class weights, a number.
        maximum_hbm, log_sum_hbm: the maximum of z and the logarithm of the sum of exp(z - maximum); their sum
            is lse.
        entropy_hbm, grad_entropy_hbm: the entropy of each position's softmax, and its gradient.
    """

    lse_hbm: nl.NkiTensor
    grad_loss_hbm: nl.NkiTensor | None
    grad_lse_hbm: nl.NkiTensor | None
    grad_logprob_hbm: nl.NkiTensor | None
    target_weight_hbm: nl.NkiTensor | None
    weight_sum: float | None
    maximum_hbm: nl.NkiTensor | None
    log_sum_hbm: nl.NkiTensor | None
    entropy_hbm: nl.NkiTensor | None = None
    grad_entropy_hbm: nl.NkiTensor | None = None

    @property
    def required_grad_loss_hbm(self) -> nl.NkiTensor:
        """The gradient of each loss, for kernels that require it; an AssertionError is raised if it is None."""
        if self.grad_loss_hbm is None:
            raise AssertionError("PositionUpstream: grad_loss_hbm must be a tensor, got None; pass the gradient")
        return self.grad_loss_hbm


Upstream = UniformUpstream | PositionUpstream


@dataclass(frozen=True)
class SoftmaxTerms:
    """The terms that turn exponentials into a softmax: float32 [rows, 1].

    Attributes:
        lse_sbuf: the log-sum-exp.
        bias_sbuf: the bias of the exponentials: -m, so that exp(z + bias) is the softmax times the sum of
            exp(z - m) with the maximum m; or -lse, so that it is the softmax itself.
        inverse_sbuf: 1 over the sum of exp(z - m); None if the bias is -lse.
        log_sum_sbuf: the logarithm of the sum of exp(z - m); None if the bias is -lse.
    """

    lse_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    inverse_sbuf: nl.NkiTensor | None
    log_sum_sbuf: nl.NkiTensor | None

    @classmethod
    def load(cls, upstream: PositionUpstream, batch: Batch) -> SoftmaxTerms:
        """Load the terms of a batch: the maximum and the log of the sum if the upstream has them, else the log-sum-exp
        alone.

        For large logits, lse has lost its last digits. The maximum is one of the logits, and z minus it is exact.
        """
        lse_sbuf = batch.loaded(upstream.lse_hbm)
        if upstream.maximum_hbm is None or upstream.log_sum_hbm is None:
            return cls(lse_sbuf, negated_lse(lse_sbuf, 0.0), None, None)
        negated_sbuf = scaled(batch.loaded(upstream.maximum_hbm), -1.0)
        log_sum_sbuf = batch.loaded(upstream.log_sum_hbm)
        inverse_sbuf = float32_like(log_sum_sbuf)
        nisa.activation(dst=inverse_sbuf, op=nl.exp, data=log_sum_sbuf, scale=-1.0)
        return cls(lse_sbuf, with_nan_of_infinite(negated_sbuf, lse_sbuf, nl.float32), inverse_sbuf, log_sum_sbuf)

    def normalized(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values times ``inverse_sbuf``, or the values themselves if it is None."""
        return values_sbuf if self.inverse_sbuf is None else product(values_sbuf, self.inverse_sbuf)


def negated_lse(lse_sbuf: nl.NkiTensor, added: float | nl.NkiTensor) -> nl.NkiTensor:
    """Return ``added - lse``, float32 [rows, 1], the bias of exponentials that are a softmax if ``added`` is 0.

    Where lse is infinite the bias is NaN, and so is the row's gradient, as in PyTorch.
    """
    bias_sbuf = float32_like(lse_sbuf)
    nisa.tensor_scalar(dst=bias_sbuf, data=lse_sbuf, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=added)
    return with_nan_of_infinite(bias_sbuf, lse_sbuf, nl.float32)
