# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses and their gradients as plain functions to call from NKI code: cross-entropy for large vocabularies, of
logits or of hidden states and output weights (linear), and the losses of ``torch.nn.functional``.

Call these functions from your own kernel: the NKI compiler inlines functions, and rejects a call of a function that
is a kernel itself (``nki/migration/index.rst``, "Remove nki.jit decorator on sub-kernels"). To launch a loss on its
own, use the kernel of the same name in :mod:`nkilib.experimental.loss`.
"""

from nkilib.experimental.loss.cross_entropy.kernels import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.loss.ctc.kernels import ctc_loss_backward, ctc_loss_forward
from nkilib.experimental.loss.distillation.kernels import distillation_backward, distillation_forward
from nkilib.experimental.loss.elementwise.bce import binary_cross_entropy_backward, binary_cross_entropy_forward
from nkilib.experimental.loss.elementwise.bce_with_logits import (
    binary_cross_entropy_with_logits_backward,
    binary_cross_entropy_with_logits_forward,
)
from nkilib.experimental.loss.elementwise.gaussian_nll import gaussian_nll_loss_backward, gaussian_nll_loss_forward
from nkilib.experimental.loss.elementwise.hinge_embedding import (
    hinge_embedding_loss_backward,
    hinge_embedding_loss_forward,
)
from nkilib.experimental.loss.elementwise.kl_div import kl_div_backward, kl_div_forward
from nkilib.experimental.loss.elementwise.l1 import l1_loss_backward, l1_loss_forward
from nkilib.experimental.loss.elementwise.margin_ranking import (
    margin_ranking_loss_backward,
    margin_ranking_loss_forward,
)
from nkilib.experimental.loss.elementwise.mse import mse_loss_backward, mse_loss_forward, mse_loss_forward_backward
from nkilib.experimental.loss.elementwise.poisson_nll import poisson_nll_loss_backward, poisson_nll_loss_forward
from nkilib.experimental.loss.elementwise.smooth_l1 import (
    huber_loss_backward,
    huber_loss_forward,
    smooth_l1_loss_backward,
    smooth_l1_loss_forward,
)
from nkilib.experimental.loss.linear_cross_entropy.kernels import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.linear_cross_entropy.token_scores_kernels import (
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.linear_distillation.kernels import (
    linear_distillation_backward,
    linear_distillation_forward,
    linear_distillation_mixture,
)
from nkilib.experimental.loss.multi_margin.kernels import multi_margin_loss_backward, multi_margin_loss_forward
from nkilib.experimental.loss.multilabel_margin.kernels import (
    multilabel_margin_loss_backward,
    multilabel_margin_loss_forward,
)
from nkilib.experimental.loss.nll.kernels import nll_loss_backward, nll_loss_forward
from nkilib.experimental.loss.rowwise.cosine_embedding import (
    cosine_embedding_loss_backward,
    cosine_embedding_loss_forward,
)
from nkilib.experimental.loss.rowwise.multilabel_soft_margin import (
    multilabel_soft_margin_loss_backward,
    multilabel_soft_margin_loss_forward,
)
from nkilib.experimental.loss.rowwise.triplet_margin import triplet_margin_loss_backward, triplet_margin_loss_forward

__all__ = [
    "binary_cross_entropy_backward",
    "binary_cross_entropy_forward",
    "binary_cross_entropy_with_logits_backward",
    "binary_cross_entropy_with_logits_forward",
    "cosine_embedding_loss_backward",
    "cosine_embedding_loss_forward",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "ctc_loss_backward",
    "ctc_loss_forward",
    "distillation_backward",
    "distillation_forward",
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
    "linear_cross_entropy_backward",
    "linear_cross_entropy_forward",
    "linear_cross_entropy_forward_backward",
    "linear_distillation_backward",
    "linear_distillation_forward",
    "linear_distillation_mixture",
    "linear_token_scores_backward",
    "linear_token_scores_forward",
    "margin_ranking_loss_backward",
    "margin_ranking_loss_forward",
    "mse_loss_backward",
    "mse_loss_forward",
    "mse_loss_forward_backward",
    "multi_margin_loss_backward",
    "multi_margin_loss_forward",
    "multilabel_margin_loss_backward",
    "multilabel_margin_loss_forward",
    "multilabel_soft_margin_loss_backward",
    "multilabel_soft_margin_loss_forward",
    "nll_loss_backward",
    "nll_loss_forward",
    "poisson_nll_loss_backward",
    "poisson_nll_loss_forward",
    "smooth_l1_loss_backward",
    "smooth_l1_loss_forward",
    "triplet_margin_loss_backward",
    "triplet_margin_loss_forward",
]
