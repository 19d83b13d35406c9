# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy of logits: the kernels to launch.

Example::

    loss, lse = cross_entropy_forward[2](logits, targets, ...)
    grad = cross_entropy_backward[2](logits, targets, lse, ...)

:mod:`nkilib.experimental.loss.inline` has the same functions, as functions to call from other kernels.

- ``kernels``: the kernels as plain functions; ``registry_entry``: the kernels with guarantees and work;
- ``launch``: the arguments and options of a launch, and the inputs of a backward; ``validation``: their checks;
- ``forward``: the losses on one core;
- ``results``: the values of a group of batches, and the results computed from them;
- ``backward``: the gradient on one core; ``coefficients``: the coefficients from which it is computed;
- ``layouts``: several partitions per position, or several positions per partition;
- ``targets``: the targets and the factors of classes, on chip; ``softcap``: the cap of logits;
- ``tiling``: the choice of a tiling; ``profiling``: the modelled profile of a launch;
- ``reference``: float64 results; ``bounds``: the accepted errors of the kernels.
"""
