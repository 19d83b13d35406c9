# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax along any axis, and their gradients from the saved output, as kernels to launch.

For example ``y = softmax_forward[2](x, axis)``, then ``grad_x = softmax_backward[2](grad, y, axis)``.

- ``kernels``: signatures and checks; ``inline``: the same functions, to call from NKI code;
- ``tensors``: views [O, C, I] of tensors, the softmax modes and the types;
- ``rows``, ``rows_backward``: the loops for the last axis; ``row_schedule``: the order of their instructions;
  ``row_statistics``: maxima and sums of rows; :mod:`nkilib.core.rows.row_plan`: the division of rows;
- ``columns``: the loops for other axes;
- for host code, ``tiling``: the tiling and its choice; ``host``: the kernels to launch, with guarantees, work,
  references and bounds; ``profiling``: profiles of launches.
"""

from typing import TYPE_CHECKING, Final

from nkilib.core.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from nkilib.experimental.softmax.host import (
        log_softmax_backward,
        log_softmax_forward,
        softmax_backward,
        softmax_forward,
    )
    from nkilib.experimental.softmax.tiling import SoftmaxTiling, choose_softmax_tiling

__all__ = [
    "SoftmaxTiling",
    "choose_softmax_tiling",
    "log_softmax_backward",
    "log_softmax_forward",
    "softmax_backward",
    "softmax_forward",
]

_MODULES: Final = {
    "SoftmaxTiling": "tiling",
    "choose_softmax_tiling": "tiling",
    "log_softmax": "host",
    "softmax": "host",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
