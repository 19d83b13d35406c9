"""Losses of elements, on one skeleton, to be launched on their own."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.elementwise import kernels
from nkilib.experimental.loss.elementwise.host import guarantees
from nkilib.experimental.loss.elementwise.host.work import (
    backward_work,
    forward_backward_work,
    forward_work,
    kl_div_gradient_functions,
)
from nkilib.experimental.loss.elementwise.kind import INPUT, POSITIVE_WEIGHT, TARGET, VARIANCE, WEIGHT
from nkilib.experimental.loss.elementwise.kinds.kl_div import needed_tensors
from nkilib.experimental.loss.elementwise.kinds.margin_ranking import INPUT1, INPUT2

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
    "mse_loss_forward_backward",
    "poisson_nll_loss_backward",
    "poisson_nll_loss_forward",
    "smooth_l1_loss_backward",
    "smooth_l1_loss_forward",
]

kl_div_forward = launchable(kernels.kl_div_forward, guarantees.KL_DIV_FORWARD, forward_work(INPUT, TARGET, functions=1))
kl_div_backward = launchable(
    kernels.kl_div_backward,
    guarantees.KL_DIV_BACKWARD,
    backward_work(
        INPUT,
        TARGET,
        needed=needed_tensors,
        functions=kl_div_gradient_functions,
    ),
)
mse_loss_forward = launchable(
    kernels.mse_loss_forward, guarantees.MSE_LOSS_FORWARD, forward_work(INPUT, TARGET, WEIGHT, functions=1)
)
mse_loss_backward = launchable(
    kernels.mse_loss_backward, guarantees.MSE_LOSS_BACKWARD, backward_work(INPUT, TARGET, WEIGHT)
)
mse_loss_forward_backward = launchable(
    kernels.mse_loss_forward_backward,
    guarantees.MSE_LOSS_FORWARD_BACKWARD,
    forward_backward_work(INPUT, TARGET, WEIGHT, functions=1),
)
l1_loss_forward = launchable(
    kernels.l1_loss_forward, guarantees.L1_LOSS_FORWARD, forward_work(INPUT, TARGET, WEIGHT, functions=1)
)
l1_loss_backward = launchable(
    kernels.l1_loss_backward, guarantees.L1_LOSS_BACKWARD, backward_work(INPUT, TARGET, WEIGHT, functions=1)
)
smooth_l1_loss_forward = launchable(
    kernels.smooth_l1_loss_forward, guarantees.SMOOTH_L1_LOSS_FORWARD, forward_work(INPUT, TARGET, functions=1)
)
smooth_l1_loss_backward = launchable(
    kernels.smooth_l1_loss_backward, guarantees.SMOOTH_L1_LOSS_BACKWARD, backward_work(INPUT, TARGET)
)
huber_loss_forward = launchable(
    kernels.huber_loss_forward, guarantees.HUBER_LOSS_FORWARD, forward_work(INPUT, TARGET, WEIGHT, functions=1)
)
huber_loss_backward = launchable(
    kernels.huber_loss_backward, guarantees.HUBER_LOSS_BACKWARD, backward_work(INPUT, TARGET, WEIGHT)
)
hinge_embedding_loss_forward = launchable(
    kernels.hinge_embedding_loss_forward,
    guarantees.HINGE_EMBEDDING_LOSS_FORWARD,
    forward_work(INPUT, TARGET, functions=1),
)
hinge_embedding_loss_backward = launchable(
    kernels.hinge_embedding_loss_backward, guarantees.HINGE_EMBEDDING_LOSS_BACKWARD, backward_work(INPUT, TARGET)
)
margin_ranking_loss_forward = launchable(
    kernels.margin_ranking_loss_forward,
    guarantees.MARGIN_RANKING_LOSS_FORWARD,
    forward_work(INPUT1, INPUT2, TARGET, functions=1),
)
margin_ranking_loss_backward = launchable(
    kernels.margin_ranking_loss_backward, guarantees.MARGIN_RANKING_LOSS_BACKWARD, backward_work(INPUT1, INPUT2, TARGET)
)
binary_cross_entropy_forward = launchable(
    kernels.binary_cross_entropy_forward,
    guarantees.BINARY_CROSS_ENTROPY_FORWARD,
    forward_work(INPUT, TARGET, WEIGHT, functions=2),
)
binary_cross_entropy_backward = launchable(
    kernels.binary_cross_entropy_backward,
    guarantees.BINARY_CROSS_ENTROPY_BACKWARD,
    backward_work(INPUT, TARGET, WEIGHT, functions=1),
)
binary_cross_entropy_with_logits_forward = launchable(
    kernels.binary_cross_entropy_with_logits_forward,
    guarantees.BINARY_CROSS_ENTROPY_WITH_LOGITS_FORWARD,
    forward_work(INPUT, TARGET, WEIGHT, POSITIVE_WEIGHT, functions=1),
)
binary_cross_entropy_with_logits_backward = launchable(
    kernels.binary_cross_entropy_with_logits_backward,
    guarantees.BINARY_CROSS_ENTROPY_WITH_LOGITS_BACKWARD,
    backward_work(INPUT, TARGET, WEIGHT, POSITIVE_WEIGHT, functions=1),
)
poisson_nll_loss_forward = launchable(
    kernels.poisson_nll_loss_forward, guarantees.POISSON_NLL_LOSS_FORWARD, forward_work(INPUT, TARGET, functions=1)
)
poisson_nll_loss_backward = launchable(
    kernels.poisson_nll_loss_backward, guarantees.POISSON_NLL_LOSS_BACKWARD, backward_work(INPUT, TARGET, functions=1)
)
gaussian_nll_loss_forward = launchable(
    kernels.gaussian_nll_loss_forward,
    guarantees.GAUSSIAN_NLL_LOSS_FORWARD,
    forward_work(INPUT, TARGET, VARIANCE, functions=3),
)
gaussian_nll_loss_backward = launchable(
    kernels.gaussian_nll_loss_backward,
    guarantees.GAUSSIAN_NLL_LOSS_BACKWARD,
    backward_work(INPUT, TARGET, VARIANCE, functions=1),
)
