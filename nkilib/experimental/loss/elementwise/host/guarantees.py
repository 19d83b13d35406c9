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
