"""What the kernels of losses of rows have in common: reductions, results, gradients."""

from __future__ import annotations

from nkilib.experimental.loss.rowwise.forward import RowOutputs
from nkilib.nki import nl


def factor_of(reduction: str, rows: int) -> float | None:
    """What the sum of the losses of rows is multiplied by; None where there is none."""
    return None if reduction == "none" else 1.0 / rows if reduction == "mean" else 1.0


def new_outputs(
    rows: int, dtype: nl.DType, factor: float | None, coefficients: int, coefficients_wanted: bool
) -> RowOutputs:
    """Results of a forward, in HBM.

    Args:
        rows: N.
        dtype: of losses that are not summed up.
        factor: of the sum.
        coefficients: numbers a row, K.
        coefficients_wanted: they are returned.
    """
    shape, of_loss = ((rows,), dtype) if factor is None else ((1,), nl.float32)
    loss_hbm = nl.ndarray(shape, dtype=of_loss, buffer=nl.shared_hbm, name="loss_hbm")
    coefficients_hbm = None
    if coefficients_wanted:
        coefficients_hbm = nl.ndarray(
            (coefficients, rows), dtype=nl.float32, buffer=nl.shared_hbm, name="coefficients_hbm"
        )
    return RowOutputs(loss_hbm, factor, coefficients_hbm)


def returned(outputs: RowOutputs) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """What a forward returns."""
    if outputs.coefficients_hbm is None:
        return outputs.loss_hbm
    return outputs.loss_hbm, outputs.coefficients_hbm


def new_gradients(wanted: dict[str, nl.NkiTensor | None], inplace: bool) -> dict[int, nl.NkiTensor]:
    """Where gradients go, by the number of the tensor.

    Args:
        wanted: by name, in the order of the numbers, the tensors; None for those whose gradient is not asked for.
        inplace: the gradient of the first one is written over it.
    """
    gradients = {}
    for number, (name, like_hbm) in enumerate(wanted.items()):
        if like_hbm is None:
            continue
        gradients[number] = (
            like_hbm
            if inplace and number == 0
            else nl.ndarray(tuple(like_hbm.shape), dtype=like_hbm.dtype, buffer=nl.shared_hbm, name=f"grad_{name}_hbm")
        )
    return gradients
