# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The skeleton of elementwise losses, which their kernels share.

It streams the tensors, sums or stores the losses, multiplies by weights and upstream gradients, and splits
the work between two cores; a loss definition states the computation on a piece of a tile. From a kernel
down:

- :mod:`.run`: checks, allocates and computes; a kernel passes names, tensors and a loss definition;
- :mod:`.definition`: the interface of a loss definition, three functions of tiles; :mod:`.weighted` multiplies one by a
  weight;
- :mod:`.passes`: the losses of a core, their gradients, or both; :mod:`.results`: the destinations of losses;
- :mod:`.stream`, :mod:`.tiles`: tiles of the tensors, loaded ahead; :mod:`.tiling`: the choice of their sizes;
- :mod:`.host.reference`: the float64 results of a loss, and its accepted errors;
- :mod:`.host.row`: the registry entry of an elementwise loss, and the data derived from it; :mod:`.host.work`: the work
  that bounds its time.
"""
