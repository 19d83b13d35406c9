# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The skeleton of losses whose elements have nothing to do with each other.

It streams the tensors, sums, stores, multiplies with weights and upstream gradients, and splits the work between two
cores; a loss says what it computes of a piece of a tile. From a kernel down:

- :mod:`.run`: checks, allocates and computes; a kernel gives names, tensors and a kind;
- :mod:`.kind`: what a loss is to the skeleton, three functions of tiles; :mod:`.weighted` is one times a weight;
- :mod:`.passes`: the losses of a core, their gradients, or both; :mod:`.results`: where losses go;
- :mod:`.stream`, :mod:`.tiles`: tiles of the tensors, loaded ahead; :mod:`.tiling`: how they are chosen;
- :mod:`.host.truth`: what a loss should give in float64, and how far it may be off;
- :mod:`.host.row`: what a loss of elements is, as one row of data, and what follows from it; :mod:`.host.work`: its
  bound.
"""
