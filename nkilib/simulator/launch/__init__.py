# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernel launches, their arguments and their results.

- ``kernel``: ``nki.jit``, kernels and ``nki.simulate``, and the choice between a replay and a full run;
- ``simulating``: ``nkilib.simulator.simulate``, with ``skip_arithmetic``;
- ``ranks``: launches on several ranks in parallel;
- ``settings``: the settings of a launch from ``nki.jit`` and the environment, and the order of named instructions;
- ``arguments``: the conversion of arguments and results;
- ``overlaps``: arguments that share memory;
- ``running``: a launch from its preparation to its results, with and without arithmetic;
- ``agreement``: checks that both cores make and return the same tensors;
- ``progress``: the progress display of a long simulation.
"""
