# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of TorchTitan on the kernels, from logits or from hidden states. Importing this package does not import
TorchTitan.

``losses`` has the losses from logits, ``linear`` the losses from hidden states, and ``installation`` has ``install``,
which replaces TorchTitan's own losses. docs/reference/torch.md#which-function-for-which-trainer shows their use.
"""

from nkilib.torch.replacement import Undo
from nkilib.torch.torchtitan.installation import install
from nkilib.torch.torchtitan.linear import LinearCrossEntropyLoss, compute_linear_logprobs
from nkilib.torch.torchtitan.losses import (
    IGNORE_INDEX,
    ChunkedCrossEntropyLoss,
    CrossEntropyLoss,
    build_cross_entropy_loss,
    compute_logprobs,
    cross_entropy_loss,
)

__all__ = [
    "IGNORE_INDEX",
    "ChunkedCrossEntropyLoss",
    "CrossEntropyLoss",
    "LinearCrossEntropyLoss",
    "Undo",
    "build_cross_entropy_loss",
    "compute_linear_logprobs",
    "compute_logprobs",
    "cross_entropy_loss",
    "install",
]
