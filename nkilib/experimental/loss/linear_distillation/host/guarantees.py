"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from typing import Any

from nkilib.core.host.sizes import dtype_name
from nkilib.experimental.loss.linear.host.memory import copied_bytes
from nkilib.guarantee import Guarantee


def forward_workspace_bytes(
    student_bias_hbm: Any = None, teacher_bias_hbm: Any = None, compute_dtype: Any = None, cores: int = 1, **_: Any
) -> int:
    """Biases that are rounded."""
    return _copies((student_bias_hbm, teacher_bias_hbm), compute_dtype, cores)


def _copies(biases_hbm: tuple[Any, ...], compute_dtype: Any, cores: int, input_hbm: Any = None) -> int:
    """What is rounded beforehand: biases of both models, and an X of which gradients are wanted."""
    if compute_dtype is None:
        return 0
    name = dtype_name(compute_dtype)
    rounded = [each.shape[0] for each in biases_hbm if each is not None and dtype_name(each.dtype) != name]
    is_rounded = input_hbm is not None and dtype_name(input_hbm.dtype) != name
    elements = input_hbm.shape[0] * input_hbm.shape[1] if is_rounded else 0
    itemsize = 4 if name == "float32" else 2
    return copied_bytes(itemsize, input_elements=elements, bias_classes=sum(rounded), cores=cores)


_MATH = "float32; products of each model's type, or of compute_dtype"
_CORES = "each core has half of the classes, so that sums over the classes are cut elsewhere on two cores"
_OF_BIASES = "s cores V for each bias of another type than a compute_dtype of s bytes"

LINEAR_DISTILLATION_FORWARD = Guarantee(
    math=_MATH,
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace=_OF_BIASES,
    workspace_bytes=forward_workspace_bytes,
    in_place=None,
    error=(
        "divergence: u (a_P + a_Q) (2 + E|log(P/Q)|), u = 2^-23, a = 8 + 2 max|z|, and sum |dD/dz| dz, where dz is "
        "(ceil(D / 128) + 128) u / 2 sum |x w| over T; entropy likewise"
    ),
    notes=f"no logit is rounded to 16 bits; {_CORES}",
)
