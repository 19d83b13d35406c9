"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.guarantee import Guarantee

_RUNS = (
    "sums: runs of 512 elements in the order of the engine's accumulator, then 32 at a time; the tiling depends on "
    "shape and types alone"
)


def forward_guarantee(error: str, notes: str = "") -> Guarantee:
    """Of a forward, with the bound on its error."""
    return Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error=error,
        notes="; ".join(filter(None, (_RUNS, notes))),
    )


def backward_guarantee(error: str, notes: str = "", in_place: str = "input_hbm") -> Guarantee:
    """Of a backward, likewise; ``in_place`` is the tensor that it may write its gradient over."""
    return Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=in_place,
        error=error,
        notes=notes or "gradients of other tensors are computed on request",
    )


KL_DIV_FORWARD = forward_guarantee(
    "u t (4 |log t| + |log t - x|) + 2^-63 an element, u = 2^-23, or 4 u exp(t) |t - x|, and half a ulp"
)
KL_DIV_BACKWARD = backward_guarantee(
    "4 u of -t or -exp(t), 9 u of the terms by the target, times the upstream gradient, and half a ulp"
)
MSE_LOSS_FORWARD = forward_guarantee("1.5 u d^2 an element, u = 2^-23, d = x - t, and half a ulp")
MSE_LOSS_BACKWARD = backward_guarantee("2 u of the gradient, and half a ulp")
L1_LOSS_FORWARD = forward_guarantee("u |x - t| / 2 an element, u = 2^-23, and half a ulp")
L1_LOSS_BACKWARD = backward_guarantee("u of the gradient, u = 2^-23, and half a ulp")
SMOOTH_L1_LOSS_FORWARD = forward_guarantee("2 u max(|x - t|, beta) an element, u = 2^-23, and half a ulp")
SMOOTH_L1_LOSS_BACKWARD = backward_guarantee("2 u of the gradient, u = 2^-23, and half a ulp")
HUBER_LOSS_FORWARD = forward_guarantee("2.25 u delta max(|x - t|, delta) an element, u = 2^-23, and half a ulp")
HUBER_LOSS_BACKWARD = backward_guarantee("2 u of the gradient, u = 2^-23, and half a ulp")
HINGE_EMBEDDING_LOSS_FORWARD = forward_guarantee("u max(margin - x, 0) / 2 an element, u = 2^-23, and half a ulp")
HINGE_EMBEDDING_LOSS_BACKWARD = backward_guarantee(
    "u of the gradient, u = 2^-23, and half a ulp", "there is no gradient by the target"
)
MARGIN_RANKING_LOSS_FORWARD = forward_guarantee(
    "u |t d| + u |margin - t d| / 2 an element, d = x1 - x2, u = 2^-23, and half a ulp"
)
MARGIN_RANKING_LOSS_BACKWARD = backward_guarantee(
    "2 u of the gradient, u = 2^-23, and half a ulp; where the loss is not larger than its own error, the gradient may "
    "be that of either side",
    in_place="input1_hbm",
)
BINARY_CROSS_ENTROPY_FORWARD = forward_guarantee(
    "u (7 t |A| + 7 (1 - t) |B|) an element, u = 2^-23, A = log x, B = log(1 - x), and 281 u t for x < 2^-32; and "
    "half a ulp",
    "subnormal probabilities are 0",
)
BINARY_CROSS_ENTROPY_BACKWARD = backward_guarantee(
    "12 u of the gradient by the input, u (5 |A| + 5 |B|) by the target, and half a ulp",
    "by the target it is finite at x = 0 and x = 1, where logarithms are -100",
)
BINARY_CROSS_ENTROPY_WITH_LOGITS_FORWARD = forward_guarantee(
    "u (4 softplus(-|x|) + |t x| / 2 + |max(x, 0) - t x| / 2 + loss / 2), u = 2^-23; with pos_weight u (6 w "
    "softplus(-|x|) + 4 of the "
    "other "
    "terms); "
    "and half a ulp"
)
BINARY_CROSS_ENTROPY_WITH_LOGITS_BACKWARD = backward_guarantee(
    "5 u sigmoid(x), u = 2^-23; with pos_weight 7 u of its terms; and half a ulp"
)
POISSON_NLL_LOSS_FORWARD = forward_guarantee(
    "u (3 exp(x) + |t x| / 2 + loss / 2), u = 2^-23, or u (5 t |log(x + eps)| + t + loss / 2); with full 7 u of its "
    "terms "
    "more; and half a ulp"
)
POISSON_NLL_LOSS_BACKWARD = backward_guarantee("u (3 exp(x) + 2 of the gradient), or 5 u of its terms, and half a ulp")
GAUSSIAN_NLL_LOSS_FORWARD = forward_guarantee(
    "u (11 (x - t)^2 / (2 v) + 2 |log v| + 6 + loss / 2), u = 2^-23, v = max(var, eps), and half a ulp"
)
GAUSSIAN_NLL_LOSS_BACKWARD = backward_guarantee(
    "11 u of (x - t) / v; by the variance 10 u and 20 u of its terms; and half a ulp"
)
