# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensors of a launch of an output layer: the operands of a kernel, the gradients that it returns, and its tiling.

N positions, D features, V classes; X [N, D] is the input, W ([V, D] or [D, V]) the weight; dX, dW and db are the
gradients of X, W and the bias.

A kernel is traced with the operands (:class:`LinearOperands`) and the gradients (:class:`Gradients`) that are requested
(:class:`WantedGradients`). :class:`CastBytes` tells which operands are rounded to another dtype. The tiling
(:class:`LinearTiling`) says how many positions and classes are on chip at a time; :mod:`.block_schedule` divides them
into blocks. The module also has the limits of sizes (``FEATURES_MIN`` to ``CLASSES_MAX``, ``IDS_MAX``), of the logit
scale (:func:`check_logit_scale`) and of memory (``SBUF_BYTES``, ``SCRATCH_BYTES``, ``STAGED_ELEMENTS``, ``STAGES``),
and the names of the layouts of a weight (``WEIGHT_LAYOUTS``: ``CLASSES_FIRST``, ``FEATURES_FIRST``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from nkilib.core.hardware import div_ceil
from nkilib.core.host.options import is_number
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.linear.block_schedule import (
    Block,
)
from nkilib.nki import nl

# Bytes of a partition that kernels may use. nkilib/simulator/hardware has them too, but is not needed on a device.
SBUF_BYTES: Final = {"trn2": 212_984, "trn3": 245_752}
# An operand of another type than the products is transposed into tiles of STAGED_ELEMENTS elements per partition, of
# which there are STAGES, and cast from there.
STAGED_ELEMENTS, STAGES = 1024, 4
# Target ids of a position.
IDS_MAX = 64
# The default number of bytes that one launch may take for logits.
SCRATCH_BYTES = 512 * 2**20

# [classes, features], like the weight of torch.nn.Linear, and its transpose.
CLASSES_FIRST, FEATURES_FIRST = "vd", "dv"
WEIGHT_LAYOUTS = (CLASSES_FIRST, FEATURES_FIRST)
FEATURES_MIN, FEATURES_MAX = 16, 16384
# The largest number that a 32-bit index counts.
POSITIONS_MAX = 2**31 - 1
# Classes of all shards are counted in float32 where they are compared with a target.
CLASSES_MAX = 2**24
# The range of the logit scale, that of the temperature: caps and temperatures that it divides stay within float32.
LOGIT_SCALE_MIN, LOGIT_SCALE_MAX = 1e-6, 1e6


def check_logit_scale(function: str, logit_scale: float) -> None:
    """Check that ``logit_scale``, a factor of the logits, is a number from 1e-6 to 1e6.

    Raises:
        AssertionError: if it is not; the message names function, requirement, value and remedy.
    """
    if not is_number(logit_scale) or not LOGIT_SCALE_MIN <= logit_scale <= LOGIT_SCALE_MAX:
        raise AssertionError(
            f"{function}: logit_scale must be a number from {LOGIT_SCALE_MIN} to {LOGIT_SCALE_MAX}, got {logit_scale}; "
            f"pass 1.0 for none"
        )


class LinearTiling(NamedTuple):
    """The tiling of a launch; pass it as ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        position_block: the number of positions whose operands are on chip at a time, whole tiles of 128.
        class_block: the number of classes that a core works on at a time, whole tiles of 128; at most 512 in the
            forward.
    """

    position_block: int
    class_block: int


def _staging_bytes(itemsize: int) -> int:
    return STAGES * STAGED_ELEMENTS * itemsize


class CastBytes(NamedTuple):
    """The bytes of an element in HBM of X and of W, for operands that are rounded while they are loaded.

    DMA casts an operand that it copies. It cannot cast an operand that it transposes: that takes staging memory in
    SBUF.

    Attributes:
        input, weight: the bytes of an element of X and of W; 0 if the operand has the dtype of the products.
    """

    input: int = 0
    weight: int = 0

    def forward_staging(self, has_classes_first: bool) -> int:
        """Return the bytes per partition of the staging memory of a forward, for X, and for W if it is [V, D]."""
        return _staging_bytes(max(self.input, self.weight if has_classes_first else 0))

    def backward_staging(self, has_classes_first: bool, keeps_logits: bool = False) -> int:
        """Return the bytes per partition of the staging memory of a backward, for W alone: X is already rounded.

        The backward transposes W, unless W is [V, D] and the logits are kept.
        """
        return 0 if has_classes_first and keeps_logits else _staging_bytes(self.weight)


@dataclass(frozen=True)
class LinearOperands:
    """The operands from which logits are computed.

    Attributes:
        function: the name of the function in error messages.
        input_hbm: X, [N, D].
        weight_hbm: W, [V, D], or [D, V] by ``weight_layout``.
        bias_hbm: the bias, [V], or None.
        class_weight_hbm: the class weights, [V], or None.
        weight_layout: ``"vd"`` or ``"dv"``.
        compute_dtype: the dtype to which X and W are rounded for the products; None for the dtype of X.
    """

    function: str
    input_hbm: nl.NkiTensor
    weight_hbm: nl.NkiTensor
    bias_hbm: nl.NkiTensor | None
    class_weight_hbm: nl.NkiTensor | None
    weight_layout: str
    compute_dtype: nl.DType | None = None

    def of_positions(self, block: Block) -> LinearOperands:
        """Return the same operands with only the rows of X that are in ``block``."""
        return replace(self, input_hbm=block.of(self.input_hbm))

    @property
    def num_positions(self) -> int:
        """The number of positions N."""
        return self.input_hbm.shape[0]

    @property
    def num_features(self) -> int:
        """The number of features D."""
        return self.input_hbm.shape[1]

    @property
    def has_classes_first(self) -> bool:
        """Whether W is [V, D]."""
        return self.weight_layout == CLASSES_FIRST

    @property
    def vocab_size(self) -> int:
        """The number of classes V of W."""
        return self.weight_hbm.shape[0 if self.has_classes_first else 1]

    @property
    def dtype(self) -> nl.DType:
        """The dtype of the products; X, W and the gradient of the logits are rounded to it."""
        return self.input_hbm.dtype if self.compute_dtype is None else self.compute_dtype

    @property
    def rounds_more_than_bias(self) -> bool:
        """Whether the products have a 16-bit dtype and the bias has another dtype."""
        bias_hbm = self.bias_hbm
        return bias_hbm is not None and self.dtype != nl.float32 and bias_hbm.dtype != self.dtype

    @property
    def casts(self) -> CastBytes:
        """The bytes of an element of X and of W in HBM, each 0 if the operand has the dtype of the products."""
        itemsizes = [
            dtype_bytes(tensor_hbm.dtype) if tensor_hbm.dtype != self.dtype else 0
            for tensor_hbm in (self.input_hbm, self.weight_hbm)
        ]
        return CastBytes(*itemsizes)

    @property
    def position_tiles(self) -> int:
        """The number of tiles of 128 positions."""
        return div_ceil(self.num_positions, nl.tile_size.pmax)


@dataclass(frozen=True)
class WantedGradients:
    """The gradients that a kernel is to return; the others cost nothing.

    Attributes:
        input, weight, bias: whether dX, dW and db are returned.
        input_float32: whether dX is float32, and not rounded to the dtype of X.
    """

    input: bool = True
    weight: bool = True
    bias: bool = False
    input_float32: bool = False

    @classmethod
    def of(
        cls,
        input_wanted: bool,
        weight_wanted: bool,
        bias_wanted: bool | None,
        bias_hbm: nl.NkiTensor | None,
        input_float32: bool = False,
    ) -> WantedGradients:
        """Return the gradients that a kernel's arguments request; ``bias_wanted`` None means db if there is a bias."""
        of_bias = bias_hbm is not None if bias_wanted is None else bias_wanted
        return cls(input_wanted, weight_wanted, of_bias, input_float32)


@dataclass(frozen=True)
class Gradients:
    """The gradient tensors in HBM; None for gradients that are not wanted.

    Attributes:
        input_hbm: dX, [N, D], in the dtype of X, or float32.
        weight_hbm: dW in the layout of W, in its dtype or in float32.
        bias_hbm: db, [V], float32.
        weight_sum_hbm: a float32 sum in HBM, to which the unrounded dW is added; it may be ``weight_hbm`` itself. None
            if dW is not added to a sum.
    """

    input_hbm: nl.NkiTensor | None
    weight_hbm: nl.NkiTensor | None
    bias_hbm: nl.NkiTensor | None
    weight_sum_hbm: nl.NkiTensor | None = None

    @property
    def adds_to_weight(self) -> bool:
        """Whether dW is added to a sum."""
        return self.weight_sum_hbm is not None

    def sums_bias_of(self, operands: LinearOperands) -> bool:
        """Return whether db is the sum of the unrounded gradients of the logits."""
        return self.bias_hbm is not None and operands.rounds_more_than_bias

    @classmethod
    def of_launch(
        cls, operands: LinearOperands, wanted: WantedGradients, weight_sum_hbm: nl.NkiTensor | None = None
    ) -> Gradients:
        """Allocate the wanted gradient tensors; if the caller passes a sum for dW, the sum is used as dW."""

        def like(name: str, tensor_hbm: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
            return nl.ndarray(tuple(tensor_hbm.shape), dtype=dtype, buffer=nl.shared_hbm, name=name)

        weight_hbm = weight_sum_hbm
        if wanted.weight and weight_sum_hbm is None:
            weight_hbm = like("grad_weight_hbm", operands.weight_hbm, operands.weight_hbm.dtype)
        input_dtype = nl.float32 if wanted.input_float32 else operands.input_hbm.dtype
        bias_hbm = None
        if wanted.bias and operands.bias_hbm is not None:
            bias_hbm = like("grad_bias_hbm", operands.bias_hbm, nl.float32)
        return cls(
            input_hbm=like("grad_input_hbm", operands.input_hbm, input_dtype) if wanted.input else None,
            weight_hbm=weight_hbm,
            bias_hbm=bias_hbm,
            weight_sum_hbm=weight_sum_hbm,
        )

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return dX, dW and db, without those that are not wanted, as a kernel returns them."""
        tensors = (self.input_hbm, self.weight_hbm, self.bias_hbm)
        return tuple(tensor_hbm for tensor_hbm in tensors if tensor_hbm is not None)
