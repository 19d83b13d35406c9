# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The coefficients A - D and D of the gradient of the loss, one number per position, computed from upstream
gradients.

:mod:`.coefficients` defines them. A tile holds one column of positions, or all positions of a launch in
several columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.core.rows.tiles import constant, float32_like, scaled, selected
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.nki import nisa, nl


class LoadedPositions(Protocol):
    """Some positions, whose values are loaded into one tile."""

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load the elements of a vector [N] that belong to these positions, into a tile [rows, columns]."""


@dataclass(frozen=True)
class TargetTerms:
    """The coefficients of positions whose targets are classes: float32 tiles [rows, columns], None for 0.

    :mod:`.coefficients` defines A, D, g, e and V.

    Attributes:
        own_sbuf: A - D, the term of the target alone; zeros without a gradient of the loss or the
            log-probability.
        rest_sbuf: D.
        spread_sbuf: g * e / V, the multiplier of the class weights.
    """

    own_sbuf: nl.NkiTensor
    rest_sbuf: nl.NkiTensor | None
    spread_sbuf: nl.NkiTensor | None

    @classmethod
    def make(
        cls,
        options: Options,
        upstream: PositionUpstream,
        positions: LoadedPositions,
        lse_sbuf: nl.NkiTensor,
        grad_loss_sbuf: nl.NkiTensor | None,
        valid_sbuf: nl.NkiTensor,
        weights_sbuf: nl.NkiTensor | None,
        weight_sum: float | nl.NkiTensor,
    ) -> TargetTerms:
        """Compute the terms from the loaded values of the positions.

        Args:
            options: the options of the kernel.
            upstream: the upstream vectors; the function loads those that a term needs.
            positions: the positions to load.
            lse_sbuf: the log-sum-exp.
            grad_loss_sbuf: the gradient of the loss from :func:`loaded_gradient`; None for 0.
            valid_sbuf: uint32, 1 for a target that is not ignored.
            weights_sbuf: class weights of the targets; None without any, or if ``upstream`` has them
                (``target_weight_hbm``).
            weight_sum: the sum of all class weights.
        """
        if grad_loss_sbuf is not None:
            grad_loss_sbuf = selected(grad_loss_sbuf, valid_sbuf)
        spread_sbuf = rest_sbuf = None
        if options.spread != 0.0 and grad_loss_sbuf is not None:
            spread_sbuf = scaled(grad_loss_sbuf, options.spread)
            rest_sbuf = scaled(spread_sbuf, weight_sum)
        terms_sbuf = rest_terms(upstream, positions, lse_sbuf, grad_loss_sbuf, options)
        if rest_sbuf is None and terms_sbuf:
            rest_sbuf, *terms_sbuf = terms_sbuf
        own_sbuf = _own(options, upstream, positions, grad_loss_sbuf, weights_sbuf, valid_sbuf)
        if rest_sbuf is not None:
            rest_sbuf = summed(rest_sbuf, terms_sbuf)
        return cls(own_sbuf, rest_sbuf, spread_sbuf)


def loaded_gradient(positions: LoadedPositions, gradient_hbm: nl.NkiTensor, options: Options) -> nl.NkiTensor:
    """Load an upstream gradient of the positions and divide it by the temperature.

    So its product with a derivative with respect to z, the logits after the temperature, is a gradient of the
    logits before it.
    """
    gradient_sbuf = positions.loaded(gradient_hbm)
    return gradient_sbuf if options.temperature == 1.0 else scaled(gradient_sbuf, 1.0 / options.temperature)


def rest_terms(
    upstream: PositionUpstream,
    positions: LoadedPositions,
    lse_sbuf: nl.NkiTensor,
    grad_loss_sbuf: nl.NkiTensor | None,
    options: Options,
) -> list[nl.NkiTensor]:
    """Return the terms of D, see :mod:`.coefficients`, that do not contain the class weights: 2 g s lse and l, if
    present.
    """
    terms_sbuf = []
    if options.square != 0.0 and grad_loss_sbuf is not None:
        square_sbuf = float32_like(lse_sbuf)
        nisa.scalar_tensor_tensor(
            dst=square_sbuf,
            data=grad_loss_sbuf,  # first, so that an ignored position stays 0 however large its lse is
            op0=nl.multiply,
            operand0=2.0 * options.square,
            op1=nl.multiply,
            operand1=lse_sbuf,
        )
        terms_sbuf.append(square_sbuf)
    if upstream.grad_lse_hbm is not None:
        terms_sbuf.append(loaded_gradient(positions, upstream.grad_lse_hbm, options))
    return terms_sbuf


def summed(first_sbuf: nl.NkiTensor, others_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
    """Return the sum of all tiles, written over the first one."""
    for other_sbuf in others_sbuf:
        nisa.tensor_tensor(dst=first_sbuf, data1=first_sbuf, data2=other_sbuf, op=nl.add)
    return first_sbuf


def _own(
    options: Options,
    upstream: PositionUpstream,
    positions: LoadedPositions,
    grad_loss_sbuf: nl.NkiTensor | None,
    weights_sbuf: nl.NkiTensor | None,
    valid_sbuf: nl.NkiTensor,
) -> nl.NkiTensor:
    """Return A - D, see :mod:`.coefficients`: g * (1 - e) * w[t] - q, or 0 for an ignored target."""
    if grad_loss_sbuf is None:
        own_sbuf = constant(valid_sbuf, 0.0)
    else:
        own_sbuf = scaled(grad_loss_sbuf, options.kept)
        if upstream.target_weight_hbm is not None:
            weights_sbuf = positions.loaded(upstream.target_weight_hbm)
        if weights_sbuf is not None:
            # An ignored position has the weight of some class, which may be infinite.
            nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=selected(weights_sbuf, valid_sbuf), op=nl.multiply)
    if upstream.grad_logprob_hbm is not None:
        unmasked_sbuf = loaded_gradient(positions, upstream.grad_logprob_hbm, options)
        grad_logprob_sbuf = selected(unmasked_sbuf, valid_sbuf)
        nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=grad_logprob_sbuf, op=nl.subtract)
    return own_sbuf
