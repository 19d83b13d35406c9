# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The description of operators, their registration with PyTorch and their launch, independent of any loss.

From the bottom up: ``operator`` describes an operator, ``launch`` runs a description on a device, ``register`` makes
``torch.ops.nkilib`` of it, and ``autograd`` registers its derivative. Helpers that public functions share are in
``checks`` and ``layout``. Nothing here knows a loss.
"""
