# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from hidden states: the divergence of a student from a teacher, without the logits of either in HBM.

The kernels are launched on their own::

    divergence, entropy, *statistics = linear_distillation_forward[2](xs, ws, xt, wt, ...)
    grad_xs, grad_ws = linear_distillation_backward[2](xs, ws, xt, wt, *statistics, grad_divergence, ...)
    sums = linear_distillation_mixture[2](xs, ws, xt, wt, *statistics_of_all_shards, ...)

:mod:`nkilib.experimental.loss.inline` has the functions that NKI code calls.

X^T and W^T are the transposed input and weight of a model, and *scores* are the logits before scaling, or tanh(logit /
cap) under a cap. A *mixture* is beta P + (1 - beta) Q of the distributions P of the teacher and Q of the student. A
launch has these steps, in order; ``linear.`` is :mod:`nkilib.experimental.loss.linear`:

1. ``kernels``: the signatures. They put the arguments into a ``PairLaunch`` of two models (``launch``).
2. ``validation`` checks the arguments before anything is written.
3. ``host.tiling`` chooses the tiling from the sizes and options that ``launch`` derives. ``host.pair_sizes`` counts
   the memory and time that options take, ``host.mixture_tiling`` chooses the tiling of a second pass.
4. First pass over all classes, ``forward.one_core``, for each block of positions:

   a. X^T of both models, labels and weights are loaded (``linear.operands``, ``forward.pair_statistics``);
   b. blocks of classes stream: tiles of scores of each model, and the sums of each pair of tiles
   (``forward.pair_tiles``);
   c. the sums go into ``forward.pair_statistics``: windows of blocks are combined, then the statistics of both cores;
   d. the results are computed (``forward.pair_results``) and stored: KL(teacher || student) or KL(student || teacher),
   entropy, log-probability.

5. Second pass, for a mixture (0 < beta < 1), which needs both log-sum-exps. ``forward.visits`` has the data that the
   first pass hands over. ``kernels`` chooses one of two ways: the scores are kept in HBM, and the second pass runs
   during the first pass of the next block of positions (``mixture.kept_visit``), or both products are recomputed
   (``mixture.recomputed_visit``). Either way ``mixture.sums`` has the per-row scalars, the sums of each block of
   classes, and the results.
6. Backward: ``backward`` computes the per-position inputs and the tiles of the gradient of the student's logits from
   the scores of both models, and hands the loss to ``linear.backward.one_core`` with the loop.

So ``forward`` is the first pass and ``mixture`` the second. ``host`` has the host code around the kernels;
``registry_entry`` has the kernels to launch with their guarantees and their work.
"""
