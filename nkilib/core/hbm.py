# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The type of a tensor argument in the signature of a public kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nkilib.nki import nl

HbmTensor: TypeAlias = "nl.NkiTensor | Any"
"""A tensor in HBM: in NKI code an ``nl.NkiTensor``, in a launch from the host its source, an array of numpy, a
tensor of torch or a :class:`~nkilib.simulator.Spec`. Type checkers let all of these through."""
