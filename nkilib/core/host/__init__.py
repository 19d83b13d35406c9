# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code that the public functions of every framework share. It needs none of the frameworks and is never traced.

- :mod:`.options`: options as fields of a dataclass;
- :mod:`.keywords`: those fields as keywords of public functions;
- :mod:`.reductions`: the reductions of a row-wise loss;
- :mod:`.rounding`: the error of rounding to a type, the unit of error bounds;
- :mod:`.sized_loss`: losses whose registry entries give the sizes of the tensors of a launch;
- :mod:`.sizes`: checks of the sizes and types that are passed to functions that choose tilings;
- :mod:`.requirement`: the release of a framework that a package needs.
"""
