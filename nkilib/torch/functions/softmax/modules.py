"""The modules of softmax and log_softmax: PyTorch's, with another forward."""

from __future__ import annotations

from torch import Tensor, nn

from nkilib.torch.functions.softmax.functional import log_softmax, softmax

_OF_THE_CALLER = 6  # a warning names who calls the module, beyond three frames of nn.Module


class Softmax(nn.Softmax):
    """``torch.nn.Softmax`` on the kernels: :func:`nkilib.torch.softmax` of its input along ``dim``.

    Args:
        dim: as for :func:`nkilib.torch.softmax`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The softmax, of the shape and type of ``input``."""
        return softmax(input, self.dim, _stacklevel=_OF_THE_CALLER)


class LogSoftmax(nn.LogSoftmax):
    """``torch.nn.LogSoftmax`` on the kernels: :func:`nkilib.torch.log_softmax` of its input along ``dim``.

    Args:
        dim: as for :func:`nkilib.torch.softmax`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The log-softmax, of the shape and type of ``input``."""
        return log_softmax(input, self.dim, _stacklevel=_OF_THE_CALLER)


class Softmax2d(nn.Softmax2d):
    """``torch.nn.Softmax2d`` on the kernels: the softmax over the channels of [N, C, H, W] or [C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        """The softmax, of the shape and type of ``input``.

        Raises:
            ValueError: another number of dimensions.
        """
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: input must be 3-D or 4-D, got shape {tuple(input.shape)}; reshape it")
        return softmax(input, -3)
