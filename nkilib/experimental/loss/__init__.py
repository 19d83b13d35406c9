# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of large models: cross-entropy, of logits or of hidden states and output weights (linear), and the losses
of ``torch.nn.functional``.

This package exports the kernels and the functions that choose their tiling. The module of a name is imported when the
name is first used.

- ``inline``: the same losses as plain functions, for other kernels; ``extended``, ``extended_inline``: cross-entropy
  with the options of training recipes; ``tiling``, ``profiling``, ``reference``, ``bounds``: public names by purpose;
- ``temperatures``: one temperature for each position, as a tensor;
- ``registry``: the entries of all losses;
- ``cross_entropy``, ``linear_cross_entropy``: cross-entropy of logits, and of hidden states and output weights;
- ``distillation``, ``linear_distillation``: divergences between two models, from logits or from hidden states;
- ``linear``: code that losses with an output layer share;
- ``elementwise``, ``rowwise``: elementwise and row-wise losses; ``skeletons``: the loops over tiles that these losses
  share;
- ``nll``, ``multi_margin``, ``multilabel_margin``, ``ctc``: losses with loops of their own.
"""

from pkgutil import extend_path
from typing import TYPE_CHECKING, Final

from nkilib.core.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from nkilib.core.host.launchable import launched
    from nkilib.experimental.loss.cross_entropy.registry_entry import (
        cross_entropy_backward,
        cross_entropy_forward,
        extended_cross_entropy_backward,
        extended_cross_entropy_forward,
    )
    from nkilib.experimental.loss.cross_entropy.tiling import Tiling, choose_tiling
    from nkilib.experimental.loss.ctc.host import ctc_loss_backward, ctc_loss_forward
    from nkilib.experimental.loss.distillation.host import distillation_backward, distillation_forward
    from nkilib.experimental.loss.distillation.tiling import DistillationTiling, choose_distillation_tiling
    from nkilib.experimental.loss.elementwise import (
        bce,
        bce_with_logits,
        gaussian_nll,
        hinge_embedding,
        kl_div,
        l1,
        margin_ranking,
        mse,
        poisson_nll,
        smooth_l1,
    )
    from nkilib.experimental.loss.linear.launch import LinearTiling
    from nkilib.experimental.loss.linear_cross_entropy.host.tiling import choose_linear_tiling
    from nkilib.experimental.loss.linear_cross_entropy.registry_entry import (
        linear_cross_entropy_backward,
        linear_cross_entropy_forward,
        linear_cross_entropy_forward_backward,
        linear_token_scores_backward,
        linear_token_scores_forward,
    )
    from nkilib.experimental.loss.linear_distillation.host.tiling import choose_linear_distillation_tiling
    from nkilib.experimental.loss.linear_distillation.registry_entry import (
        linear_distillation_backward,
        linear_distillation_forward,
        linear_distillation_mixture,
    )
    from nkilib.experimental.loss.multi_margin.host import (
        multi_margin_loss_backward,
        multi_margin_loss_forward,
    )
    from nkilib.experimental.loss.multilabel_margin.host import (
        multilabel_margin_loss_backward,
        multilabel_margin_loss_forward,
    )
    from nkilib.experimental.loss.nll.host import nll_loss_backward, nll_loss_forward
    from nkilib.experimental.loss.rowwise import cosine_embedding, multilabel_soft_margin, triplet_margin_host
    from nkilib.experimental.loss.skeletons.elementwise.tiling import ElementwiseTiling, choose_elementwise_tiling
    from nkilib.experimental.loss.skeletons.rowwise.tiling import RowwiseTiling, choose_rowwise_tiling

    binary_cross_entropy_forward = launched(bce.binary_cross_entropy_forward)
    binary_cross_entropy_backward = launched(bce.binary_cross_entropy_backward)
    binary_cross_entropy_with_logits_forward = launched(bce_with_logits.binary_cross_entropy_with_logits_forward)
    binary_cross_entropy_with_logits_backward = launched(bce_with_logits.binary_cross_entropy_with_logits_backward)
    cosine_embedding_loss_forward = launched(cosine_embedding.cosine_embedding_loss_forward)
    cosine_embedding_loss_backward = launched(cosine_embedding.cosine_embedding_loss_backward)
    gaussian_nll_loss_forward = launched(gaussian_nll.gaussian_nll_loss_forward)
    gaussian_nll_loss_backward = launched(gaussian_nll.gaussian_nll_loss_backward)
    hinge_embedding_loss_forward = launched(hinge_embedding.hinge_embedding_loss_forward)
    hinge_embedding_loss_backward = launched(hinge_embedding.hinge_embedding_loss_backward)
    kl_div_forward = launched(kl_div.kl_div_forward)
    kl_div_backward = launched(kl_div.kl_div_backward)
    l1_loss_forward = launched(l1.l1_loss_forward)
    l1_loss_backward = launched(l1.l1_loss_backward)
    margin_ranking_loss_forward = launched(margin_ranking.margin_ranking_loss_forward)
    margin_ranking_loss_backward = launched(margin_ranking.margin_ranking_loss_backward)
    mse_loss_forward = launched(mse.mse_loss_forward)
    mse_loss_backward = launched(mse.mse_loss_backward)
    mse_loss_forward_backward = launched(mse.mse_loss_forward_backward)
    poisson_nll_loss_forward = launched(poisson_nll.poisson_nll_loss_forward)
    poisson_nll_loss_backward = launched(poisson_nll.poisson_nll_loss_backward)
    huber_loss_forward = launched(smooth_l1.huber_loss_forward)
    huber_loss_backward = launched(smooth_l1.huber_loss_backward)
    smooth_l1_loss_forward = launched(smooth_l1.smooth_l1_loss_forward)
    smooth_l1_loss_backward = launched(smooth_l1.smooth_l1_loss_backward)
    multilabel_soft_margin_loss_forward = launched(multilabel_soft_margin.multilabel_soft_margin_loss_forward)
    multilabel_soft_margin_loss_backward = launched(multilabel_soft_margin.multilabel_soft_margin_loss_backward)
    triplet_margin_loss_forward = launched(triplet_margin_host.triplet_margin_loss_forward)
    triplet_margin_loss_backward = launched(triplet_margin_host.triplet_margin_loss_backward)

__all__ = [
    "DistillationTiling",
    "ElementwiseTiling",
    "LinearTiling",
    "RowwiseTiling",
    "Tiling",
    "binary_cross_entropy_backward",
    "binary_cross_entropy_forward",
    "binary_cross_entropy_with_logits_backward",
    "binary_cross_entropy_with_logits_forward",
    "choose_distillation_tiling",
    "choose_elementwise_tiling",
    "choose_linear_distillation_tiling",
    "choose_linear_tiling",
    "choose_rowwise_tiling",
    "choose_tiling",
    "cosine_embedding_loss_backward",
    "cosine_embedding_loss_forward",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "ctc_loss_backward",
    "ctc_loss_forward",
    "distillation_backward",
    "distillation_forward",
    "extended_cross_entropy_backward",
    "extended_cross_entropy_forward",
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

# The bundled package has an nkilib.experimental.loss too: its modules stay importable (see nkilib/__init__.py).
__path__ = extend_path(__path__, __name__)

_MODULES: Final = {
    "DistillationTiling": "distillation.tiling",
    "ElementwiseTiling": "skeletons.elementwise.tiling",
    "LinearTiling": "linear.launch",
    "RowwiseTiling": "skeletons.rowwise.tiling",
    "Tiling": "cross_entropy.tiling",
    "binary_cross_entropy": "elementwise.bce",
    "binary_cross_entropy_with_logits": "elementwise.bce_with_logits",
    "choose_distillation_tiling": "distillation.tiling",
    "choose_elementwise_tiling": "skeletons.elementwise.tiling",
    "choose_linear_distillation_tiling": "linear_distillation.host.tiling",
    "choose_linear_tiling": "linear_cross_entropy.host.tiling",
    "choose_rowwise_tiling": "skeletons.rowwise.tiling",
    "choose_tiling": "cross_entropy.tiling",
    "cosine_embedding_loss": "rowwise.cosine_embedding",
    "cross_entropy": "cross_entropy.registry_entry",
    "ctc_loss": "ctc.host",
    "distillation": "distillation.host",
    "extended_cross_entropy": "cross_entropy.registry_entry",
    "gaussian_nll_loss": "elementwise.gaussian_nll",
    "hinge_embedding_loss": "elementwise.hinge_embedding",
    "huber_loss": "elementwise.smooth_l1",
    "kl_div": "elementwise.kl_div",
    "l1_loss": "elementwise.l1",
    "linear_cross_entropy": "linear_cross_entropy.registry_entry",
    "linear_distillation": "linear_distillation.registry_entry",
    "linear_token_scores": "linear_cross_entropy.registry_entry",
    "margin_ranking_loss": "elementwise.margin_ranking",
    "mse_loss": "elementwise.mse",
    "multi_margin_loss": "multi_margin.host",
    "multilabel_margin_loss": "multilabel_margin.host",
    "multilabel_soft_margin_loss": "rowwise.multilabel_soft_margin",
    "nll_loss": "nll.host",
    "poisson_nll_loss": "elementwise.poisson_nll",
    "smooth_l1_loss": "elementwise.smooth_l1",
    "triplet_margin_loss": "rowwise.triplet_margin_host",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
