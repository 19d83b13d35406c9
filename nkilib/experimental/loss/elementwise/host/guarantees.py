"""What the kernels promise. Tests hold each claim; kernels are held to the errors of gradients that truths derive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nkilib.base.guarantee import Guarantee, TermError
from nkilib.experimental.loss.elementwise.host import term_errors

_RUNS = (
    "sums: runs of 512 elements, of 16-bit tensors of 2,048, in the order of the engine's accumulator, then 32 at a "
    "time; the tiling depends on shape and types alone"
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


def backward_guarantee(
    error: str, functions: Mapping[str, float] | None = None, notes: str = "", in_place: str = "input_hbm"
) -> Guarantee:
    """Of a backward.

    Args:
        error: the bound, with every activation function rounded correctly.
        functions: what each u adds that one is further off, in u of what it is a factor of.
        notes: what else there is to know.
        in_place: the tensor that it may write its gradient over.
    """
    further = "".join(f", {each:g} u more for each further u of {name}" for name, each in (functions or {}).items())
    return Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=in_place,
        error=f"{error}{further}; u = 2^-23; and half a ulp",
        notes=notes or "gradients of other tensors are computed on request",
    )


KL_DIV_FORWARD = forward_guarantee(term_errors.KL_DIV, term_errors.KL_DIV_OF_LOG_TARGET)
KL_DIV_BACKWARD = backward_guarantee(
    "u of -t, or 1.5 u of -exp(t), and 4 u of the terms by the target", functions={"exp": 1.0, "log": 2.0}
)
MSE_LOSS_FORWARD = forward_guarantee(term_errors.MSE)
MSE_LOSS_BACKWARD = backward_guarantee("1.5 u of the gradient")
MSE_LOSS_FORWARD_BACKWARD = replace(
    MSE_LOSS_FORWARD,
    in_place="input_hbm",
    error=f"{term_errors.MSE}, 16 bits half a ulp more; 1.5 u of the gradient, and half a ulp; u = 2^-23",
)
L1_LOSS_FORWARD = forward_guarantee(term_errors.L1)
L1_LOSS_BACKWARD = backward_guarantee("u of the gradient")
SMOOTH_L1_LOSS_FORWARD = forward_guarantee(term_errors.SMOOTH_L1)
SMOOTH_L1_LOSS_BACKWARD = backward_guarantee("2 u of the gradient")
HUBER_LOSS_FORWARD = forward_guarantee(term_errors.HUBER)
HUBER_LOSS_BACKWARD = backward_guarantee("2 u of the gradient")
HINGE_EMBEDDING_LOSS_FORWARD = forward_guarantee(term_errors.HINGE_EMBEDDING)
HINGE_EMBEDDING_LOSS_BACKWARD = backward_guarantee("u of the gradient", notes="there is no gradient by the target")
MARGIN_RANKING_LOSS_FORWARD = forward_guarantee(term_errors.MARGIN_RANKING)
MARGIN_RANKING_LOSS_BACKWARD = backward_guarantee(
    "1.5 u of the gradient; where the loss is not larger than its own error, the gradient may be that of either side",
    in_place="input1_hbm",
)
BINARY_CROSS_ENTROPY_FORWARD = forward_guarantee(
    term_errors.BCE, notes="not of subnormal probabilities, which may count as 0"
)
BINARY_CROSS_ENTROPY_BACKWARD = backward_guarantee(
    "4.5 u of the gradient by the input, 3.5 u of |log x| + |log(1 - x)| by the target",
    functions={"rsqrt": 2.0, "log": 2.0},
    notes="by the target it is finite at x = 0 and x = 1, where logarithms are -100",
)
BINARY_CROSS_ENTROPY_WITH_LOGITS_FORWARD = forward_guarantee(
    term_errors.BCE_WITH_LOGITS, term_errors.BCE_WITH_POSITIVE_WEIGHT
)
BINARY_CROSS_ENTROPY_WITH_LOGITS_BACKWARD = backward_guarantee(
    "2 u of the larger one of sigmoid(x) and t; with pos_weight 3.5 u of the terms",
    functions={"sigmoid": 1.0, "softplus": 1.0},
)
POISSON_NLL_LOSS_FORWARD = forward_guarantee(
    term_errors.POISSON_OF_LOG_RATE,
    term_errors.POISSON_OF_RATE,
    term_errors.FULL_POISSON_OF_LOG_RATE,
    term_errors.FULL_POISSON_OF_RATE,
)
POISSON_NLL_LOSS_BACKWARD = backward_guarantee(
    "2 u of the larger one of exp(x) and t; of rates, and by the target, 3 u of the terms and of 1",
    functions={"exp": 1.0, "reciprocal": 1.0, "log": 1.0},
)
GAUSSIAN_NLL_LOSS_FORWARD = forward_guarantee(term_errors.GAUSSIAN, term_errors.FULL_GAUSSIAN)
GAUSSIAN_NLL_LOSS_BACKWARD = backward_guarantee(
    "3.5 u of (x - t) / v; by the variance 3.5 u of 1 / (2 v) and 7 u of (x - t)^2 / (2 v^2)", functions={"rsqrt": 4.0}
)
