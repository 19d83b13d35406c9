# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of distillation from hidden states, in numpy and arithmetic.

``tiling``: the choice of a tiling, with ``forward_tiling`` for the first visit of the classes and ``mixture_tiling``
for the second; ``reference``: float64 results; ``bounds``: how far kernels may be off; ``profiling``: launches to
profile.
"""
