"""Losses of elements, on one skeleton, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.elementwise import kernels
from nkilib.experimental.loss.elementwise.host import guarantees
from nkilib.experimental.loss.elementwise.host.work import backward_work, forward_work, kl_div_gradient_functions
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, WEIGHT
from nkilib.experimental.loss.elementwise.kinds.kl_div import needed_tensors
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = ["kl_div_backward", "kl_div_forward", "mse_loss_backward", "mse_loss_forward"]

kl_div_forward = nki.jit(
    states_guarantee(guarantees.KL_DIV_FORWARD)(
        states_work(forward_work(INPUT, TARGET, functions=1))(kernels.kl_div_forward)
    )
)
kl_div_backward = nki.jit(
    states_guarantee(guarantees.KL_DIV_BACKWARD)(
        states_work(
            backward_work(
                INPUT,
                TARGET,
                needed=needed_tensors,
                functions=kl_div_gradient_functions,
            )
        )(kernels.kl_div_backward)
    )
)
mse_loss_forward = nki.jit(
    states_guarantee(guarantees.MSE_LOSS_FORWARD)(
        states_work(forward_work(INPUT, TARGET, WEIGHT, functions=1))(kernels.mse_loss_forward)
    )
)
mse_loss_backward = nki.jit(
    states_guarantee(guarantees.MSE_LOSS_BACKWARD)(
        states_work(backward_work(INPUT, TARGET, WEIGHT))(kernels.mse_loss_backward)
    )
)
