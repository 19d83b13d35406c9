# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax along any axis, and their gradients from the saved output, as kernels to launch.

:mod:`nkilib.experimental.softmax.inline` offers them as functions to call from NKI code.

y = softmax_forward[2](x, axis) grad_x = softmax_backward[2](grad, y, axis)

``kernels`` has the signatures and checks, ``inline`` the functions for NKI code, and ``tensors`` the views [O, C, I],
the softmax modes and the types. The loops for the last axis are in ``rows`` and ``rows_backward``;
:mod:`nkilib.core.rows.row_plan` has their pieces, partitions and batches, ``row_schedule`` the order of the
instructions, and ``row_statistics`` the maxima and sums of rows. ``columns`` has the loops for other axes. For host
code, ``tiling`` has the tiling and its choice, ``host`` the kernels to launch, with guarantees, work, references and
bounds, and ``profiling`` profiles of launches.
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
