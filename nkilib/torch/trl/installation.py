# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``install``: TRL's trainers score tokens and compare models on the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nkilib.torch.dispatch.native import NATIVE_DEVICE
from nkilib.torch.replacement import checked_devices
from nkilib.torch.trl.contract import INSTALL, find_places
from nkilib.torch.trl.routers import DivergenceRouter, Installation, Router, ScoreRouter, router_of


class Undo:
    """Takes an installation back when it is called, or when a ``with`` block of it ends.

    A second call does nothing. Other installations stay: TRL's functions are back in their places when the last one is
    undone. If something else has been put there by then, that stays, and what it calls is TRL's own code again. A
    backward of what was computed before still works.

    Attributes:
        devices: whose tensors the kernels take.
    """

    def __init__(self, routers: Sequence[Router], installation: Installation) -> None:
        self._routers = routers
        self._installation = installation
        self.devices = installation.devices

    def __call__(self) -> None:
        for each in self._routers:
            each.remove(self._installation)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def install(devices: Iterable[str] = (NATIVE_DEVICE,)) -> Undo:
    """Let the trainers of TRL 1.16 compute what needs logits on the kernels, from hidden states.

    SFT, DPO, KTO, GRPO and RLOO take log-probability, entropy and metrics of every token from one function of hidden
    states, ``trl.kernels.ChunkedLogProbFunction``. Distillation takes the divergence of the student from the teacher
    from another, ``trl.kernels.chunked_divergence.ChunkedDivergenceFunction``. They look both up at each call. Off CUDA
    these make logits in tiles; the first rounds them to the type of the products, and the second multiplies in float32.
    After this the same calls go to :func:`nkilib.torch.linear_token_scores` and
    :func:`nkilib.torch.linear_distillation_loss`: no logits in memory, one launch forward and one backward, float32
    results of unrounded logits, and gradients from float32 sums in the types of their tensors. It may be called before
    or after a trainer is built, and again: an installation adds its devices to those of others.

    TRL's own code computes what is on another device, in float64, of fewer than 16 features or more than 16,384, with a
    logit scale beyond 1e-6 to 1e6, or has an output that is not known here; and divergences with a ``beta`` beyond 0
    to 1, a temperature beyond 1e-3 to 1e6, models of unlike vocabularies, or features of both that do not fit on chip
    together (16,384 in float32, 32,768 in 16 bits).

    Args:
        devices: types of devices whose tensors the kernels take: ``"neuron"``, the native device of torch-neuronx,
            ``"xla"``, the older one, and ``"cpu"``, where the kernels are simulated, for tests.

    Returns:
        What undoes it: call it, or use it in a ``with`` statement.

    Raises:
        ImportError: TRL is not there, or is another release, or its functions take other arguments; the message says
            what differs.
        TypeError: ``devices`` is no iterable of strings, or a string itself.
        ValueError: no device, or one on which no kernel runs.
        RuntimeError: something else stands in the place of one of TRL's functions.
    """
    installation = Installation(checked_devices(INSTALL, devices))
    places = find_places()
    routers = (router_of(places.scores, ScoreRouter), router_of(places.divergences, DivergenceRouter))
    for each in routers:
        each.add(installation)
    return Undo(routers, installation)
