"""Losses of elements, on one skeleton, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.elementwise import kernels
from nkilib.experimental.loss.elementwise.host import guarantees
from nkilib.experimental.loss.elementwise.host.work import backward_work, forward_work, kl_div_gradient_functions
from nkilib.experimental.loss.elementwise.kind import INPUT, POSITIVE_WEIGHT, TARGET, VARIANCE, WEIGHT
from nkilib.experimental.loss.elementwise.kinds.kl_div import needed_tensors
from nkilib.experimental.loss.elementwise.kinds.margin_ranking import INPUT1, INPUT2
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = [
    "binary_cross_entropy_backward",
    "binary_cross_entropy_forward",
    "binary_cross_entropy_with_logits_backward",
    "binary_cross_entropy_with_logits_forward",
    "gaussian_nll_loss_backward",
    "gaussian_nll_loss_forward",
    "hinge_embedding_loss_backward",
    "hinge_embedding_loss_forward",
    "huber_loss_backward",
    "huber_loss_forward",
    "kl_div_backward",
    "kl_div_forward",
    "l1_loss_backward",
    "l1_loss_forward",
    "margin_ranking_loss_backward",
    "margin_ranking_loss_forward",
    "mse_loss_backward",
    "mse_loss_forward",
    "poisson_nll_loss_backward",
    "poisson_nll_loss_forward",
    "smooth_l1_loss_backward",
    "smooth_l1_loss_forward",
]

kl_div_forward = nki.jit(
    states_guarantee(guarantees.KL_DIV_FORWARD)(
        states_work(forward_work(INPUT, TARGET, functions=1))(kernels.kl_div_forward)
    )
)
kl_div_backward = nki.jit(
    states_guarantee(guarantees.KL_DIV_BACKWARD)(
        states_work(
            backward_work(
                INPUT,
                TARGET,
                needed=needed_tensors,
                functions=kl_div_gradient_functions,
            )
        )(kernels.kl_div_backward)
    )
)
mse_loss_forward = nki.jit(
    states_guarantee(guarantees.MSE_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, WEIGHT, functions=1))(kernels.mse_loss_forward)
    )
)
mse_loss_backward = nki.jit(
    states_guarantee(guarantees.MSE_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, WEIGHT))(kernels.mse_loss_backward)
    )
)
l1_loss_forward = nki.jit(
    states_guarantee(guarantees.L1_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, WEIGHT, functions=1))(kernels.l1_loss_forward)
    )
)
l1_loss_backward = nki.jit(
    states_guarantee(guarantees.L1_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, WEIGHT, functions=1))(kernels.l1_loss_backward)
    )
)
smooth_l1_loss_forward = nki.jit(
    states_guarantee(guarantees.SMOOTH_L1_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, functions=1))(kernels.smooth_l1_loss_forward)
    )
)
smooth_l1_loss_backward = nki.jit(
    states_guarantee(guarantees.SMOOTH_L1_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET))(kernels.smooth_l1_loss_backward)
    )
)
huber_loss_forward = nki.jit(
    states_guarantee(guarantees.HUBER_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, WEIGHT, functions=1))(kernels.huber_loss_forward)
    )
)
huber_loss_backward = nki.jit(
    states_guarantee(guarantees.HUBER_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, WEIGHT))(kernels.huber_loss_backward)
    )
)
hinge_embedding_loss_forward = nki.jit(
    states_guarantee(guarantees.HINGE_EMBEDDING_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, functions=1))(kernels.hinge_embedding_loss_forward)
    )
)
hinge_embedding_loss_backward = nki.jit(
    states_guarantee(guarantees.HINGE_EMBEDDING_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET))(kernels.hinge_embedding_loss_backward)
    )
)
margin_ranking_loss_forward = nki.jit(
    states_guarantee(guarantees.MARGIN_RANKING_LOSS_FORWARD)(
        states_work(forward_work(INPUT1, INPUT2, TARGET, functions=1))(kernels.margin_ranking_loss_forward)
    )
)
margin_ranking_loss_backward = nki.jit(
    states_guarantee(guarantees.MARGIN_RANKING_LOSS_BACKWARD)(
        states_work(backward_work(INPUT1, INPUT2, TARGET))(kernels.margin_ranking_loss_backward)
    )
)
binary_cross_entropy_forward = nki.jit(
    states_guarantee(guarantees.BINARY_CROSS_ENTROPY_FORWARD)(
        states_work(forward_work(INPUT, TARGET, WEIGHT, functions=2))(kernels.binary_cross_entropy_forward)
    )
)
binary_cross_entropy_backward = nki.jit(
    states_guarantee(guarantees.BINARY_CROSS_ENTROPY_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, WEIGHT, functions=1))(kernels.binary_cross_entropy_backward)
    )
)
binary_cross_entropy_with_logits_forward = nki.jit(
    states_guarantee(guarantees.BINARY_CROSS_ENTROPY_WITH_LOGITS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, WEIGHT, POSITIVE_WEIGHT, functions=1))(
            kernels.binary_cross_entropy_with_logits_forward
        )
    )
)
binary_cross_entropy_with_logits_backward = nki.jit(
    states_guarantee(guarantees.BINARY_CROSS_ENTROPY_WITH_LOGITS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, WEIGHT, POSITIVE_WEIGHT, functions=1))(
            kernels.binary_cross_entropy_with_logits_backward
        )
    )
)
poisson_nll_loss_forward = nki.jit(
    states_guarantee(guarantees.POISSON_NLL_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, functions=1))(kernels.poisson_nll_loss_forward)
    )
)
poisson_nll_loss_backward = nki.jit(
    states_guarantee(guarantees.POISSON_NLL_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, functions=1))(kernels.poisson_nll_loss_backward)
    )
)
gaussian_nll_loss_forward = nki.jit(
    states_guarantee(guarantees.GAUSSIAN_NLL_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, VARIANCE, functions=3))(kernels.gaussian_nll_loss_forward)
    )
)
gaussian_nll_loss_backward = nki.jit(
    states_guarantee(guarantees.GAUSSIAN_NLL_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, VARIANCE, functions=1))(kernels.gaussian_nll_loss_backward)
    )
)
