# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Linear cross-entropy: kernels to launch on their own, and the modules that they consist of.

Launch the kernels like this::

    loss, lse = linear_cross_entropy_forward[2](input, weight, targets, ...)
    grad_input, grad_weight = linear_cross_entropy_backward[2](input, weight, targets, lse, grad_loss, ...)
    logprob, lse = linear_token_scores_forward[2](input, weight, ids, ...)

:mod:`nkilib.experimental.loss.inline` has the same functions, to be called from NKI code.

A launch goes through these steps, in this order; ``linear.`` stands for :mod:`nkilib.experimental.loss.linear`:

1. ``kernels``, or ``token_scores_kernels`` for K target ids per position, have the signatures. They put the arguments
   into a ``LinearLaunch`` (``shared.options``).
2. ``validation`` rejects arguments that are not accepted, including K ids and upstream gradients, before anything is
   written.
3. ``host.tiling`` chooses the tiling. For the forward it uses ``host.forward_tiling`` and the needs of the options from
   ``shared.forward_needs``, for gradients ``linear.host.backward_tiling`` and ``backward.tile_needs``.
4. ``forward.one_core`` computes the forward, for each block of positions:

   a. X^T and the targets of the block are loaded (``linear.forward.streams``, ``shared.positions``);
   b. the core's blocks of classes stream past (``linear.forward.class_schedule``): logits, maxima and exponentials
      (``forward.score_tiles``, with ``linear.shared.logits``), the logits at the targets
      (``linear.forward.target_logits``), and ``forward.ranking`` for the argmax;
   c. the statistics go into ``forward.position_statistics``: windows of blocks are combined, then the statistics of
      both cores;
   d. the results are stored; ``forward.id_logits`` stores those of K ids.

5. ``backward.one_core`` hands the loss to ``linear.backward.one_core``, which has the loop of the backward:

   a. ``backward.gradient_columns`` computes the per-position scalars of the gradient, once per launch. For K ids
      ``backward.id_gradient`` does so; it sorts the ids and adds up the gradients of equal ones;
   b. ``backward.gradient_tile`` computes, for each tile of logits, the gradient in float32 and rounds it once.
      ``backward.id_tiles`` adds the gradients of K ids to it;
   c. ``linear.backward.gradient_products`` multiplies: dX, dW and db of a block.

6. ``one_launch`` computes loss and gradients in a single launch: for each block of positions step 4, with the logits
   kept in HBM (``linear.shared.kept_logits``), then step 5 from the kept logits.

Token scores are the same launch with K ids instead of the target. K = 1 takes the path of linear cross-entropy; K > 1
additionally uses the files with ``id_`` in their names.

``host`` has the numpy and arithmetic around the kernels: tilings, guarantees, work, memory and the reference.
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
