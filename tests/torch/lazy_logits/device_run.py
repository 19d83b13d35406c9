# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run as a program: a fused model on the pretended native device, as one line of JSON. See test_devices."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nkilib.torch import LazyLogits, fuse_linear_loss, fused_calls
from nkilib.torch.dispatch import devices
from nkilib.torch.dispatch.register import OPERATORS
from tests.torch.dispatch import neuronx
from tests.torch.dispatch.native_device_run import on_device
from tests.torch.dispatch.neuronx import to_cpu, to_device
from tests.torch.fresh import leave
from tests.torch.inputs import make_targets
from tests.torch.lazy_logits.models import BATCH, LENGTH, VOCABULARY, inputs, model
from tests.torch.stand_in import stand_in_for


def found() -> dict[str, Any]:
    """Return loss, gradients and tokens of a step, with all tensors on the device, and what ran."""
    made = model()
    for layer in (made.trunk, made.head):
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(to_device(parameter.detach())))
    fuse_linear_loss(made, head="head", on_compute="raise")
    ids = to_device(make_targets(BATCH, LENGTH, classes=VOCABULARY))
    logits = made(to_device(inputs()))
    assert isinstance(logits, LazyLogits)
    scaled: Any = logits / 0.7
    scores = scaled.log_softmax(-1).gather(-1, ids[..., None])
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten()) - scores.mean()
    loss.backward()
    tokens = logits.argmax(-1)
    gradients = [parameter.grad for parameter in made.parameters() if parameter.grad is not None]
    return {
        "devices": sorted({tensor.device.type for tensor in (loss, tokens, *gradients)}),
        "loss": to_cpu(loss).item(),
        "tokens": to_cpu(tokens).tolist(),
        "gradients": [to_cpu(gradient).tolist() for gradient in gradients],
        "fused": fused_calls(made).fused,
    }


def main() -> None:
    """Print the findings."""
    registrations = neuronx.register()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(devices, "SIMULATED", False)
        for name in OPERATORS:
            stand_in_for(monkeypatch, name, on_device)
        print(json.dumps(found()))
    del registrations


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
    leave()
