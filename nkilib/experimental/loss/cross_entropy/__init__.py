# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy of logits: the kernels, for direct launches.

Example::

    loss, lse = cross_entropy_forward[2](logits, targets, ...)
    grad = cross_entropy_backward[2](logits, targets, lse, ...)

:mod:`nkilib.experimental.loss.inline` has the same functions, to be called from other kernels.

- ``kernels``: the kernels as plain functions; ``registry_entry``: the kernels with guarantees and work;
- ``launch``, ``validation``: the arguments and options of a launch, what a backward is given, and their checks;
- ``forward``: the losses on one core;
- ``results``: the values of a group of batches, and the results computed from them;
- ``backward``, ``coefficients``: the gradient on one core, and the coefficients that it is made of;
- ``layouts``: several partitions a position, or several positions a partition;
- ``targets``, ``softcap``: the targets and factors of classes, and the cap of logits, on chip;
- ``tiling``: the choice of a tiling; ``profiling``: the modelled profile of a launch;
- ``reference``, ``bounds``: float64 results, and the accepted errors of the kernels.
"""
