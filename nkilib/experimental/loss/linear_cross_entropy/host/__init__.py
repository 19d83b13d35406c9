# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code around the kernels. A kernel uses only ``tiling``, while it is traced.

- ``tiling`` chooses a tiling and counts bytes of HBM.
- ``profiling`` models the times of launches.
- ``reference`` has float64 results.
- ``bounds`` has bounds on the errors of the kernels.
- ``token_scores`` has results and bounds for several target ids per position.
"""
