# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of distillation from hidden states.

- ``tiling`` chooses a tiling, with ``pair_sizes`` for the first pass over the classes and the backward, and
  ``mixture_tiling`` for the second pass.
- ``reference`` has float64 results, ``bounds`` has bounds on the errors of the kernels.
- ``profiling`` models the times of launches.
"""
