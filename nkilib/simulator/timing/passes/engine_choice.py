# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the engine for an instruction whose engine the kernel leaves open.

The text of ``nisa.tensor_copy`` (``nki/api/nki/isa/__init__.py``) says of ``engine.unknown``, its default, that the
"compiler selects best engine based on engine workload", and the text of ``memset`` that the compiler selects the best
one. The model takes the engine that is done first. GpSimd cannot access PSUM. On trn1 both stay on Vector: Scalar has
no ``tensor_copy`` there, and GpSimd and Vector share their way to SBUF.

Functions of ``nki.language`` that an activation could compute stay on the engine on which they are issued;
docs/explanation/performance_model.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...hardware.generation import Generation
from ...terms.enums import Engine, nc_version
from ...terms.regions import MemoryRegion
from ..footprints import Form
from ..noted import Noted

NAME = "chooses_engines"

BY_WORKLOAD = frozenset({"tensor_copy", "memset"})


def engines_for(noted: Noted, forms: Sequence[Form | None], generation: Generation) -> Sequence[Engine]:
    """Return the engines that can run an instruction of :data:`BY_WORKLOAD`, in the order in which they are tried."""
    if noted.decided("engine") is not Engine.unknown or generation.version is nc_version.gen2:
        return (noted.engine,)
    in_psum = any(form is not None and form.buffer is MemoryRegion.psum for form in forms)
    return [engine for engine in noted.definition.engines if engine is not Engine.gpsimd or not in_psum]
