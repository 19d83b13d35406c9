"""Losses and softmax on the kernels for PyTorch: on a Neuron device, and on the CPU through the simulator.

Importing it imports torch, which nothing else in nkilib does, and registers the operators ``torch.ops.nkilib``;
where the native torch-neuronx is loaded, also ``torch.ops.nkilib_neuron``.
"""

import nkilib._unmixed
import nkilib.torch._requirement  # noqa: F401
from nkilib.torch.functions.cross_entropy.functional import cross_entropy
from nkilib.torch.functions.cross_entropy.modules import CrossEntropyLoss
from nkilib.torch.functions.cross_entropy.outputs import CrossEntropyOutputs
from nkilib.torch.functions.cross_entropy.target_indices import int32_targets
from nkilib.torch.functions.ctc_loss.functional import ctc_loss
from nkilib.torch.functions.ctc_loss.modules import CTCLoss
from nkilib.torch.functions.distillation.functional import distillation_loss
from nkilib.torch.functions.distillation.modules import DistillationLoss
from nkilib.torch.functions.elementwise.mse_loss import MSELoss, mse_loss
from nkilib.torch.functions.kl_div.functional import kl_div
from nkilib.torch.functions.kl_div.modules import KLDivLoss
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.functions.linear_cross_entropy.modules import LinearCrossEntropyLoss
from nkilib.torch.functions.margins.multi_margin_loss import MultiMarginLoss, multi_margin_loss
from nkilib.torch.functions.margins.multilabel_margin_loss import MultiLabelMarginLoss, multilabel_margin_loss
from nkilib.torch.functions.nll_loss.functional import nll_loss
from nkilib.torch.functions.nll_loss.modules import NLLLoss
from nkilib.torch.functions.rowwise.cosine_embedding_loss import CosineEmbeddingLoss, cosine_embedding_loss
from nkilib.torch.functions.rowwise.multilabel_soft_margin_loss import (
    MultiLabelSoftMarginLoss,
    multilabel_soft_margin_loss,
)
from nkilib.torch.functions.rowwise.triplet_margin_loss import TripletMarginLoss, triplet_margin_loss
from nkilib.torch.functions.softmax.functional import log_softmax, softmax
from nkilib.torch.functions.softmax.modules import LogSoftmax, Softmax, Softmax2d
from nkilib.torch.functions.token_scores import TokenScores, token_scores
from nkilib.torch.functions.vocab_parallel.functional import vocab_parallel_cross_entropy
from nkilib.torch.functions.vocab_parallel_linear.functional import vocab_parallel_linear_cross_entropy

__all__ = [
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "CrossEntropyOutputs",
    "DistillationLoss",
    "KLDivLoss",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "MSELoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "Softmax",
    "Softmax2d",
    "TokenScores",
    "TripletMarginLoss",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "distillation_loss",
    "int32_targets",
    "kl_div",
    "linear_cross_entropy",
    "log_softmax",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "softmax",
    "token_scores",
    "triplet_margin_loss",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_linear_cross_entropy",
]
