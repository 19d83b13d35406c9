# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Elementwise losses of ``torch.nn.functional``: a file per loss, with its definition, its kernels, its reference and
its registry entry.

- regression: ``mse``, ``l1``, ``smooth_l1`` (Huber loss too);
- likelihoods: ``gaussian_nll``, ``poisson_nll``, ``kl_div``;
- binary classification: ``bce``, ``bce_with_logits``;
- embeddings and ranking: ``hinge_embedding``, ``margin_ranking``.
"""
