"""Run as a program: losses and gradients on the pretended native device, as one line of JSON. See test_devices."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import nkilib.torch.devices
import nkilib.torch.launch
from nkilib.torch import cross_entropy, vocab_parallel_cross_entropy

from . import pretended_neuron
from .inputs import CLASSES, make_logits, make_targets
from .pretended_neuron import to_cpu, to_device

cores_of_launches: list[int] = []


class OnDevice:
    """A simulated kernel that takes tensors of the device."""

    def __init__(self, kernel: Any, cores: int = 1) -> None:
        self._kernel = kernel
        self._cores = cores

    def __getitem__(self, cores: int) -> OnDevice:
        cores_of_launches.append(cores)
        return OnDevice(self._kernel, cores)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [to_cpu(value) if isinstance(value, torch.Tensor) else value for value in (*args, *kwargs.values())]
        named = dict(zip(kwargs, given[len(args) :], strict=True))
        results = self._kernel[self._cores](*given[: len(args)], **named)
        if isinstance(results, tuple):
            return tuple(to_device(result) for result in results)
        return args[0] if results is given[0] else to_device(results)


def _found(loss_function: Callable[..., Any], inplace: bool) -> dict[str, Any]:
    """Loss and gradient, and whether the gradient lies over the logits."""
    cores_of_launches.clear()
    leaf = to_device(make_logits(4, 3, CLASSES)).requires_grad_()
    logits = leaf * 1.0
    target = to_device(make_targets(4, 3, ignored=-100))
    outputs = loss_function(logits, target, label_smoothing=0.1, class_dim=-1, return_outputs=True, inplace=inplace)
    (gradient,) = torch.autograd.grad(outputs.loss, leaf)
    return {
        "devices": sorted({tensor.device.type for tensor in (*outputs, gradient)}),
        "cores": list(cores_of_launches),
        "loss": to_cpu(outputs.loss).item(),
        "gradient": to_cpu(gradient).tolist(),
        "overwritten": torch.equal(to_cpu(logits), to_cpu(gradient)),
    }


def main(inplace: bool) -> None:
    """Print what the loss gives, and the vocabulary-parallel one of two ranks, of which the other has no class."""
    registrations = pretended_neuron.register()
    nkilib.torch.devices.SIMULATED = False  # type: ignore[misc]
    for name in ("extended_cross_entropy_forward", "extended_cross_entropy_backward"):
        setattr(nkilib.torch.launch, name, OnDevice(getattr(nkilib.torch.launch, name)))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    dist.all_reduce = lambda tensor, **_: None  # what the other rank does to it
    parallel = partial(vocab_parallel_cross_entropy, shard_sizes=[CLASSES, 0])
    print(json.dumps({"whole": _found(cross_entropy, inplace), "in shards": _found(parallel, inplace)}))
    dist.destroy_process_group()
    del registrations


if __name__ == "__main__":
    main(inplace="inplace" in sys.argv[1:])
