# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels for the losses of large models on AWS Trainium, in NKI, and a numpy simulator of NKI that runs them anywhere.

The kernels are in `nkilib.experimental.loss`, the simulator in `nkilib.simulator`; `nkilib.nki` chooses between the
simulator and the real NKI. Importing this package loads none of them.

For users:

- ``torch``, ``jax``: the losses as functions and modules of a framework;
- ``experimental``: the kernels;
- ``nki``: NKI, real or simulated;
- ``simulator``: the simulator of NKI, and its profiles;
- ``cli``, run by ``__main__``: the commands ``python -m nkilib``;
- ``lnc``: an alias of ``base.lnc``, the number of cores of a launch.

Behind them:

- ``core``: helpers that kernels share;
- ``verify``: checks of a device;
- ``base``: modules that every part may import;
- ``_refuse_mixture``: the check against a mixture with another package of this name.
"""

from pkgutil import extend_path

# The Neuron compiler bundles a package of the same name. Ours, first on the path, wins for every module that both have,
# and this keeps those importable that only the bundled one has. Sub-packages that exist on both sides do the same.
# nkilib.base.installation refuses other mixtures of the two.
__path__ = extend_path(__path__, __name__)

_IS_BUNDLED = False

__version__ = "0.2.0"
__all__ = ["__version__"]
