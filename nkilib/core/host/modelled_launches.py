"""Launches whose modelled times a page shows, stated as shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nkilib.base.loss_kind import ModelledLaunch

Shape = tuple[int, ...]


def launched(
    label: str,
    forward: bool,
    held: tuple[float, float],
    tensors: Mapping[str, Shape],
    fixed: Mapping[str, Mapping[str, Shape]] | None = None,
    **options: Any,
) -> ModelledLaunch:
    """A launch in bfloat16 and in float32.

    Args:
        label, forward: as of :class:`nkilib.base.loss_kind.ModelledLaunch`.
        held: times over the bound that it is held to, in bfloat16 and in float32.
        tensors: shapes of those that have the type of the launch, by their names without ``_hbm``.
        fixed: by the name of a type, the same of those that always have it.
        options: further arguments.
    """

    def arguments(dtype: str) -> dict[str, Any]:
        # Who reads the registry need not load the simulator.
        from nkilib.simulator import spec

        groups = [(dtype, tensors), *(fixed or {}).items()]
        given = {f"{name}_hbm": spec(shape, each) for each, shapes in groups for name, shape in shapes.items()}
        return {**given, **options}

    return ModelledLaunch(label, forward, arguments, dict(zip(("bfloat16", "float32"), held, strict=True)))
