# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of distillation from hidden states, in numpy and arithmetic.

``tiling``: the choice of a tiling, with ``pair_sizes`` for the first visit of the classes and the backward, and
``mixture_tiling`` for the second visit; ``reference``: float64 results; ``bounds``: bounds on the errors of the
kernels; ``profiling``: modelled times of launches.
"""
