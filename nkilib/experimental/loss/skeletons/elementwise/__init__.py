# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The skeleton of elementwise losses, which their kernels share.

The skeleton loads the tensors, stores or sums the losses, multiplies by weights and upstream gradients, and divides
the work between two cores. A loss definition computes losses and derivatives of a piece, a part of a tile. The modules,
from a kernel down:

- ``run``: what a kernel calls with names, tensors and a loss definition: checks, allocation, the loop over tiles;
- ``definition``: the interface of a loss definition;
- ``results``: what becomes of losses (stored or summed); the definition of any loss times a weight;
- ``stream``: tiles of the tensors, loaded ahead; ``tiling``: the choice of their sizes;
- ``host``: the registry entry of an elementwise loss, its work, and its float64 results with accepted errors.
"""
