# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run as a program: losses and gradients on the pretended native device, as one line of JSON. See test_devices."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nkilib.torch import cross_entropy, vocab_parallel_cross_entropy
from nkilib.torch.dispatch import devices
from nkilib.torch.dispatch.register import OPERATORS
from tests.torch.dispatch import neuronx
from tests.torch.dispatch.neuronx import to_cpu, to_device
from tests.torch.fake_group import two_ranks
from tests.torch.fresh import leave
from tests.torch.inputs import CLASSES, make_logits, make_targets
from tests.torch.stand_in import stand_in_for

cores_of_launches: list[int] = []


def on_device(kernel: Any, cores: int, keywords: dict[str, Any]) -> Any:
    """Launch a simulated kernel on tensors of the device."""
    cores_of_launches.append(cores)
    inputs = {name: to_cpu(value) if isinstance(value, torch.Tensor) else value for name, value in keywords.items()}
    results = kernel[cores](**inputs)
    if isinstance(results, tuple):
        return tuple(to_device(result) for result in results)
    same = [name for name, value in inputs.items() if value is results]
    return keywords[same[0]] if same else to_device(results)


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
    registrations = neuronx.register()
    parallel = partial(vocab_parallel_cross_entropy, shard_sizes=[CLASSES, 0])
    with pytest.MonkeyPatch.context() as monkeypatch, two_ranks():
        monkeypatch.setattr(devices, "SIMULATED", False)
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: None)  # what the other rank does to it
        for name in OPERATORS:
            stand_in_for(monkeypatch, name, on_device)
        print(json.dumps({"whole": _found(cross_entropy, inplace), "in shards": _found(parallel, inplace)}))
    del registrations


if __name__ == "__main__":
    main(inplace="inplace" in sys.argv[1:])
    leave()
