"""The kernels of the losses of elements, a file each: plain functions, to be launched or called from NKI code."""

from nkilib.experimental.loss.elementwise.kernels.bce import binary_cross_entropy_backward, binary_cross_entropy_forward
from nkilib.experimental.loss.elementwise.kernels.bce_with_logits import (
    binary_cross_entropy_with_logits_backward,
    binary_cross_entropy_with_logits_forward,
)
from nkilib.experimental.loss.elementwise.kernels.gaussian_nll import (
    gaussian_nll_loss_backward,
    gaussian_nll_loss_forward,
)
from nkilib.experimental.loss.elementwise.kernels.hinge_embedding import (
    hinge_embedding_loss_backward,
    hinge_embedding_loss_forward,
)
from nkilib.experimental.loss.elementwise.kernels.huber import huber_loss_backward, huber_loss_forward
from nkilib.experimental.loss.elementwise.kernels.kl_div import kl_div_backward, kl_div_forward
from nkilib.experimental.loss.elementwise.kernels.l1 import l1_loss_backward, l1_loss_forward
from nkilib.experimental.loss.elementwise.kernels.margin_ranking import (
    margin_ranking_loss_backward,
    margin_ranking_loss_forward,
)
from nkilib.experimental.loss.elementwise.kernels.mse import (
    mse_loss_backward,
    mse_loss_forward,
    mse_loss_forward_backward,
)
from nkilib.experimental.loss.elementwise.kernels.poisson_nll import poisson_nll_loss_backward, poisson_nll_loss_forward
from nkilib.experimental.loss.elementwise.kernels.smooth_l1 import smooth_l1_loss_backward, smooth_l1_loss_forward

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
