"""Error of similarity: x where t is 1, ``max(margin - x, 0)`` where it is -1, and their sum where it is neither.

``torch.nn.functional.hinge_embedding_loss(x, t)``. The sum is taken as ``max(x, margin)``, which it is. The derivative
is ``[t != -1] - [t != 1] [x <= margin]``. Terms are chosen, not multiplied by 0: an infinite one would be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import combine, subtract_on_gpsimd, transform
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Derivative, Losses, Piece, Prepared
from nkilib.nki import nisa, nl

_LOWEST = -(2.0**128) * (1.0 - 2.0**-24)


@dataclass(frozen=True)
class HingeEmbedding:
    """The error of similarity.

    Attributes:
        margin: up to which what is not similar counts; finite.
    """

    margin: float

    tensors = (INPUT, TARGET)
    scratch_tiles = 6  # two more than a piece takes, so that Vector does not wait for the sums of Scalar

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Both; the input alone has a gradient."""
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """max(margin - x, 0), [t = -1], and the larger one of x and margin, or x alone where t is 1."""
        hinge_sbuf, other_sbuf = piece.float32(), piece.float32()
        floor_sbuf, is_unlike_sbuf = piece.bfloat16(), piece.bfloat16()
        nisa.activation(dst=hinge_sbuf, op=nl.relu, data=piece[INPUT], scale=-1.0, bias=piece.constant(self.margin))
        # minus infinity, to which the lowest float32 is rounded in bfloat16, or 0
        transform(floor_sbuf, piece[TARGET], nl.equal, 1.0, nl.multiply, _LOWEST)
        combine(other_sbuf, floor_sbuf, nl.add, self.margin, nl.maximum, piece[INPUT])
        unlike_sbuf = piece.constant(-1.0).broadcast(1, piece.shape[1])
        nisa.tensor_tensor(
            dst=is_unlike_sbuf, data1=piece[TARGET], data2=unlike_sbuf, op=nl.equal, engine=nisa.engine.gpsimd
        )
        return hinge_sbuf, other_sbuf, is_unlike_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Of the two what t says."""
        hinge_sbuf, other_sbuf, is_unlike_sbuf = prepared
        nisa.tensor_copy_predicated(dst=other_sbuf, src=hinge_sbuf, predicate=is_unlike_sbuf.view(nl.uint16))
        losses.activation(nl.copy, other_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """[t != -1] - [t != 1] [x <= margin], on GpSimd at the end: numbers that are exact in bfloat16."""
        near_sbuf, slope_sbuf = piece.bfloat16(), piece.bfloat16()
        transform(near_sbuf, piece[INPUT], nl.less_equal, self.margin)
        combine(near_sbuf, piece[TARGET], nl.not_equal, 1.0, nl.multiply, near_sbuf)
        transform(slope_sbuf, piece[TARGET], nl.not_equal, -1.0)
        subtract_on_gpsimd(slope_sbuf, slope_sbuf, near_sbuf)
        return {INPUT: Derivative(slope_sbuf, on_scalar=True)}
