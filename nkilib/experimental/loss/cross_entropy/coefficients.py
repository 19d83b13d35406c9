"""What the gradient of a batch is made of, and the gradient at its targets.

With g the gradient of the loss, l that of the log-sum-exp and q that of the target's log-probability,

    D = g * ((e / V) * W + 2 s lse) + l        A = D + g * (1 - e) * w[t] - q

and the gradient is A * softmax - g * (e / V) * w, less A - D at the target: (A - D) * (p - 1) + D * p, where the large
terms of a confident target have cancelled, and D does not hide a small p. Where targets are probabilities, W is the sum
of the factors of each position and stands in D without e / V, and A = D.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.cross_entropy.softcap import capped_softmax, through_cap
from nkilib.experimental.loss.cross_entropy.upstream import SoftmaxTerms
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class UniformCoefficients:
    """Of positions that all count alike: exp(z + bias) is scale * softmax, so that one activation makes the gradient.

    Attributes:
        bias_sbuf: log(scale) - lse, float32 [rows, 1].
        index_sbuf: of the target elements, int32 [rows, 1].
        scale: of the gradient.
    """

    bias_sbuf: nl.NkiTensor
    index_sbuf: nl.NkiTensor
    scale: float

    def at_target(self, logit_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        """scale * (p - 1), rounded to ``dtype`` after the subtraction, where p near 1 would lose all digits."""
        scaled_p_sbuf = float32_like(logit_sbuf)
        nisa.activation(dst=scaled_p_sbuf, op=nl.exp, data=logit_sbuf, bias=self.bias_sbuf)
        gradient_sbuf = nl.ndarray(logit_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=gradient_sbuf, data=scaled_p_sbuf, op0=nl.subtract, operand0=self.scale)
        return gradient_sbuf


@dataclass(frozen=True)
class ChunkCoefficients:
    """What all classes of a position take: float32 tiles [rows, 1], None for 0.

    Attributes:
        softmax: its terms.
        all_sbuf: A, times ``SoftmaxTerms.inverse_sbuf``.
        rest_sbuf: D.
        spread_sbuf: what class factors are multiplied with.
    """

    softmax: SoftmaxTerms
    all_sbuf: nl.NkiTensor
    rest_sbuf: nl.NkiTensor | None
    spread_sbuf: nl.NkiTensor | None

    @property
    def bias_sbuf(self) -> nl.NkiTensor:
        """Of the exponentials."""
        return self.softmax.bias_sbuf

    def apply(self, dst_sbuf: nl.NkiTensor, exponentials_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor | None) -> None:
        """A * softmax - spread * factors, which are 1 if there are none; the exponentials may be overwritten."""
        if self.spread_sbuf is None:
            nisa.tensor_scalar(dst=dst_sbuf, data=exponentials_sbuf, op0=nl.multiply, operand0=self.all_sbuf)
        elif factors_sbuf is None:
            nisa.tensor_scalar(
                dst=dst_sbuf,
                data=exponentials_sbuf,
                op0=nl.multiply,
                operand0=self.all_sbuf,
                op1=nl.subtract,
                operand1=self.spread_sbuf,
            )
        else:
            nisa.tensor_scalar(dst=exponentials_sbuf, data=exponentials_sbuf, op0=nl.multiply, operand0=self.all_sbuf)
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf,
                data=factors_sbuf,
                op0=nl.multiply,
                operand0=self.spread_sbuf,
                op1=nl.subtract,
                operand1=exponentials_sbuf,
                reverse1=True,
            )


@dataclass(frozen=True)
class TargetCoefficients(ChunkCoefficients):
    """What the target of a position takes beside: tiles [rows, 1].

    Attributes:
        index_sbuf: int32, of the target elements.
        own_sbuf: A - D.
        held_sbuf: 1.0, or 0.0 for a target that is ignored or whose class is not here.
        weights_sbuf: of the columns that the indices stand for; None without class weights.
        softcap: of the logits.
    """

    index_sbuf: nl.NkiTensor
    own_sbuf: nl.NkiTensor
    held_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor | None
    softcap: float | None

    def at_target(self, logit_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        """The gradient at the target, computed in float32 and rounded to ``dtype`` once.

        (A - D) * (p - held) + D * p - spread * w, where held is 0 for a target that is ignored or not here: then it is
        what the chunk has put there.
        """
        exponential_sbuf, square_sbuf = float32_like(logit_sbuf), float32_like(logit_sbuf)
        if self.softcap is None:
            nisa.activation(dst=exponential_sbuf, op=nl.exp, data=logit_sbuf, bias=self.bias_sbuf)
        else:
            capped_softmax(exponential_sbuf, square_sbuf, logit_sbuf, self.bias_sbuf, self.softcap)
        p_sbuf = self.softmax.normalized(exponential_sbuf)
        sum_sbuf = float32_like(logit_sbuf)
        nisa.scalar_tensor_tensor(
            dst=sum_sbuf,
            data=p_sbuf,
            op0=nl.subtract,
            operand0=self.held_sbuf,
            op1=nl.multiply,
            operand1=self.own_sbuf,
        )
        if self.rest_sbuf is not None:
            nisa.scalar_tensor_tensor(
                dst=sum_sbuf, data=self.rest_sbuf, op0=nl.multiply, operand0=p_sbuf, op1=nl.add, operand1=sum_sbuf
            )
        if self.spread_sbuf is not None:
            nisa.scalar_tensor_tensor(
                dst=sum_sbuf,
                data=self.spread_sbuf,
                op0=nl.multiply,
                operand0=1.0 if self.weights_sbuf is None else self.weights_sbuf,
                op1=nl.subtract,
                operand1=sum_sbuf,
                reverse1=True,
            )
        gradient_sbuf = nl.ndarray(logit_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
        if self.softcap is None:
            nisa.tensor_copy(dst=gradient_sbuf, src=sum_sbuf)
        else:
            through_cap(gradient_sbuf, sum_sbuf, square_sbuf)
        return gradient_sbuf


# Of one batch: with targets that all count alike; of class targets; of class probabilities.
Coefficients = UniformCoefficients | TargetCoefficients | ChunkCoefficients
