"""Capped logits: z = c * tanh(x / c), and -inf where x is -inf, so that masked classes stay masked."""

from __future__ import annotations

from nkilib.core.rows.tiles import FLOAT32_HIGHEST
from nkilib.nki import nisa, nl


def hyperbolic_tangents(dst_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor, softcap: float) -> None:
    """tanh(x / c). Scalar loads another activation table for it, and exp's again afterwards."""
    nisa.activation(dst=dst_sbuf, op=nl.tanh, data=logits_sbuf, scale=1.0 / softcap)


def masked_tangents(dst_sbuf: nl.NkiTensor, tangents_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor) -> None:
    """min(x + highest, tanh): -inf where x is -inf, and the tangent elsewhere.

    For any finite x the sum is at least 0, and for x > -1e38 at least 2.4e38; where it is small, the tangent is -1.
    """
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=logits_sbuf, op0=nl.add, operand0=FLOAT32_HIGHEST, op1=nl.minimum, operand1=tangents_sbuf
    )


def capped_logits(dst_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor, softcap: float) -> None:
    """z in float32."""
    hyperbolic_tangents(dst_sbuf, logits_sbuf, softcap)
    masked_tangents(dst_sbuf, dst_sbuf, logits_sbuf)
    nisa.tensor_scalar(dst=dst_sbuf, data=dst_sbuf, op0=nl.multiply, operand0=softcap)


def capped_softmax(
    exponentials_sbuf: nl.NkiTensor,
    tangents_sbuf: nl.NkiTensor,
    logits_sbuf: nl.NkiTensor,
    bias_sbuf: nl.NkiTensor,
    softcap: float,
) -> None:
    """exp(z + bias) and tanh(x / c)^2 in float32, for :func:`through_cap`: three instructions of Scalar.

    Masked logits are taken for -c: what they give is multiplied with 1 - tanh^2, which is 0 there.
    """
    hyperbolic_tangents(tangents_sbuf, logits_sbuf, softcap)
    nisa.activation(dst=exponentials_sbuf, op=nl.exp, data=tangents_sbuf, bias=bias_sbuf, scale=softcap)
    nisa.activation(dst=tangents_sbuf, op=nl.square, data=tangents_sbuf)


def through_cap(dst_sbuf: nl.NkiTensor, gradient_sbuf: nl.NkiTensor, squares_sbuf: nl.NkiTensor) -> None:
    """dz * (1 - tanh^2), the gradient of x where that of z is dz; rounded once."""
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf,
        data=squares_sbuf,
        op0=nl.subtract,
        operand0=1.0,
        reverse0=True,
        op1=nl.multiply,
        operand1=gradient_sbuf,
    )
