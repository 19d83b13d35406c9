# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loss of Hugging Face causal language models on the kernels, from their logits.

``model.loss_function = causal_lm_loss`` takes logits, lazy ones too; after ``fuse_linear_loss(model)``, which has its
home in :mod:`nkilib.torch`, a training step computes no logits. Importing this package does not import
``transformers``.

``loss``: the loss from logits, and the labels that ``transformers`` passes.
"""

from nkilib.base.deprecation import moved_names
from nkilib.torch.lazy_logits.head import Undo, fuse_linear_loss
from nkilib.torch.transformers.loss import causal_lm_loss

__all__ = ["Undo", "causal_lm_loss", "fuse_linear_loss"]

__getattr__ = moved_names(__name__, {"NoLogits": "nkilib.torch.LazyLogits"}, since="0.3", removed_in="0.5")
