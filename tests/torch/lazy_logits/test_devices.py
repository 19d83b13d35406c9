# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A fused model on a stand-in for the native device."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from tests.torch.fresh import run_module
from tests.torch.inputs import make_targets
from tests.torch.lazy_logits.models import BATCH, LENGTH, VOCABULARY, inputs, model


def test_a_native_device_gives_the_results_of_the_stock_model() -> None:
    printed = run_module("tests.torch.lazy_logits.device_run", NEURON_LOGICAL_NC_CONFIG="1")
    report = json.loads(printed.splitlines()[-1])
    stock, ids = model(), make_targets(BATCH, LENGTH, classes=VOCABULARY)
    logits = stock(inputs())
    scores = (logits / 0.7).log_softmax(-1).gather(-1, ids[..., None])
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten()) - scores.mean()
    loss.backward()
    assert report["devices"] == ["neuron"] and report["tokens"] == logits.argmax(-1).tolist()
    assert report["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert report["fused"] == {"gather": 1, "cross_entropy": 1, "argmax": 1}
    for ours, parameter in zip(report["gradients"], stock.parameters(), strict=True):
        assert parameter.grad is not None
        assert (torch.tensor(ours) - parameter.grad).norm() <= 1e-5 * parameter.grad.norm()
