# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The shared semantics of losses: shapes, dtypes, checks, and operators made from one description.

The functions themselves are in :mod:`nkilib.torch.functions`.

- ``elementwise``, ``rowwise``, ``indexed``: elementwise losses, row-wise losses and losses with class indices, each
  with its operators from one description;
- ``checks``: the checks that losses share;
- ``outputs``: the dtype, shape and reduction of results;
- ``options``: the options of the operators;
- ``temperatures``: the argument ``temperature``, a number or a tensor;
- ``modules``: base classes of loss modules.
"""
