# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The placeholder for logits that were never computed."""

from __future__ import annotations

from typing import Any, Final, NoReturn

_MESSAGE: Final = (
    "the loss was computed without logits, by nkilib.torch.transformers.fuse_linear_loss; for logits beside the loss "
    "pass skip_logits=False to the model, call model.eval(), or undo the fusion by what fuse_linear_loss returned"
)


class NoLogits:
    """A placeholder that raises on every use as a tensor, and explains how to get logits.

    It keeps the place of the logits in outputs, so that the other items of a tuple keep their position. It is not None,
    because errors about None would not say what is missing. Programs that walk through outputs, such as ``accelerate``
    and DistributedDataParallel, treat it as a value that is not a tensor.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("__") else f"{name}: {_MESSAGE}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise RuntimeError(_MESSAGE)

    def _refuse(self, *operands: Any) -> NoReturn:
        raise RuntimeError(_MESSAGE)

    __getitem__ = __iter__ = __len__ = __neg__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = _refuse

    def __repr__(self) -> str:
        return f"<no logits: {_MESSAGE}>"

    def __reduce__(self) -> str:
        return "NO_LOGITS"  # copies and pickles are this one


NO_LOGITS: Final = NoLogits()
