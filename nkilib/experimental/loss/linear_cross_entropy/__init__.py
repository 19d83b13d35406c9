# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Linear cross-entropy: kernels to launch on their own, and the modules that implement them.

Launch the kernels like this::

    loss, lse = linear_cross_entropy_forward[2](input, weight, targets, ...)
    grad_input, grad_weight = linear_cross_entropy_backward[2](input, weight, targets, lse, grad_loss, ...)
    logprob, lse = linear_token_scores_forward[2](input, weight, ids, ...)

:mod:`nkilib.experimental.loss.inline` has the same functions, to be called from NKI code.

X and W are input and weight, dX, dW and db the gradients of X, W and the bias, and K is the number of target ids per
position. A launch goes through these steps, in this order; ``linear.`` stands for
:mod:`nkilib.experimental.loss.linear`:

1. ``kernels``, or ``token_scores_kernels`` for K target ids per position, have the signatures. They put the arguments
   into a ``LinearLaunch`` (``launch``).
2. ``validation`` rejects arguments that are not accepted, including K ids and upstream gradients, before anything is
   written.
3. ``host.tiling`` chooses the tiling from the needs of the options (``launch``); for gradients it calls
   ``linear.tiling``.
4. ``forward`` computes the forward, for each block of positions:

   a. X^T and the targets of the block are loaded (``linear.operands``, ``targets``);
   b. the core's blocks of classes stream (``linear.class_schedule``): logits, maxima, exponentials and the argmax
   (``score_tiles``, with ``linear.logits``), and the logits at the targets (``linear.logit_passes``);
   c. the statistics go into ``position_statistics``: windows of blocks are combined, then the statistics of both cores;
   d. the results are stored, including those of K ids.

5. ``backward`` hands the loss to ``linear.backward.one_core``, which has the loop of the backward:

   a. ``gradient_columns`` computes the per-position scalars of the gradient, once per launch. For K > 1 ids
   ``id_gradient`` computes them, sorts the ids, and adds up the gradients of equal ids;
   b. ``backward`` computes, for each tile of logits, the gradient in float32 and rounds it once. ``id_gradient`` adds
   the gradients of K ids to it;
   c. ``linear.backward.gradient_products`` multiplies: dX, dW and db of a block.

6. ``one_launch`` computes loss and gradients in a single launch: for each block of positions step 4, with the logits
   kept in HBM (``linear.logits``), then step 5 from the kept logits.

Token scores are the same launch with K ids instead of the target. For K = 1 the code of linear cross-entropy runs; K >
1 additionally uses the modules and functions with ``id`` in their names.

``host`` has the host code around the kernels. ``registry_entry`` has the kernels to launch, their guarantees and work,
and the entry in the list of losses.
"""
