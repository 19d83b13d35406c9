# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels whose interface may still change.

- ``loss``: the losses of large models; ``softmax``: softmax and its gradient;
- ``public_kernels``: all public kernels, for host code that iterates over them.
"""

from pkgutil import extend_path

import nkilib._refuse_mixture  # noqa: F401

# The package that the Neuron compiler bundles has an nkilib.experimental too: its modules stay importable
# (see nkilib/__init__.py).
__path__ = extend_path(__path__, __name__)
