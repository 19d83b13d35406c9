# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors: views of a storage, how they are indexed and reshaped; integers that only the device knows.

- ``tensor``: ``NkiTensor``, the operators that it refuses, and its text;
- ``view``: the base of every tensor: its layout, and the partitions in which it lies;
- ``indexed_views``: views of a part of a tensor;
- ``reshaped_views``: views of all elements in another shape, order or type, and access patterns;
- ``grids``: tensors divided into tiles or blocks of tiles;
- ``device_integers``: registers and scalars, whose values only the device knows.
"""
