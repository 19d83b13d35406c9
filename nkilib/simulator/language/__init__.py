# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of ``nki.language``: most run one or more instructions on tiles and return a new tile.

- ``creation``: new tensors, and read-only ones that the kernel supplies;
- ``grids``: tensors divided into tiles or blocks;
- ``movement``: transfers between HBM and SBUF, copies, broadcasts, gathers and ``where``;
- ``operands``: what the functions on tiles share: operands, types of results, broadcasting;
- ``elementwise``, ``rounding``, ``trigonometry``, ``random``, ``reductions``, ``matmul``: arithmetic on tiles;
- ``loops``: ranges, and loops that run on the device;
- ``programs``: what computes nothing: the launch grid, the target, printing, registers and explanations of indices;
- ``language_function``: the decorator by which errors name a function of ``nki.language``.
"""
