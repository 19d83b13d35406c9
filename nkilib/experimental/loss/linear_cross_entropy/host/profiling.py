"""What a launch of the kernels is modelled to take, from shapes alone: for host code, and in the simulator only."""

from __future__ import annotations

from typing import Any, Final

from nkilib.experimental.loss.linear_cross_entropy import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import (
    BACKWARD,
    FORWARD,
    FORWARD_BACKWARD,
    LinearTiling,
)
from nkilib.simulator import ModelParameters, Profile, profile, spec, using
from nkilib.simulator.terms.dtypes import as_dtype

KERNELS: Final = {
    FORWARD: linear_cross_entropy_forward,
    BACKWARD: linear_cross_entropy_backward,
    FORWARD_BACKWARD: linear_cross_entropy_forward_backward,
}
_CORES: Final = 2


def profile_linear_launch(
    num_positions: int,
    num_features: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    tiling: LinearTiling | None = None,
    *,
    target: str = "trn2",
    cores: int = _CORES,
    weight_layout: str = "vd",
    parameters: ModelParameters | None = None,
    **options: Any,
) -> Profile:
    """The profile of a kernel on X [N, D] and W [V, D] or [D, V]; modelled, not measured.

    Example::

        print(profile_linear_launch(4096, 4096, 128256, "bfloat16", "backward"))

    Args:
        num_positions, num_features, vocab_size: N, D, V.
        dtype: of X and W, an NKI type or the name of one.
        direction: ``"forward"``, ``"backward"`` or ``"forward_backward"``.
        tiling: how the launch is cut up; None: as ``choose_linear_tiling`` says.
        target: the generation.
        cores: of the launch.
        weight_layout: of W.
        parameters: what the model assumes where nothing is published.
        options: further keyword arguments of the kernel, shapes of arrays among them.

    Raises:
        ValueError: for another direction.
        AssertionError: if the kernel does not take the sizes.
        NkiValidationError: if the hardware does not.
    """
    if direction not in KERNELS:
        raise ValueError(f"profile_linear_launch: direction must be one of {', '.join(KERNELS)}, got {direction!r}")
    operand = as_dtype(dtype)
    shape = (vocab_size, num_features) if weight_layout == "vd" else (num_features, vocab_size)
    of_positions = spec((num_positions,), "float32")
    further: dict[str, Any] = {} if tiling is None else tiling._asdict()
    if direction == BACKWARD:
        further |= {"lse_hbm": of_positions, "grad_loss_hbm": of_positions}
    elif direction == FORWARD_BACKWARD and "grad_scale_hbm" not in options:
        further["grad_scale"] = 1.0 / num_positions
    with using(target=target):
        return profile(
            KERNELS[direction][cores],
            spec((num_positions, num_features), operand),
            spec(shape, operand),
            spec((num_positions,), "int32"),
            parameters=parameters,
            weight_layout=weight_layout,
            **{**further, **options},
        )
