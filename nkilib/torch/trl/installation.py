"""``install``: TRL's trainers score tokens on the kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from nkilib.torch.dispatch.native import NATIVE_DEVICE
from nkilib.torch.replacement import checked_devices
from nkilib.torch.trl.contract import ATTRIBUTE, INSTALL, OUTPUTS, Place, find_place
from nkilib.torch.trl.scores import Recipe, TokenResults, token_results
from nkilib.torch.trl.zero3 import gathered_results, is_sharded


@dataclass
class _Router:
    """Stands in the place of TRL's function, which is a class that has ``apply`` called.

    Attributes:
        place: where it stands.
        installed: the devices of each installation that has not been undone.
    """

    place: Place
    installed: list[Undo] = field(default_factory=list)

    def apply(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        final_logit_softcapping: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = OUTPUTS,
    ) -> TokenResults:
        """TRL's results, from the kernels where these are installed for the device and take the operands."""
        recipe = Recipe(temperature, final_logit_softcapping, logit_scale, outputs)
        is_for_device = any(hidden.device.type in each.devices for each in self.installed)
        if not is_for_device or not recipe.is_taken(hidden, weight, bias):
            options = (temperature, chunk_size, final_logit_softcapping, logit_scale, outputs)
            return self.place.own.apply(hidden, weight, bias, targets, *options)
        if is_sharded(weight, bias):
            return gathered_results(hidden, weight, bias, targets, recipe, self.place)
        return token_results(hidden, weight, bias, targets, recipe)

    def add(self, undo: Undo) -> None:
        """Let trainers call this."""
        self.installed.append(undo)
        self.place.put(self)

    def remove(self, undo: Undo) -> None:
        """Take an installation back, and let trainers call TRL's function if it was the last."""
        if undo in self.installed:
            self.installed.remove(undo)
        if not self.installed and self.place.current is self:
            self.place.put(self.place.own)


class Undo:
    """Takes an installation back when it is called, or when a ``with`` block of it ends.

    A second call does nothing. Other installations stay: TRL's function is back in its place when the last one is
    undone. If something else has been put there by then, that stays, and what it calls is TRL's own code again. A
    backward of what was computed before still works.

    Attributes:
        devices: whose tensors the kernels take.
    """

    def __init__(self, router: _Router, devices: frozenset[str]) -> None:
        self._router = router
        self.devices = devices

    def __call__(self) -> None:
        self._router.remove(self)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def install(devices: Iterable[str] = (NATIVE_DEVICE,)) -> Undo:
    """Let the trainers of TRL 1.16 score tokens on the kernels, by :func:`nkilib.torch.linear_token_scores`.

    SFT, DPO, KTO, GRPO and RLOO take log-probability, entropy and metrics of every token from one function of hidden
    states, ``trl.kernels.ChunkedLogProbFunction``, which they look up at each call. Off CUDA it makes logits in tiles,
    rounded to the type of the products. After this the same calls have no logits in memory: one launch forward and one
    backward, float32 results of unrounded logits, and gradients from float32 sums in the types of their tensors. It
    may be called before or after a trainer is built, and again: an installation adds its devices to those of others.

    TRL's own code computes what is on another device, in float64, of fewer than 16 features or more than 16,384, with a
    ``logit_scale`` that is not positive, or has an output that is not known here.

    Args:
        devices: types of devices whose tensors the kernels take: ``"neuron"``, the native device of torch-neuronx,
            ``"xla"``, the older one, and ``"cpu"``, where the kernels are simulated, for tests.

    Returns:
        What undoes it: call it, or use it in a ``with`` statement.

    Raises:
        ImportError: TRL is not there, or is another release, or its function takes other arguments; the message says
            what differs.
        TypeError: ``devices`` is no iterable of strings, or a string itself.
        ValueError: no device, or one on which no kernel runs.
        RuntimeError: something else stands in the place of TRL's function.
    """
    wanted = checked_devices(INSTALL, devices)
    place = find_place()
    current = place.current
    if isinstance(current, _Router):
        router = current
    elif current is place.own:
        router = _Router(place)
    else:
        kind = current if isinstance(current, type) else type(current)
        raise RuntimeError(
            f"{INSTALL}: {place.module.__name__}.{ATTRIBUTE} must be TRL's own {place.own.__qualname__}, got "
            f"{kind.__module__}.{kind.__qualname__}; undo what has replaced it, and install again"
        )
    undo = Undo(router, wanted)
    router.add(undo)
    return undo
