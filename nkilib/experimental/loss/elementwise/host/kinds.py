"""The rows of the registry of losses for the losses of elements."""

from __future__ import annotations

from typing import Any, Final

from nkilib.experimental.loss import elementwise
from nkilib.loss_kind import LossKind, ModelledLaunch

_SHAPE: Final = (4096, 32128)
_TESTS: Final = ("tests/experimental/loss/elementwise", "tests/torch/functions/elementwise")


def modelled(
    forward: tuple[float, float],
    backward: tuple[float, float],
    tensors: tuple[str, ...] = ("input", "target"),
    absent: tuple[str, ...] = (),
) -> tuple[ModelledLaunch, ...]:
    """A forward and a backward with a mean, held to their times over the bound in bfloat16 and in float32."""

    def arguments(dtype: str) -> dict[str, Any]:
        from nkilib.simulator import spec

        given = {f"{name}_hbm": spec(_SHAPE, dtype) for name in tensors}
        return {**given, **{f"{name}_hbm": None for name in absent}}

    def with_upstream(dtype: str) -> dict[str, Any]:
        from nkilib.simulator import spec

        return {**arguments(dtype), "grad_loss_hbm": spec((1,), "float32")}

    return (
        ModelledLaunch("forward, mean", True, arguments, _held(forward)),
        ModelledLaunch("backward, mean", False, with_upstream, _held(backward)),
    )


def _held(bounds: tuple[float, float]) -> dict[str, float]:
    return dict(zip(("bfloat16", "float32"), bounds, strict=True))


KINDS: Final = (
    LossKind(
        name="mse_loss",
        module="MSELoss",
        forward=elementwise.mse_loss_forward,
        backward=elementwise.mse_loss_backward,
        formula="(x - t)^2",
        derivative="2 (x - t)",
        differentiated=("input", "target", "weight"),
        options=("weight",),
        tests=_TESTS,
        launches=modelled((1.05, 1.05), (1.05, 1.05), absent=("weight",)),
    ),
    LossKind(
        name="kl_div",
        module="KLDivLoss",
        forward=elementwise.kl_div_forward,
        backward=elementwise.kl_div_backward,
        formula="t (log t - x); exp(t) (t - x) with log_target",
        derivative="-t; -exp(t)",
        differentiated=("input", "target"),
        options=("log_target",),
        tests=("tests/experimental/loss/elementwise", "tests/torch/functions/kl_div"),
        edges="t = 0 gives 0, or NaN where x is infinite",
        differences="no warning of a mean; log t is log(t + 2^-64)",
        launches=modelled((1.8, 1.8), (1.05, 1.05)),
    ),
)
