# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and softmax on the kernels for PyTorch: on a Neuron device, and on the CPU through the simulator.

Importing this package imports torch, which no other part of nkilib imports, and registers the operators
``torch.ops.nkilib``; if the native torch-neuronx is loaded, also ``torch.ops.nkilib_neuron``.

- ``functions``: the public functions and modules;
- ``losses``: the semantics that losses share;
- ``dispatch``: operators, their registration and their launch, independent of any loss;
- ``lazy_logits``: logits that the output layer of any model computes only if something needs them;
- ``transformers``, ``trl``, ``torchtitan``, ``verl``: the losses of these trainers; ``replacement``: the functions that
  replace a trainer's functions by nkilib's;
- ``verification``: the check of an installation on its device;
- ``_requirement``: the releases of torch that are supported.
"""

from typing import TYPE_CHECKING

import nkilib._refuse_mixture
import nkilib.torch._requirement  # noqa: F401
from nkilib.base.missing_names import refusing
from nkilib.torch.functions.binary_cross_entropy import (
    BCELoss,
    BCEWithLogitsLoss,
    MultiLabelSoftMarginLoss,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    multilabel_soft_margin_loss,
)
from nkilib.torch.functions.class_margins import (
    MultiLabelMarginLoss,
    MultiMarginLoss,
    multi_margin_loss,
    multilabel_margin_loss,
)
from nkilib.torch.functions.cross_entropy.functional import CrossEntropyLoss, CrossEntropyOutputs, cross_entropy
from nkilib.torch.functions.ctc_loss import CTCLoss, ctc_loss
from nkilib.torch.functions.distillation_loss import DistillationLoss, distillation_loss
from nkilib.torch.functions.embedding import (
    CosineEmbeddingLoss,
    HingeEmbeddingLoss,
    MarginRankingLoss,
    TripletMarginLoss,
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    triplet_margin_loss,
)
from nkilib.torch.functions.likelihood import (
    GaussianNLLLoss,
    KLDivLoss,
    NLLLoss,
    PoissonNLLLoss,
    gaussian_nll_loss,
    kl_div,
    nll_loss,
    poisson_nll_loss,
)
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.functions.linear_cross_entropy.modules import LinearCrossEntropyLoss
from nkilib.torch.functions.linear_distillation.functional import (
    LinearDistillationLoss,
    LinearDistillationOutputs,
    linear_distillation_loss,
)
from nkilib.torch.functions.linear_token_scores.functional import LinearTokenScores, linear_token_scores
from nkilib.torch.functions.regression import (
    HuberLoss,
    L1Loss,
    MSELoss,
    SmoothL1Loss,
    huber_loss,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
)
from nkilib.torch.functions.softmax import LogSoftmax, Softmax, Softmax2d, log_softmax, softmax
from nkilib.torch.functions.token_scores import TokenScores, token_scores
from nkilib.torch.functions.vocab_parallel.functional import vocab_parallel_cross_entropy
from nkilib.torch.functions.vocab_parallel.linear_functional import vocab_parallel_linear_cross_entropy
from nkilib.torch.lazy_logits.head import Undo, fuse_linear_loss, fused_calls
from nkilib.torch.lazy_logits.logits import LazyLogits
from nkilib.torch.lazy_logits.record import FusedCalls, LogitsComputedWarning
from nkilib.torch.losses.indexed import int32_targets

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "CrossEntropyOutputs",
    "DistillationLoss",
    "FusedCalls",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LazyLogits",
    "LinearCrossEntropyLoss",
    "LinearDistillationLoss",
    "LinearDistillationOutputs",
    "LinearTokenScores",
    "LogSoftmax",
    "LogitsComputedWarning",
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
    "Undo",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "distillation_loss",
    "fuse_linear_loss",
    "fused_calls",
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

if not TYPE_CHECKING:  # a type checker would take every name for a known one
    __getattr__ = refusing(__name__, __all__)
