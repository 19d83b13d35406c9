# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How an operator is described, registered with PyTorch and launched, whichever function it serves.

From the bottom up: ``operator`` describes, ``launch`` runs a description on a device, ``register`` makes
``torch.ops.nkilib`` of it, ``autograd`` its derivative. What public functions share stands beside them: ``checks``,
``layout``. Nothing here knows a loss.
"""
