"""Kullback-Leibler divergence of elements: input x are log-probabilities, target t probabilities or their logarithms.

``t * (log t - x)``, or ``exp(t) * (t - x)`` for ``log_target``: ``torch.nn.functional.kl_div(x, t)``. Both factor what
PyTorch writes as a difference of products, so that nothing cancels but what cancels in the truth.

The logarithm is that of t + 2^-64: exact in float32 from t = 2^-40 on, finite at 0, and off by at most 2^-64 in
``t * log t``. NKI documents ``log`` on [2^-64, 2^64] alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from nkilib.experimental.loss.elementwise.kind import Derivative, Piece, Prepared, difference, product, runs, sum_runs
from nkilib.nki import nisa, nl

INPUT, TARGET = 0, 1
# Added to a target before its logarithm is taken.
LEAST_TARGET = 2.0**-64
# Below it a target is multiplied by 2^64 before its logarithm is taken exactly.
_SMALL, _RAISED = 2.0**-32, 2.0**64


def needed_tensors(wanted: tuple[int, ...]) -> tuple[int, ...]:
    """What gradients are made of: that of the input of the target alone."""
    return (INPUT, TARGET) if TARGET in wanted else (TARGET,)


@dataclass(frozen=True)
class KlDiv:
    """The divergence from targets that are probabilities.

    Attributes:
        least_sbuf: ``LEAST_TARGET`` in each partition, float32 [128, 1].
    """

    least_sbuf: nl.NkiTensor
    scratch_tiles = 4

    @classmethod
    def make(cls) -> KlDiv:
        """With its constant."""
        least_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=least_sbuf, value=LEAST_TARGET)
        return cls(least_sbuf)

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """As :func:`needed_tensors`."""
        return needed_tensors(wanted)

    def prepare(self, piece: Piece) -> Prepared:
        """log(t + 2^-64)."""
        log_sbuf, (rows, _) = piece.float32(), piece.shape
        nisa.activation(dst=log_sbuf, op=nl.log, data=piece.tensors[TARGET], bias=self.least_sbuf[0:rows, :])
        return (log_sbuf,)

    def losses(self, piece: Piece, prepared: Prepared, dst_sbuf: nl.NkiTensor) -> None:
        """(log t - x) * t; NaN where t is 0 and x infinite, as PyTorch has it."""
        (log_sbuf,) = prepared
        difference(log_sbuf, log_sbuf, piece.tensors[INPUT])
        product(dst_sbuf, log_sbuf, piece.tensors[TARGET])

    def sums(self, piece: Piece, prepared: Prepared, sums_sbuf: nl.NkiTensor) -> None:
        """The same, over the logarithms, summed up by Scalar while Vector has the next piece."""
        (log_sbuf,) = prepared
        self.losses(piece, prepared, log_sbuf)
        sum_runs(log_sbuf, sums_sbuf)

    def derivative(self, piece: Piece, tensor: int) -> Derivative:
        """-t, or log t + 1 - x, which is NaN at t = 0 as in PyTorch."""
        if tensor == INPUT:
            return Derivative(piece.tensors[TARGET], -1.0)
        log_sbuf = _logarithm(piece)
        nisa.scalar_tensor_tensor(
            dst=log_sbuf, data=log_sbuf, op0=nl.add, operand0=1.0, op1=nl.subtract, operand1=piece.tensors[INPUT]
        )
        return Derivative(log_sbuf)


def _logarithm(piece: Piece) -> nl.NkiTensor:
    """log t of every normal number, NaN of 0: small targets are raised into the documented range of ``log`` first."""
    target_sbuf = piece.tensors[TARGET]
    raised_sbuf, log_sbuf = piece.float32(), piece.float32()
    nisa.tensor_scalar(
        dst=raised_sbuf, data=target_sbuf, op0=nl.less, operand0=_SMALL, op1=nl.multiply, operand1=_RAISED
    )
    # 1 + 2^64 is 2^64 in float32
    nisa.scalar_tensor_tensor(
        dst=log_sbuf, data=raised_sbuf, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=target_sbuf
    )
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf)
    nisa.scalar_tensor_tensor(
        dst=log_sbuf, data=raised_sbuf, op0=nl.multiply, operand0=-log(_RAISED) / _RAISED, op1=nl.add, operand1=log_sbuf
    )
    nisa.scalar_tensor_tensor(dst=log_sbuf, data=log_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=log_sbuf)
    return log_sbuf


@dataclass(frozen=True)
class KlDivOfLogTarget:
    """The divergence from targets that are log-probabilities."""

    scratch_tiles = 3

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """As :func:`needed_tensors`."""
        return needed_tensors(wanted)

    def prepare(self, piece: Piece) -> Prepared:
        """exp(t) and t - x, on Scalar and on GpSimd, which leaves Vector one pass."""
        exponential_sbuf, difference_sbuf = piece.float32(), piece.float32()
        nisa.activation(dst=exponential_sbuf, op=nl.exp, data=piece.tensors[TARGET])
        nisa.tensor_tensor(
            dst=difference_sbuf,
            data1=piece.tensors[TARGET],
            data2=piece.tensors[INPUT],
            op=nl.subtract,
            engine=nisa.engine.gpsimd,
        )
        return exponential_sbuf, difference_sbuf

    def losses(self, piece: Piece, prepared: Prepared, dst_sbuf: nl.NkiTensor) -> None:
        """(t - x) * exp(t); NaN where t is -inf, as PyTorch has it."""
        exponential_sbuf, difference_sbuf = prepared
        product(dst_sbuf, difference_sbuf, exponential_sbuf)

    def sums(self, piece: Piece, prepared: Prepared, sums_sbuf: nl.NkiTensor) -> None:
        """The same, summed up by the instruction that multiplies: Scalar has the exponentials to do."""
        exponential_sbuf, difference_sbuf = prepared
        for number, (start, end) in enumerate(runs(difference_sbuf)):
            nisa.scalar_tensor_tensor(
                dst=difference_sbuf[:, start:end],
                data=difference_sbuf[:, start:end],
                op0=nl.multiply,
                operand0=1.0,
                op1=nl.multiply,
                operand1=exponential_sbuf[:, start:end],
                reduce_op=nl.add,
                reduce_res=sums_sbuf[:, number : number + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def derivative(self, piece: Piece, tensor: int) -> Derivative:
        """-exp(t), or exp(t) * (t - x + 1)."""
        exponential_sbuf, sum_sbuf = piece.float32(), piece.float32()
        nisa.activation(dst=exponential_sbuf, op=nl.exp, data=piece.tensors[TARGET])
        if tensor == INPUT:
            return Derivative(exponential_sbuf, -1.0)
        difference(sum_sbuf, piece.tensors[TARGET], piece.tensors[INPUT])
        nisa.scalar_tensor_tensor(
            dst=sum_sbuf, data=sum_sbuf, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=exponential_sbuf
        )
        return Derivative(sum_sbuf)
