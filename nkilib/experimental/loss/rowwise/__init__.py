"""Losses of rows, on one skeleton, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.rowwise import cosine_kernels, multilabel_soft_margin_kernels, triplet_kernels
from nkilib.experimental.loss.rowwise.host import guarantees, work
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = [
    "cosine_embedding_loss_backward",
    "cosine_embedding_loss_forward",
    "multilabel_soft_margin_loss_backward",
    "multilabel_soft_margin_loss_forward",
    "triplet_margin_loss_backward",
    "triplet_margin_loss_forward",
]

triplet_margin_loss_forward = nki.jit(
    states_guarantee(guarantees.TRIPLET_FORWARD)(
        states_work(work.triplet_margin_loss_forward_work)(triplet_kernels.triplet_margin_loss_forward)
    )
)
triplet_margin_loss_backward = nki.jit(
    states_guarantee(guarantees.TRIPLET_BACKWARD)(
        states_work(work.triplet_margin_loss_backward_work)(triplet_kernels.triplet_margin_loss_backward)
    )
)
cosine_embedding_loss_forward = nki.jit(
    states_guarantee(guarantees.COSINE_FORWARD)(
        states_work(work.cosine_embedding_loss_forward_work)(cosine_kernels.cosine_embedding_loss_forward)
    )
)
cosine_embedding_loss_backward = nki.jit(
    states_guarantee(guarantees.COSINE_BACKWARD)(
        states_work(work.cosine_embedding_loss_backward_work)(cosine_kernels.cosine_embedding_loss_backward)
    )
)
multilabel_soft_margin_loss_forward = nki.jit(
    states_guarantee(guarantees.MULTILABEL_SOFT_FORWARD)(
        states_work(work.multilabel_soft_margin_loss_forward_work)(
            multilabel_soft_margin_kernels.multilabel_soft_margin_loss_forward
        )
    )
)
multilabel_soft_margin_loss_backward = nki.jit(
    states_guarantee(guarantees.MULTILABEL_SOFT_BACKWARD)(
        states_work(work.multilabel_soft_margin_loss_backward_work)(
            multilabel_soft_margin_kernels.multilabel_soft_margin_loss_backward
        )
    )
)
