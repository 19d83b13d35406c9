# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions and modules that :mod:`nkilib.torch` exports. This package exports nothing itself.

They are not directly in ``nkilib.torch``, because a module ``nkilib.torch.cross_entropy`` would shadow the function
of that name: importing a module sets it as an attribute of its package.

- Losses from logits or class scores: ``cross_entropy``, ``vocab_parallel``, ``distillation_loss``, ``token_scores``,
  ``class_margins`` (multi-margin, multi-label margin), ``ctc_loss``, ``softmax``.
- Losses from hidden states and an output layer: ``linear_cross_entropy``, ``linear_token_scores``,
  ``linear_distillation``; ``output_layer``: chunks of tokens, and the layer's forward under FSDP2.
- Losses from numbers and probabilities: ``regression`` (L1, squared, smooth L1, Huber), ``binary_cross_entropy`` (of
  probabilities, of logits, multi-label soft margin), ``likelihood`` (NLL, Gaussian, Poisson, Kullback-Leibler),
  ``embedding`` (cosine, hinge, ranking, triplet).
"""
