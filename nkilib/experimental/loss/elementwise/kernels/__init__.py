"""The kernels of the losses of elements, a file each: plain functions, to be launched or called from NKI code."""

from nkilib.experimental.loss.elementwise.kernels.kl_div import kl_div_backward, kl_div_forward
from nkilib.experimental.loss.elementwise.kernels.mse import mse_loss_backward, mse_loss_forward

__all__ = ["kl_div_backward", "kl_div_forward", "mse_loss_backward", "mse_loss_forward"]
