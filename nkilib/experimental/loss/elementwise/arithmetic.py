"""Instructions that many kinds share."""

from __future__ import annotations

from nkilib.nki import nisa, nl


def difference(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """left - right. ``scalar_tensor_tensor`` takes two tiles of SBUF at twice the rate of ``tensor_tensor``.

    Not as a product with the identity on Tensor: an infinite number in one partition would be NaN in all others.
    """
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=left_sbuf, op0=nl.add, operand0=0.0, op1=nl.subtract, operand1=right_sbuf
    )


def subtract_on_gpsimd(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """left - right, at less than two thirds of the rate, for losses that leave Vector no time for it."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.subtract, engine=nisa.engine.gpsimd)


def total(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """left + right, as :func:`difference`."""
    nisa.scalar_tensor_tensor(dst=dst_sbuf, data=left_sbuf, op0=nl.add, operand0=0.0, op1=nl.add, operand1=right_sbuf)


def multiply_on_gpsimd(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """left * right, as :func:`subtract_on_gpsimd`."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.multiply, engine=nisa.engine.gpsimd)


def product(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """left * right, as :func:`difference`."""
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=left_sbuf, op0=nl.multiply, operand0=1.0, op1=nl.multiply, operand1=right_sbuf
    )
