# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of ``nki.language``: most run one or more instructions on tiles and return a new tile.

- ``creation``: new tensors, and constants;
- ``grids``: tensors divided into tiles or blocks;
- ``movement``: transfers between HBM and SBUF, copies, broadcasts, gathers and ``where``;
- ``operands``: code for all functions on tiles: operands, types of results, broadcasting;
- ``elementwise``, ``rounding``, ``trigonometry``, ``random``, ``reductions``, ``matmul``: arithmetic on tiles;
- ``loops``: ranges, and loops that run on the device;
- ``programs``: functions without arithmetic: launch grid, target, printing, registers and explanations of indices;
- ``language_function``: a decorator that adds the name of the function of ``nki.language`` to errors.
"""
