# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Row-wise losses of ``torch.nn.functional`` on the row-wise skeleton.

- ``cosine_embedding``, ``multilabel_soft_margin``: a file per loss, with definition, kernels, reference and registry
  entry;
- ``triplet_margin``: definition and kernels; ``triplet_distances``: the distances between rows;
  ``triplet_margin_host``: registry entry, float64 reference and bounds.
"""
