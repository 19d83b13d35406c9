# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Linear cross-entropy: its kernels, to be launched on their own, and what they are made of.

loss, lse = linear_cross_entropy_forward[2](input, weight, targets, ...)
grad_input, grad_weight = linear_cross_entropy_backward[2](input, weight, targets, lse, grad_loss, ...)
logprob, lse = linear_token_scores_forward[2](input, weight, ids, ...)

:mod:`nkilib.experimental.loss.inline` has the functions, to be called from NKI code.

What a launch goes through, in order; ``linear.`` is :mod:`nkilib.experimental.loss.linear`:

1. ``kernels``, or ``token_scores_kernels`` for K target ids a position: the signatures. They put the arguments into a
   ``LinearLaunch`` (``shared.options``).
2. ``validation`` refuses what is not accepted, K ids and upstream gradients included, before anything is written.
3. The tiling: ``host.tiling`` chooses it, of the forward by ``host.forward_tiling`` from what ``shared.forward_needs``
   says of the options, of gradients by ``linear.host.backward_tiling`` from ``backward.tile_needs``.
4. Forward, ``forward.one_core``, for each block of positions:

   a. X^T and the targets of the block are loaded (``linear.forward.streams``, ``shared.positions``);
   b. blocks of classes of the core pass by (``linear.forward.class_schedule``): logits, maxima and exponentials
      (``forward.score_tiles``, by ``linear.shared.logits``), logits at the targets (``linear.forward.target_logits``),
      and for the argmax ``forward.ranking``;
   c. what is found goes into ``forward.position_statistics``: windows of blocks are combined, then those of both cores;
   d. results are stored, those of K ids by ``forward.id_logits``.

5. Backward, ``backward.one_core``, which hands the loss to ``linear.backward.one_core``, where the loop is:

   a. ``backward.gradient_columns``: what the gradient takes of each position, once for a launch; of K ids
      ``backward.id_gradient``, which sorts them and adds up those that are equal;
   b. ``backward.gradient_tile``, for each tile of logits: its gradient in float32, rounded once. ``backward.id_tiles``
      adds the gradients of K ids to it;
   c. ``linear.backward.gradient_products``: dX, dW and db of a block.

6. Both in one launch, ``one_launch``: for each block of positions step 4 with logits that are kept in HBM
   (``linear.shared.kept_logits``), then step 5 from them.

Token scores are the same launch with K ids for the target. K = 1 takes the way of linear cross-entropy; K > 1 takes the
files with ``id_`` in their names besides.

Around the kernels, in numpy and arithmetic, is ``host``: tilings, guarantees, work, memory, reference.
"""

from nkilib.experimental.loss.linear_cross_entropy.row import (
    LINEAR_CROSS_ENTROPY,
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)

__all__ = [
    "LINEAR_CROSS_ENTROPY",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_forward",
    "linear_cross_entropy_forward_backward",
    "linear_token_scores_backward",
    "linear_token_scores_forward",
]
