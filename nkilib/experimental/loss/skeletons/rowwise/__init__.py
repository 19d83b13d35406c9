# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The skeleton of losses of rows: of each row one loss, from sums and maxima of its elements.

It streams tensors [N, D], makes losses of the statistics of rows, and gradients of coefficients that the forward keeps;
a loss says what it makes of the pieces of a row. From a kernel down:

- :mod:`.run`: what kernels accept, and where results and gradients go;
- :mod:`.kind`: what a loss is to the skeleton; :mod:`.combination`, :mod:`.row_numbers`: arithmetic that kinds share;
- :mod:`.forward`, :mod:`.backward`: the losses of a core, and their gradients;
- :mod:`.stream`, :mod:`.piece`: chunks of rows, loaded ahead, and their pieces; :mod:`.geometry`: tiles and groups;
- :mod:`.host.tiling`, :mod:`.host.truth`, :mod:`.host.row`: for host code: how a launch is cut up, what it should give,
  and what a loss of rows is, as one row of data.
"""
