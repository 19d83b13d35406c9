# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The road on the real NKI, on a stand-in: kernels are called on arrays that are being traced, nothing on the host.

The stand-in has the documented behaviour alone (``nki.jit``: a kernel is called directly on arrays of JAX, and made for
the cores of the environment) and computes on the simulator. What Neuron hardware and its compiler do with the call, it
cannot show.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax import cross_entropy
from nkilib.jax import launching as launch
from nkilib.jax import launching as platforms
from nkilib.jax.functions import cross_entropy_derivative as kernels
from nkilib.jax.launching import Kernel, Result, Simulation, host_call
from nkilib.simulator.hardware.options import current_options
from tests.jax.inputs import CLASSES, POSITIONS, make_logits, make_targets, make_weight, of_reference
from tests.jax.telling import assert_gradient, assert_loss


class StandIn:
    """A kernel of the real NKI.

    Attributes:
        calls: the arguments of each.
        cores: the number of cores of each launch with brackets.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.calls: list[dict[str, Any]] = []
        self.cores: list[int] = []

    def __getitem__(self, cores: int) -> StandIn:
        self.cores.append(cores)
        return self

    def __call__(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        arrays = {name: value for name, value in arguments.items() if isinstance(value, jax.Array)}
        constants = tuple((name, value) for name, value in arguments.items() if name not in arrays)
        logits = arrays["logits_hbm"]
        is_backward = "grad_loss_hbm" in arrays
        result = Result(logits.shape, logits.dtype) if is_backward else Result(logits.shape[:1], jnp.dtype(jnp.float32))
        simulation = Simulation(self._kernel, tuple(arrays), constants, current_options())
        results = host_call(simulation, [result] * (1 if is_backward else 6), *arrays.values())
        return results[0] if is_backward else tuple(results)


@pytest.fixture
def neuron(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """A process with the real NKI and a Neuron device."""
    results = {}
    for name in ("_FORWARD", "_BACKWARD"):
        kernel: Kernel = getattr(kernels, name)
        results[name] = StandIn(kernel)
        monkeypatch.setattr(kernels, name, Kernel(kernel.name, results[name]))
    monkeypatch.setattr(launch, "SIMULATED", False)
    monkeypatch.setattr(platforms, "SIMULATED", False)
    monkeypatch.setattr(jax, "default_backend", lambda: "neuron")
    return results


def test_a_step_calls_the_kernels_on_arrays_that_are_traced(neuron: dict[str, StandIn]) -> None:
    x, target, weight = make_logits(dtype=jnp.bfloat16), make_targets(ignored=-100), make_weight()
    step = jax.jit(jax.value_and_grad(cross_entropy), static_argnames="label_smoothing")
    temperatures = np.array([2.0, 0.5, 1.0, 0.7, 3.0, 0.9], np.float32)
    loss, gradient = step(x, target, weight, label_smoothing=0.1, temperature=temperatures)
    exact = of_reference(x, target, weight, label_smoothing=0.1, temperature=temperatures)
    counted = np.asarray(target)[np.asarray(target) != -100]
    divisor = np.asarray(weight, np.float64)[counted].sum()
    assert_loss(loss, exact.losses.sum() / divisor)
    assert_gradient(gradient, exact.gradient / divisor)
    for kernel in neuron.values():
        arguments = kernel.calls[-1]
        assert set(kernel.cores) == {2}  # what the compiler takes where nothing is said
        arrays = {name: value for name, value in arguments.items() if isinstance(value, jax.Array)}
        assert all(isinstance(array, jax.core.Tracer) for array in arrays.values())
        assert arrays["logits_hbm"].shape == (POSITIONS, CLASSES) and arrays["targets_hbm"].dtype == jnp.int32
        assert arrays["temperature_hbm"].shape == (POSITIONS,) and arguments["temperature"] == 1.0
        assert None not in arrays.values() and arguments["label_smoothing"] == 0.1


def test_without_brackets_where_the_variable_says_the_cores(
    neuron: dict[str, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    jax.eval_shape(lambda *arrays: cross_entropy(*arrays), make_logits(), make_targets())
    assert neuron["_FORWARD"].cores == [] and neuron["_FORWARD"].calls


def test_arrays_elsewhere_and_another_backend_are_refused(
    neuron: dict[str, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotImplementedError, match=r"input must be on a neuron device, .* got a cpu device; move it"):
        cross_entropy(make_logits(), make_targets())
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(NotImplementedError, match=r"needs neuron as JAX's default backend, got cpu; install"):
        jax.eval_shape(lambda *arrays: cross_entropy(*arrays), make_logits(), make_targets())
