# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``install``: makes TRL's trainers score tokens and compare models on the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nkilib.torch.dispatch.native import NATIVE_DEVICE
from nkilib.torch.replacement import checked_devices, warn_without_effect
from nkilib.torch.trl.contract import INSTALL, find_places
from nkilib.torch.trl.routers import DivergenceRouter, Installation, Router, ScoreRouter, router_of


class Undo:
    """Undoes an installation when it is called, or at the end of a ``with`` block.

    A second call does nothing. Other installations stay: TRL's functions are restored when the last one is undone. If
    something else has replaced them in the meantime, it stays, and the functions that it calls are TRL's own code
    again. The backward of results computed before still works.

    Attributes:
        devices: the device types whose tensors the kernels take.
    """

    def __init__(self, routers: Sequence[Router], installation: Installation) -> None:
        self._routers = routers
        self._installation = installation
        self.devices = installation.devices

    def __call__(self) -> None:
        for router in self._routers:
            router.remove(self._installation)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def install(devices: Iterable[str] = (NATIVE_DEVICE,)) -> Undo:
    """Make the trainers of TRL 1.16 compute token scores and divergences on the kernels, from hidden states.

    SFT, DPO, KTO, GRPO and RLOO get log-probability, entropy and metrics of every token from one function of hidden
    states, ``trl.kernels.ChunkedLogProbFunction``. Distillation gets the divergence of the student from the teacher
    from another function, ``trl.kernels.chunked_divergence.ChunkedDivergenceFunction``. The trainers look both up at
    each call. Off CUDA devices these functions compute logits in tiles; the first rounds them to the dtype of the
    products, and the second multiplies in float32. After the installation the same calls go to
    :func:`nkilib.torch.linear_token_scores` and :func:`nkilib.torch.linear_distillation_loss`: no logits in memory, one
    launch in the forward and one in the backward, float32 results of unrounded logits, and gradients accumulated in
    float32 with the dtypes of their tensors. Install before or after a trainer is built, also several times: each
    installation adds its devices.

    TRL's own code still computes calls on another device, in float64, with fewer than 16 or more than 16,384 features,
    with a logit scale outside of 1e-6 to 1e6, or with an unknown output; and divergences with a ``beta`` outside of 0
    to 1, a temperature outside of 1e-3 to 1e6, models with different vocabularies, or features of both models that do
    not fit on chip together (16,384 in float32, 32,768 in 16 bits).

    Args:
        devices: the device types whose tensors the kernels take: ``"neuron"``, the native device of torch-neuronx,
            ``"xla"``, the older one, and ``"cpu"``, where the kernels are simulated, for tests. If the Neuron SDK is
            not installed and ``"cpu"`` is not among them, a warning says that no kernel will run.

    Returns:
        An object that undoes the replacement: call it, or use it in a ``with`` statement.

    Raises:
        ImportError: TRL is not installed, is another release, or its functions take other arguments; the message names
            the differences.
        TypeError: ``devices`` is not an iterable of strings, or is itself a string.
        ValueError: no device, or a device on which no kernel runs.
        RuntimeError: something else has already replaced one of TRL's functions.
    """
    installation = Installation(checked_devices(INSTALL, devices))
    places = find_places()
    warn_without_effect(INSTALL, installation.devices)
    routers = (router_of(places.scores, ScoreRouter), router_of(places.divergences, DivergenceRouter))
    for router in routers:
        router.add(installation)
    return Undo(routers, installation)
