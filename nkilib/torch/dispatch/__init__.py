# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The description of operators, their registration with PyTorch and their launch, independent of any loss:

- ``devices``: the devices on which operators run, and the way in which they are registered for the native one;
- ``operator``: the description of an operator;
- ``memory``: the memory that tensors share, or that a backward writes over;
- ``launch``: the execution of a description on a device;
- ``register``: ``torch.ops.nkilib``, made from descriptions;
- ``autograd``: the derivative of an operator by another operator.

For public functions:

- ``checks``: the checks of tensors, the broadcasting of their shapes, and the dtype of autocast;
- ``uncompiled``: errors and warnings under torch.compile;
- ``layout``: the conversion of PyTorch's tensors to the rows that kernels read;
- ``dtensors``: this rank's part of DTensors.
"""
