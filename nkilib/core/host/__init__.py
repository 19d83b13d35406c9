# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the public functions of every framework share, and none of them is needed for. Never traced.

- :mod:`.options`: options as fields of a dataclass;
- :mod:`.keywords`: those fields as keywords of public functions;
- :mod:`.reductions`: what a loss of rows may be reduced to;
- :mod:`.rounding`: what rounding to a type costs, in which bounds on errors are stated;
- :mod:`.sized_loss`: losses whose rows say what the tensors of a launch are;
- :mod:`.sizes`: sizes and types as functions that choose tilings are given them;
- :mod:`.requirement`: the release of a framework that a package needs.
"""
