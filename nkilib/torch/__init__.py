# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and softmax on the kernels for PyTorch: on a Neuron device, and on the CPU through the simulator.

Importing this package imports torch, which no other part of nkilib imports, and registers the operators
``torch.ops.nkilib``; if the native torch-neuronx is loaded, also ``torch.ops.nkilib_neuron``.
"""

import nkilib._unmixed
import nkilib.torch._requirement  # noqa: F401
from nkilib.torch.functions.binary_cross_entropy import BCELoss, binary_cross_entropy
from nkilib.torch.functions.binary_cross_entropy_with_logits import (
    BCEWithLogitsLoss,
    binary_cross_entropy_with_logits,
)
from nkilib.torch.functions.cosine_embedding_loss import CosineEmbeddingLoss, cosine_embedding_loss
from nkilib.torch.functions.cross_entropy.functional import cross_entropy
from nkilib.torch.functions.cross_entropy.modules import CrossEntropyLoss
from nkilib.torch.functions.cross_entropy.outputs import CrossEntropyOutputs
from nkilib.torch.functions.ctc_loss import CTCLoss, ctc_loss
from nkilib.torch.functions.distillation_loss import DistillationLoss, distillation_loss
from nkilib.torch.functions.gaussian_nll_loss import GaussianNLLLoss, gaussian_nll_loss
from nkilib.torch.functions.hinge_embedding_loss import HingeEmbeddingLoss, hinge_embedding_loss
from nkilib.torch.functions.huber_loss import HuberLoss, huber_loss
from nkilib.torch.functions.kl_div import KLDivLoss, kl_div
from nkilib.torch.functions.l1_loss import L1Loss, l1_loss
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.functions.linear_cross_entropy.modules import LinearCrossEntropyLoss
from nkilib.torch.functions.linear_distillation.functional import linear_distillation_loss
from nkilib.torch.functions.linear_distillation.modules import LinearDistillationLoss
from nkilib.torch.functions.linear_distillation.results import LinearDistillationOutputs
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.functions.linear_token_scores.results import LinearTokenScores
from nkilib.torch.functions.margin_ranking_loss import MarginRankingLoss, margin_ranking_loss
from nkilib.torch.functions.mse_loss import MSELoss, mse_loss
from nkilib.torch.functions.multi_margin_loss import MultiMarginLoss, multi_margin_loss
from nkilib.torch.functions.multilabel_margin_loss import MultiLabelMarginLoss, multilabel_margin_loss
from nkilib.torch.functions.multilabel_soft_margin_loss import (
    MultiLabelSoftMarginLoss,
    multilabel_soft_margin_loss,
)
from nkilib.torch.functions.nll_loss import NLLLoss, nll_loss
from nkilib.torch.functions.poisson_nll_loss import PoissonNLLLoss, poisson_nll_loss
from nkilib.torch.functions.smooth_l1_loss import SmoothL1Loss, smooth_l1_loss
from nkilib.torch.functions.softmax import LogSoftmax, Softmax, Softmax2d, log_softmax, softmax
from nkilib.torch.functions.token_scores import TokenScores, token_scores
from nkilib.torch.functions.triplet_margin_loss import TripletMarginLoss, triplet_margin_loss
from nkilib.torch.functions.vocab_parallel.functional import vocab_parallel_cross_entropy
from nkilib.torch.functions.vocab_parallel_linear.functional import vocab_parallel_linear_cross_entropy
from nkilib.torch.losses.target_indices import int32_targets

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "CrossEntropyOutputs",
    "DistillationLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LinearCrossEntropyLoss",
    "LinearDistillationLoss",
    "LinearDistillationOutputs",
    "LinearTokenScores",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "Softmax",
    "Softmax2d",
    "TokenScores",
    "TripletMarginLoss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "distillation_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "int32_targets",
    "kl_div",
    "l1_loss",
    "linear_cross_entropy",
    "linear_distillation_loss",
    "linear_token_scores",
    "log_softmax",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "softmax",
    "token_scores",
    "triplet_margin_loss",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_linear_cross_entropy",
]
