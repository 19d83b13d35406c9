# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Helpers that NKI code may call.

- ``hardware``: numbers of the hardware, the division of sizes into tiles, and the type of a tensor in HBM;
- ``cores``: the division of work over cores, a barrier, and sums over all cores;
- ``arithmetic``: arithmetic on whole tiles, on Vector or GpSimd;
- ``rows``: building blocks of kernels over the rows of a matrix; ``psum``: a ring buffer in PSUM for such kernels;
- ``loss_arguments``: checks of the arguments of losses, and upstream gradients on chip;
- ``plan_limits``: the limits that plans of launches obey;
- ``host``: host code that is never traced.
"""

from pkgutil import extend_path

# The package that the Neuron compiler bundles has an nkilib.core too: its modules stay importable
# (see nkilib/__init__.py).
__path__ = extend_path(__path__, __name__)
