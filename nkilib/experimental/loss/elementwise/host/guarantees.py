"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.guarantee import Guarantee, TermError

_RUNS = (
    "sums: runs of 512 elements in the order of the engine's accumulator, then 32 at a time; the tiling depends on "
    "shape and types alone"
)


def forward_guarantee(*bounds: TermError, notes: str = "") -> Guarantee:
    """Of a forward, with the bounds on its error, one for each form of the loss."""
    return Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error=f"{'; '.join(map(str, bounds))}; u = 2^-23; 16 bits half a ulp more",
        notes="; ".join(filter(None, (_RUNS, notes))),
        term_errors=bounds,
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


KL_DIV_FORWARD = forward_guarantee(term_errors.KL_DIV, term_errors.KL_DIV_OF_LOG_TARGET)
KL_DIV_BACKWARD = backward_guarantee(
    "4 u of -t or -exp(t), 9 u of the terms by the target, times the upstream gradient, and half a ulp"
)
MSE_LOSS_FORWARD = forward_guarantee(term_errors.MSE)
MSE_LOSS_BACKWARD = backward_guarantee("2 u of the gradient, and half a ulp")
L1_LOSS_FORWARD = forward_guarantee(term_errors.L1)
L1_LOSS_BACKWARD = backward_guarantee("u of the gradient, u = 2^-23, and half a ulp")
SMOOTH_L1_LOSS_FORWARD = forward_guarantee(term_errors.SMOOTH_L1)
SMOOTH_L1_LOSS_BACKWARD = backward_guarantee("2 u of the gradient, u = 2^-23, and half a ulp")
HUBER_LOSS_FORWARD = forward_guarantee(term_errors.HUBER)
HUBER_LOSS_BACKWARD = backward_guarantee("2 u of the gradient, u = 2^-23, and half a ulp")
HINGE_EMBEDDING_LOSS_FORWARD = forward_guarantee(term_errors.HINGE_EMBEDDING)
HINGE_EMBEDDING_LOSS_BACKWARD = backward_guarantee(
    "u of the gradient, u = 2^-23, and half a ulp", "there is no gradient by the target"
)
MARGIN_RANKING_LOSS_FORWARD = forward_guarantee(term_errors.MARGIN_RANKING)
MARGIN_RANKING_LOSS_BACKWARD = backward_guarantee(
    "2 u of the gradient, u = 2^-23, and half a ulp; where the loss is not larger than its own error, the gradient may "
    "be that of either side",
    in_place="input1_hbm",
)
BINARY_CROSS_ENTROPY_FORWARD = forward_guarantee(term_errors.BCE, notes="subnormal probabilities are 0")
BINARY_CROSS_ENTROPY_BACKWARD = backward_guarantee(
    "12 u of the gradient by the input, u (5 |A| + 5 |B|) by the target, and half a ulp",
    "by the target it is finite at x = 0 and x = 1, where logarithms are -100",
)
BINARY_CROSS_ENTROPY_WITH_LOGITS_FORWARD = forward_guarantee(
    term_errors.BCE_WITH_LOGITS, term_errors.BCE_WITH_POSITIVE_WEIGHT
)
BINARY_CROSS_ENTROPY_WITH_LOGITS_BACKWARD = backward_guarantee(
    "5 u sigmoid(x), u = 2^-23; with pos_weight 7 u of its terms; and half a ulp"
)
POISSON_NLL_LOSS_FORWARD = forward_guarantee(
    term_errors.POISSON_OF_LOG_RATE,
    term_errors.POISSON_OF_RATE,
    term_errors.FULL_POISSON_OF_LOG_RATE,
    term_errors.FULL_POISSON_OF_RATE,
)
POISSON_NLL_LOSS_BACKWARD = backward_guarantee("u (3 exp(x) + 2 of the gradient), or 5 u of its terms, and half a ulp")
GAUSSIAN_NLL_LOSS_FORWARD = forward_guarantee(term_errors.GAUSSIAN, term_errors.FULL_GAUSSIAN)
GAUSSIAN_NLL_LOSS_BACKWARD = backward_guarantee(
    "11 u of (x - t) / v; by the variance 10 u and 20 u of its terms; and half a ulp"
)
