# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 reference of the cross-entropy kernels, computed from the same inputs that the kernels get.

For host code; needs numpy only.
"""

from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    ExtendedLoss,
    ExtendedResults,
    Float64Array,
    RowStatistics,
    as_numpy_dtype,
    cross_entropy_backward_reference,
    cross_entropy_forward_reference,
    extended_backward_reference,
    extended_forward_reference,
    gradient_of_rows,
    gradient_scale,
    probabilities,
    rounded_to,
    row_blocks,
    row_statistics,
)

__all__ = [
    "BackwardInputs",
    "ExtendedLoss",
    "ExtendedResults",
    "Float64Array",
    "RowStatistics",
    "as_numpy_dtype",
    "cross_entropy_backward_reference",
    "cross_entropy_forward_reference",
    "extended_backward_reference",
    "extended_forward_reference",
    "gradient_of_rows",
    "gradient_scale",
    "probabilities",
    "rounded_to",
    "row_blocks",
    "row_statistics",
]
