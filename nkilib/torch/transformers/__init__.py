# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loss of Hugging Face causal language models on the kernels, from their logits or without them.

``model.loss_function = causal_lm_loss`` takes logits; after ``fuse_linear_loss(model)`` a training step computes no
logits. Importing this package does not import ``transformers``.

``loss``: the loss from logits, and the labels that ``transformers`` passes; ``fused``: the loss without logits.
"""

from nkilib.torch.transformers.fused import NoLogits, Undo, fuse_linear_loss
from nkilib.torch.transformers.loss import causal_lm_loss

__all__ = ["NoLogits", "Undo", "causal_lm_loss", "fuse_linear_loss"]
