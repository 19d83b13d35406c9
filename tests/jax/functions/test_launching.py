# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches: Python functions in programs of JAX by both kinds of callback, the simulator's options in XLA's threads,
and arrays on platforms where kernels do not run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nkilib.simulator
from nkilib.base.lnc import CoresDisagreeError
from nkilib.jax import cross_entropy, launching
from nkilib.jax.launching import Kernel, Result, check_platforms, host_call, launch, simulator_options
from nkilib.simulator.hardware.options import current_options
from tests.fresh_python import run_fresh
from tests.jax.inputs import make_logits, make_targets


def doubled_and_count(x: np.ndarray, y: np.ndarray) -> Sequence[np.ndarray]:
    """A pure function of two arrays."""
    assert not x.flags.writeable and type(x) is type(y) is np.ndarray
    return 2 * x, np.asarray(np.count_nonzero(y), np.int32)


def called(x: Any, y: Any) -> list[jax.Array]:
    results = [Result(x.shape, x.dtype), Result((), np.dtype(np.int32))]
    return host_call(doubled_and_count, results, x, y)


@pytest.mark.parametrize("is_buffered", [True, False], ids=["buffer_callback", "pure_callback"])
def test_arrays_in_and_out(is_buffered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_buffered:
        monkeypatch.setattr(launching, "BUFFER_CALLBACK", None)
    elif launching.BUFFER_CALLBACK is None:
        pytest.skip("this JAX has no buffer_callback")
    x, y = jnp.asarray([[1.5, -2.0]], jnp.bfloat16), jnp.asarray([0, 1, 2])
    for run in (called, jax.jit(called)):
        result, count = run(x, y)
        assert result.dtype == jnp.bfloat16 and result.tolist() == [[3.0, -4.0]]
        assert count.dtype == jnp.int32 and count == 2


ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax.numpy as jnp
from nkilib.jax.launching import Result, host_call
x, y = jnp.ones((3000, 3000)), jnp.zeros(3000)  # 36 MB, with which jax.pure_callback hangs
for _ in range(2):
    (y,) = host_call(lambda x, y: [x[:, 0] + y], [Result(y.shape, y.dtype)], x + y, y)
print(y[0])
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="takes a core away, as Linux can")
def test_large_arrays_on_one_core_do_not_wait_for_each_other() -> None:
    outcome = run_fresh(ON_ONE_CORE)
    assert (outcome.output, outcome.error) == ("3.0", "")


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


@dataclass(frozen=True)
class OnGpu:
    """A stand-in for an array on a GPU, with the only method that is asked for."""

    def devices(self) -> set[object]:
        return {type("Device", (), {"platform": "gpu"})()}


def test_the_simulator_runs_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    check_platforms("f", {"input": jnp.zeros(1), "weight": None})
    monkeypatch.setattr(launching, "is_known", lambda array: True)
    with pytest.raises(NotImplementedError, match=r"^f: input must be on the CPU, .* got a gpu device; move it with"):
        check_platforms("f", {"input": OnGpu()})


def test_what_is_traced_may_be_anywhere() -> None:
    assert jax.eval_shape(lambda x: check_platforms("f", {"input": x}), jnp.zeros(1)) is None
