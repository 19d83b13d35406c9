"""Weights of the classes in every partition."""

from __future__ import annotations

from nkilib.nki import nisa, nl


def loaded_weights(class_weight_hbm: nl.NkiTensor | None) -> nl.NkiTensor | None:
    """float32 [128, C]; None for 1."""
    if class_weight_hbm is None:
        return None
    classes, partitions = class_weight_hbm.shape[0], nl.tile_size.pmax
    weights_sbuf = nl.ndarray((partitions, classes), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights_sbuf, src=class_weight_hbm.reshape((1, classes)).broadcast(0, partitions))
    return weights_sbuf
