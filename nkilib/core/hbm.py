# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a public kernel takes as a tensor, for its signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nkilib.nki import nl

HbmTensor: TypeAlias = "nl.NkiTensor | Any"
"""A tensor in HBM: in NKI code an ``nl.NkiTensor``, in a launch from the host what is put there, an array of numpy, a
tensor of torch or a :class:`~nkilib.simulator.Spec`. Type checkers let all of these through."""
