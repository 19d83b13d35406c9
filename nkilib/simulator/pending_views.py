"""Documented views of ``NkiTensor`` that are not implemented yet: each raises NotImplementedError with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from .objects import NKIObject

if TYPE_CHECKING:
    from .tensor import NkiTensor


class PendingViews(NKIObject):
    """Base of ``NkiTensor`` with the documented signatures of what it lacks."""

    __slots__ = ()

    def expand_dim(self, dim: int) -> NoReturn:
        raise NotImplementedError("NkiTensor.expand_dim is not implemented in the simulator yet; use reshape")

    def squeeze_dim(self, dim: int) -> NoReturn:
        raise NotImplementedError("NkiTensor.squeeze_dim is not implemented in the simulator yet; use reshape")

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NoReturn:
        raise NotImplementedError("NkiTensor.reshape_dim is not implemented in the simulator yet; use reshape")

    def flatten_dims(self, start_dim: int, end_dim: int) -> NoReturn:
        raise NotImplementedError("NkiTensor.flatten_dims is not implemented in the simulator yet; use reshape")

    def rearrange(
        self, src_pattern: tuple[Any, ...], dst_pattern: tuple[Any, ...], fixed_sizes: dict[str, int] | None = None
    ) -> NoReturn:
        raise NotImplementedError("NkiTensor.rearrange is not implemented in the simulator yet; use reshape, permute")

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NoReturn:
        raise NotImplementedError("NkiTensor.indirect (trn3) is not implemented in the simulator yet")
