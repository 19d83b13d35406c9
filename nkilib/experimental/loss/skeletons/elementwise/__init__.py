# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The skeleton of elementwise losses, which their kernels share.

The skeleton streams the tensors, sums or stores the losses, multiplies by weights and upstream gradients, and splits
the work between two cores; a loss definition states the computation on a piece of a tile. The modules, from a kernel
down:

- ``run``: checks, allocates and runs the passes of a core; a kernel passes names, tensors and a loss definition;
- ``definition``: the interface of a loss definition;
- ``results``: the destinations of losses; and the definition of any loss times a weight;
- ``stream``: tiles of the tensors, loaded ahead; ``tiling``: the choice of their sizes;
- ``host``: the registry entry of an elementwise loss, its work, and its float64 results with accepted errors.
"""
