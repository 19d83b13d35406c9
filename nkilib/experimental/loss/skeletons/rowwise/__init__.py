# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The skeleton of row-wise losses: one loss per row, from sums and maxima of its elements.

It streams tensors [N, D]. It computes losses from statistics of the rows, such as sums; it computes gradients from
per-row coefficients that the forward keeps. A loss definition states the computation on a piece of a
chunk of rows. From a kernel down:

- :mod:`.run`: the checks of the kernels' arguments, and the allocation of results and gradients;
- :mod:`.definition`: the interface of a loss definition; :mod:`.combination`, :mod:`.row_scalars`: arithmetic that loss
  definitions share;
- :mod:`.forward`, :mod:`.backward`: the losses of a core, and their gradients;
- :mod:`.stream`, :mod:`.piece`: chunks of rows, loaded ahead, and their pieces; :mod:`.geometry`: tiles and groups;
- :mod:`.host.tiling`, :mod:`.host.reference`, :mod:`.host.row`: host code: the tiling of a launch, its reference
  results, and the registry entry of a row-wise loss.
"""
