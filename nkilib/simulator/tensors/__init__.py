# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors, which are views of a storage; their indexing and reshaping; integers that only the device knows.

- ``tensor``: ``NkiTensor``, its Python operators, which raise errors, and its text;
- ``view``: the base class of tensors, with layout and partitions;
- ``indexed_views``: views of a part of a tensor;
- ``reshaped_views``: views of all elements in another shape, order or type, and access patterns;
- ``grids``: tensors divided into tiles or blocks of tiles;
- ``device_integers``: registers and scalars, whose values only the device knows.
"""
