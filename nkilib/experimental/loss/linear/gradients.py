"""The gradients that a kernel returns, in HBM."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.launch import LinearOperands, WantedGradients
from nkilib.nki import nl


@dataclass(frozen=True)
class Gradients:
    """Tensors in HBM, in the order in which a kernel returns them; None for what is not wanted.

    Attributes:
        input_hbm: dX, [N, D], in the dtype of X, or float32.
        weight_hbm: dW in the layout of W, in its dtype or in float32.
        bias_hbm: db, [V], float32.
        weight_sum_hbm: float32, to which dW is added before it is rounded; it may be ``weight_hbm``. None for 0.
    """

    input_hbm: nl.NkiTensor | None
    weight_hbm: nl.NkiTensor | None
    bias_hbm: nl.NkiTensor | None
    weight_sum_hbm: nl.NkiTensor | None = None

    @property
    def adds_to_weight(self) -> bool:
        """dW is added to something."""
        return self.weight_sum_hbm is not None

    @classmethod
    def of_launch(
        cls, launch: LinearOperands, wanted: WantedGradients, weight_sum_hbm: nl.NkiTensor | None = None
    ) -> Gradients:
        """New tensors, but for a sum that the caller has."""

        def like(name: str, tensor_hbm: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
            return nl.ndarray(tuple(tensor_hbm.shape), dtype=dtype, buffer=nl.shared_hbm, name=name)

        weight_hbm = weight_sum_hbm
        if wanted.weight and weight_sum_hbm is None:
            weight_hbm = like("grad_weight_hbm", launch.weight_hbm, launch.weight_hbm.dtype)
        input_dtype = nl.float32 if wanted.input_float32 else launch.input_hbm.dtype
        bias_hbm = None
        if wanted.bias and launch.bias_hbm is not None:
            bias_hbm = like("grad_bias_hbm", launch.bias_hbm, nl.float32)
        return cls(
            input_hbm=like("grad_input_hbm", launch.input_hbm, input_dtype) if wanted.input else None,
            weight_hbm=weight_hbm,
            bias_hbm=bias_hbm,
            weight_sum_hbm=weight_sum_hbm,
        )

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """What a kernel returns."""
        every = (self.input_hbm, self.weight_hbm, self.bias_hbm)
        return tuple(tensor_hbm for tensor_hbm in every if tensor_hbm is not None)
