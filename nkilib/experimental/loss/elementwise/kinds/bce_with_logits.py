"""Binary cross-entropy of logits, ``torch.nn.functional.binary_cross_entropy_with_logits(x, t)``.

``softplus(-|x|) + x ([x > 0] - t)``, which is PyTorch's ``(1 - t) x + softplus(-x)``: of the two exponentials the
small one is taken, so that a confident logit keeps its small loss. At t = 0 and t = 1 nothing cancels at all.
Derivatives ``sigmoid(x) - t`` and ``-x``.

With a weight p of positive examples ``w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0)`` for ``w = p t + (1 - t)``;
derivatives ``(1 - t) - w sigmoid(-x)`` and ``(p - 1) softplus(-x) - x``.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import (
    add_on_gpsimd,
    combine,
    difference,
    multiply_on_gpsimd,
    product,
    subtract_on_gpsimd,
    transform,
)
from nkilib.experimental.loss.elementwise.kind import (
    INPUT,
    POSITIVE_WEIGHT,
    TARGET,
    Activation,
    Combination,
    Derivative,
    Losses,
    Piece,
    Prepared,
)
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class BceWithLogits:
    """The loss without a weight of positive examples."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 4

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The target is needed for the gradient of the input alone."""
        return self.tensors if INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """|x| in the type of x, and [x > 0] - t. A flag is a bfloat16, which Vector writes fast."""
        size_sbuf, flag_sbuf, rest_sbuf = piece.like(INPUT), piece.bfloat16(), piece.float32()
        transform(flag_sbuf, piece[INPUT], nl.greater, 0.0)
        transform(size_sbuf, piece[INPUT], nl.abs, None)
        subtract_on_gpsimd(rest_sbuf, flag_sbuf, piece[TARGET])
        return size_sbuf, rest_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """softplus(-|x|), and x ([x > 0] - t)."""
        size_sbuf, rest_sbuf = prepared
        losses.activation_and_combination(
            Activation(nl.softplus, size_sbuf, -1.0, piece.float32()),
            Combination(piece[INPUT], nl.multiply, 1.0, nl.multiply, rest_sbuf),
        )

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """sigmoid(x) - t, -x."""
        found = {TARGET: Derivative(piece[INPUT], -1.0)}
        if INPUT in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.sigmoid, data=piece[INPUT])
            difference(slope_sbuf, slope_sbuf, piece[TARGET])
            found[INPUT] = Derivative(slope_sbuf, on_scalar=True)
        return found


@dataclass(frozen=True)
class BceWithPositiveWeight:
    """The loss with a weight of positive examples for each element."""

    tensors = (INPUT, TARGET, POSITIVE_WEIGHT)
    scratch_tiles = 5

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The target is needed for the gradient of the input alone."""
        return self.tensors if INPUT in wanted else (INPUT, POSITIVE_WEIGHT)

    def prepare(self, piece: Piece) -> Prepared:
        """softplus(-|x|), p t, 1 - t and their sum w."""
        size_sbuf, soft_sbuf = piece.like(INPUT), piece.float32()
        transform(size_sbuf, piece[INPUT], nl.abs, None)
        nisa.activation(dst=soft_sbuf, op=nl.softplus, data=size_sbuf, scale=-1.0)
        shares = _Shares.of(piece)
        return soft_sbuf, shares.positive_sbuf, shares.negative_sbuf, shares.weight_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """(w softplus(-|x|) - p t min(x, 0)) + (1 - t) max(x, 0): of the last two terms one is 0."""
        soft_sbuf, positive_sbuf, negative_sbuf, weight_sbuf = prepared
        combine(positive_sbuf, piece[INPUT], nl.minimum, 0.0, nl.multiply, positive_sbuf)
        combine(negative_sbuf, piece[INPUT], nl.maximum, 0.0, nl.multiply, negative_sbuf)
        product(soft_sbuf, soft_sbuf, weight_sbuf)
        difference(soft_sbuf, soft_sbuf, positive_sbuf)
        losses.scalar_tensor_tensor(soft_sbuf, nl.add, 0.0, nl.add, negative_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """(1 - t) - w sigmoid(-x), (p - 1) softplus(-x) - x."""
        found = {}
        if INPUT in wanted:
            sigmoid_sbuf = piece.float32()
            shares = _Shares.of(piece)
            nisa.activation(dst=sigmoid_sbuf, op=nl.sigmoid, data=piece[INPUT], scale=-1.0)
            product(shares.weight_sbuf, shares.weight_sbuf, sigmoid_sbuf)
            difference(shares.negative_sbuf, shares.negative_sbuf, shares.weight_sbuf)
            found[INPUT] = Derivative(shares.negative_sbuf, on_scalar=True)
        if TARGET in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.softplus, data=piece[INPUT], scale=-1.0)
            combine(slope_sbuf, piece[POSITIVE_WEIGHT], nl.subtract, 1.0, nl.multiply, slope_sbuf)
            difference(slope_sbuf, slope_sbuf, piece[INPUT])
            found[TARGET] = Derivative(slope_sbuf)
        return found


@dataclass(frozen=True)
class _Shares:
    """p t, 1 - t and their sum w.

    Attributes:
        positive_sbuf, negative_sbuf, weight_sbuf: these.
    """

    positive_sbuf: nl.NkiTensor
    negative_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor

    @classmethod
    def of(cls, piece: Piece) -> _Shares:
        """On GpSimd and Scalar: Vector has enough to do."""
        found = cls(piece.float32(), piece.float32(), piece.float32())
        multiply_on_gpsimd(found.positive_sbuf, piece[POSITIVE_WEIGHT], piece[TARGET])
        one_sbuf = piece.constant(1.0)
        nisa.activation(dst=found.negative_sbuf, op=nl.copy, data=piece[TARGET], scale=-1.0, bias=one_sbuf)
        add_on_gpsimd(found.weight_sbuf, found.positive_sbuf, found.negative_sbuf)
        return found
