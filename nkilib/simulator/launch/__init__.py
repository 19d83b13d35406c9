# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernel launches, their arguments and their results.

- ``kernel``: ``nki.jit`` and kernels, ``nki.simulate``, and the choice of how a launch runs;
- ``simulating``: ``nkilib.simulator.simulate``, with ``skip_arithmetic``;
- ``ranks``: launches on several ranks in parallel;
- ``settings``: what ``nki.jit`` and the environment set for a launch, and orders between instructions;
- ``arguments``: the conversion of arguments and results;
- ``overlaps``: arguments that share memory;
- ``running``: a launch from its preparation to its results, also one that skips arithmetic;
- ``agreement``: the checks that both cores make and return the same tensors;
- ``progress``: the progress display of a long simulation.
"""
