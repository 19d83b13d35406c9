# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cap of logits on chip: z = c * tanh(x / c) for a logit x and a cap c.

z is -inf where x is -inf, so that masked classes stay masked. Kernels keep only the tangents tanh(x / c) in tiles; the
factor c is part of the scale that turns tiles into z. :func:`hyperbolic_tangents` computes tangents and
:func:`masked_tangents` sets -inf; :func:`squared` and :func:`through_cap` multiply a gradient by the derivative of the
cap.
"""

from __future__ import annotations

from nkilib.core.rows.tiles import FLOAT32_HIGHEST
from nkilib.nki import nisa, nl


def hyperbolic_tangents(dst_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor, softcap: float) -> None:
    """Write tanh(x / c) of the logits x to ``dst_sbuf``, with the cap c = ``softcap``.

    Scalar loads the activation table of tanh, and for a later exp the table of exp again.
    """
    nisa.activation(dst=dst_sbuf, op=nl.tanh, data=logits_sbuf, scale=1.0 / softcap)


def masked_tangents(dst_sbuf: nl.NkiTensor, tangents_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor) -> None:
    """Write the tangents to ``dst_sbuf``, with -inf where the logit x is -inf, as min(x + highest float32, tangent).

    For a finite x the minimum is the tangent: the sum is at least 0, and it is large unless x is near the lowest
    float32, where the tangent is -1.
    """
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=logits_sbuf, op0=nl.add, operand0=FLOAT32_HIGHEST, op1=nl.minimum, operand1=tangents_sbuf
    )


def squared(tangents_sbuf: nl.NkiTensor) -> None:
    """Square the tangents tanh(x / c) in place, for :func:`through_cap`.

    A logit x of -inf is treated as if its tangent were -1: its gradient is multiplied by 1 - tanh^2 = 0.
    """
    nisa.activation(dst=tangents_sbuf, op=nl.square, data=tangents_sbuf)


def through_cap(dst_sbuf: nl.NkiTensor, gradient_sbuf: nl.NkiTensor, squares_sbuf: nl.NkiTensor) -> None:
    """Write the gradient of the logits x to ``dst_sbuf``: dz * (1 - tanh(x / c)^2), rounded once.

    Args:
        dst_sbuf: the gradient of x.
        gradient_sbuf: dz, the gradient of z.
        squares_sbuf: the squared tangents, see :func:`squared`.
    """
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf,
        data=squares_sbuf,
        op0=nl.subtract,
        operand0=1.0,
        reverse0=True,
        op1=nl.multiply,
        operand1=gradient_sbuf,
    )
