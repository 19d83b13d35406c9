"""Losses of rows, on one skeleton, to be launched on their own."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.rowwise import cosine_kernels, multilabel_soft_margin_kernels, triplet_kernels
from nkilib.experimental.loss.rowwise.host import guarantees, work

__all__ = [
    "cosine_embedding_loss_backward",
    "cosine_embedding_loss_forward",
    "multilabel_soft_margin_loss_backward",
    "multilabel_soft_margin_loss_forward",
    "triplet_margin_loss_backward",
    "triplet_margin_loss_forward",
]

triplet_margin_loss_forward = launchable(
    triplet_kernels.triplet_margin_loss_forward, guarantees.TRIPLET_FORWARD, work.triplet_margin_loss_forward_work
)
triplet_margin_loss_backward = launchable(
    triplet_kernels.triplet_margin_loss_backward, guarantees.TRIPLET_BACKWARD, work.triplet_margin_loss_backward_work
)
cosine_embedding_loss_forward = launchable(
    cosine_kernels.cosine_embedding_loss_forward, guarantees.COSINE_FORWARD, work.cosine_embedding_loss_forward_work
)
cosine_embedding_loss_backward = launchable(
    cosine_kernels.cosine_embedding_loss_backward, guarantees.COSINE_BACKWARD, work.cosine_embedding_loss_backward_work
)
multilabel_soft_margin_loss_forward = launchable(
    multilabel_soft_margin_kernels.multilabel_soft_margin_loss_forward,
    guarantees.MULTILABEL_SOFT_FORWARD,
    work.multilabel_soft_margin_loss_forward_work,
)
multilabel_soft_margin_loss_backward = launchable(
    multilabel_soft_margin_kernels.multilabel_soft_margin_loss_backward,
    guarantees.MULTILABEL_SOFT_BACKWARD,
    work.multilabel_soft_margin_loss_backward_work,
)
