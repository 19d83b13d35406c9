# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of whether a tensor has memory that this process can address, or belongs to a traced graph, and of whether
memory that a backward overwrites still holds what the forward saved.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


def is_traced(tensor: Tensor) -> bool:
    """Return whether a graph is being traced with this tensor: it is fake, functional or the compiler's, and at run
    time the tensor may have another layout.
    """
    return torch.compiler.is_compiling() or type(tensor) not in _PLAIN


def address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's first element; None if it has no memory, as in XLA and in a traced graph."""
    if is_traced(tensor):
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # what PyTorch raises for a tensor without storage
        return None


def _weakly(tensor: Tensor) -> StorageWeakRef:
    """Return a reference to a tensor's memory that does not keep it; two are equal if the memory is the same."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class ReusedMemory:
    """Memory that a forward saves and its backward writes gradients over, so that there is only one backward.

    PyTorch raises for saved tensors that were changed in place, but not under saved-tensor hooks, which may return the
    changed memory. So the backward itself remembers that it has written, and compares versions.

    Args:
        operator: the operator of the backward, which error messages name.
        remedy: the way to get another backward, for error messages.
        tensor: the tensor, if others may write to its memory too.

    Attributes:
        is_spent: whether a backward has written gradients over the memory.
    """

    def __init__(self, operator: str, remedy: str, tensor: Tensor | None = None) -> None:
        self.is_spent = False
        self._operator, self._remedy = operator, remedy
        self._saved = None if tensor is None else (_weakly(tensor), tensor._version)

    def check(self, unpacked: Tensor | None = None) -> None:
        """Reject a backward of memory that no longer holds what the forward saved.

        Args:
            unpacked: the tensor as the backward gets it; None before saved tensors are unpacked. If a hook has returned
                other memory, that is a copy of what the forward saved.

        Raises:
            RuntimeError: if the check fails.
        """
        if self.is_spent:
            self._refuse("a backward has written gradients over it")
        if self._saved is not None and unpacked is not None:
            storage, version = self._saved
            if _weakly(unpacked) == storage and unpacked._version != version:
                self._refuse(f"it is at version {unpacked._version}; expected version {version} instead")

    def _refuse(self, reason: str) -> NoReturn:
        raise RuntimeError(
            f"{self._operator}: one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: {reason}; {self._remedy}"
        )
