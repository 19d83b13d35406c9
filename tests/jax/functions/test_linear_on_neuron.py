# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The road on the real NKI, on a stand-in: kernels are called on arrays that are being traced, nothing on the host.

As in ``test_cross_entropy_on_neuron``: the stand-in computes on the simulator, and cannot show what Neuron's compiler
does with the call.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax import launching as launch
from nkilib.jax import launching as platforms
from nkilib.jax import linear_cross_entropy, linear_token_scores
from nkilib.jax.functions import linear_derivative as kernels
from nkilib.jax.launching import Kernel, Result, Simulation, host_call
from nkilib.nki import nl
from nkilib.simulator.hardware.options import current_options
from tests.jax.linear_inputs import CLASSES, FEATURES, POSITIONS, make_operands, make_targets

_GRADIENTS = {"grad_input_wanted": "input_hbm", "grad_weight_wanted": "weight_hbm", "grad_bias_wanted": "bias_hbm"}
_FLAGS = ("with_argmax", "with_entropy", "with_log_sum_squares", "with_mean_logit")


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
        simulation = Simulation(self._kernel, tuple(arrays), constants, current_options())
        results = host_call(simulation, _results(arguments), *arrays.values())
        return results[0] if len(results) == 1 else tuple(results)


def _results(arguments: dict[str, Any]) -> list[Result]:
    """Return the results that the kernel's documentation names."""
    if "lse_hbm" in arguments:
        wanted = [arguments[name] for flag, name in _GRADIENTS.items() if arguments[flag]]
        return [Result(array.shape, array.dtype) for array in wanted]
    of_row = Result((POSITIONS,), jnp.dtype(jnp.float32))
    results = [of_row] * (4 + 2 * arguments["with_target"] + sum(arguments[flag] for flag in _FLAGS))
    if arguments["targets_hbm"].ndim == 2:
        results[0] = Result(arguments["targets_hbm"].shape, of_row.dtype)
    if arguments["with_argmax"]:
        results[2 + 2 * arguments["with_target"]] = Result((POSITIONS,), jnp.dtype(jnp.int32))
    return results


def neuron(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """A process with the real NKI and a Neuron device."""
    results = {}
    for name in ("_FORWARD", "_BACKWARD", "_FORWARD_OF_IDS", "_BACKWARD_OF_IDS"):
        kernel: Kernel = getattr(kernels, name)
        results[name] = StandIn(kernel)
        monkeypatch.setattr(kernels, name, Kernel(kernel.name, results[name]))
    monkeypatch.setattr(launch, "SIMULATED", False)
    monkeypatch.setattr(platforms, "SIMULATED", False)
    monkeypatch.setattr(jax, "default_backend", lambda: "neuron")
    return results


def test_a_step_calls_the_kernels_on_arrays_that_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and scores in one step, which gives what it gives on the simulator."""
    operands, target = make_operands(jnp.float32, jnp.bfloat16), make_targets(ignored=-100)
    ids = jnp.stack([target, make_targets()], -1)

    def total(input: jax.Array, weight: jax.Array, bias: jax.Array, target: jax.Array, ids: jax.Array) -> jax.Array:
        options: Any = {"linear_bias": bias, "compute_dtype": "bfloat16", "temperature": 0.5}
        scores = linear_token_scores(input, weight, ids, outputs=("entropy", "argmax"), **options)
        assert scores.entropy is not None
        loss = linear_cross_entropy(input, weight, target, reduction="sum", **options)
        return loss - scores.logprob.sum() - 2.0 * scores.entropy.sum()

    step = jax.value_and_grad(total, (0, 1, 2))
    expected = jax.jit(step)(*operands, target, ids)
    stand_ins = neuron(monkeypatch)
    result = jax.jit(lambda *arrays: step(*arrays))(*operands, target, ids)
    for values, exact in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert values.dtype == exact.dtype and exact.any()
        np.testing.assert_array_equal(values, exact)
    for kernel in stand_ins.values():
        arguments = kernel.calls[-1]
        assert set(kernel.cores) == {2}  # what the compiler takes where nothing is said
        arrays = {name: value for name, value in arguments.items() if isinstance(value, jax.Array)}
        assert all(isinstance(array, jax.core.Tracer) for array in arrays.values())
        assert arrays["input_hbm"].shape == (POSITIONS, FEATURES)
        assert arrays["weight_hbm"].shape == (CLASSES, FEATURES) and arrays["targets_hbm"].dtype == jnp.int32
        assert arguments["compute_dtype"] == nl.bfloat16 and arguments["temperature"] == 0.5
        assert not any(argument is None for name, argument in arguments.items() if name.endswith("_hbm"))
