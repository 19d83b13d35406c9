# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches on the simulator: its options go along into the threads of XLA, and a program is compiled for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkilib.simulator
from nkilib.base.lnc import CoresDisagreeError
from nkilib.jax import cross_entropy
from nkilib.jax.dispatch.host_call import Result
from nkilib.jax.dispatch.launch import Kernel, launch, simulator_options
from nkilib.simulator.hardware.options import current_options
from tests.jax.inputs import make_logits, make_targets


class Seen:
    """A kernel that returns its input, and keeps for what it was simulated."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def __getitem__(self, cores: int) -> Seen:
        assert cores == 2
        return self

    def __call__(self, x_hbm: np.ndarray, factor: float) -> np.ndarray:
        self.targets.append(current_options().target)
        return factor * x_hbm


def test_options_of_the_thread_that_calls_hold_where_the_kernel_runs() -> None:
    seen = Seen()
    kernel = Kernel("seen", seen)

    def run(x: jax.Array) -> Any:
        results = {"y": Result(x.shape, x.dtype)}
        return launch(kernel, {"x_hbm": x, "other_hbm": None}, {"factor": 2.0}, results, simulator_options())["y"]

    for target in ("trn3", "trn2"):
        with nkilib.simulator.using(target=target):
            assert run(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert seen.targets == ["trn3", "trn2"]


def test_a_program_that_is_compiled_already_is_not_taken_for_other_options() -> None:
    x, target = make_logits(), make_targets()
    cross_entropy(x, target)
    with nkilib.simulator.using(target="trn1"), pytest.raises(jax.errors.JaxRuntimeError, match="trn1 has no logical"):
        cross_entropy(x, target).block_until_ready()
    cross_entropy(x, target).block_until_ready()


def test_cores_that_disagree_are_refused_before_the_launch_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX wraps what a launch raises in words of its own; this is raised by the call, also of what is compiled."""
    cross_entropy(make_logits(), make_targets())
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--lnc=2")
    for call in (cross_entropy, jax.jit(lambda *of: cross_entropy(*of))):
        with pytest.raises(CoresDisagreeError, match="; take --lnc=2 out of NEURON_CC_FLAGS"):
            call(make_logits(), make_targets())
