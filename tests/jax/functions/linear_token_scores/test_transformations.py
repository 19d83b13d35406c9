# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores under jit, vmap and a mesh: K ids of a position, with gradients of all operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from nkilib.jax import linear_token_scores
from tests.jax.launch_log import LaunchLog
from tests.jax.linear_inputs import FEATURES, POSITIONS, make_operands, make_targets

X, W, B = make_operands()
UPSTREAM = jnp.asarray(np.random.default_rng(6).standard_normal((POSITIONS, 3)).astype(np.float32))


def total(input: jax.Array, weight: jax.Array, target: jax.Array, upstream: jax.Array) -> jax.Array:
    """A sum over positions, of log-probabilities and entropies."""
    scores = linear_token_scores(input, weight, target, linear_bias=B, temperature=0.8)
    assert scores.entropy is not None
    return (scores.logprob * upstream).sum() + 0.1 * scores.entropy.sum()


def assert_same(result: Any, expected: Any) -> None:
    """Each array to a few units of float32."""
    for values, exact in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert values.dtype == exact.dtype and values.shape == exact.shape
        np.testing.assert_allclose(values, exact, rtol=0, atol=2.0**-20 * float(jnp.abs(exact).max()))


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("ids", [None, 3], ids=["one id", "three ids"])
def test_positions_spread_over_two_devices(ids: int | None, launches: LaunchLog) -> None:
    """The gradient of the output layer is the sum over the devices."""
    target = make_targets(POSITIONS, *([] if ids is None else [ids]), ignored=-100)
    upstream = UPSTREAM[:, 0] if ids is None else UPSTREAM
    expected = jax.value_and_grad(total, (0, 1))(X, W, target, upstream)
    launches.backward.clear()
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spread, whole = PartitionSpec("data"), PartitionSpec()
    step = jax.shard_map(
        jax.value_and_grad(lambda *given: jax.lax.psum(total(*given), "data"), (0, 1)),
        mesh=mesh,
        in_specs=(spread, whole, spread, spread),
        out_specs=(whole, (spread, whole)),
    )
    assert_same(jax.jit(step)(X, W, target, upstream), expected)
    assert launches.backward == [(POSITIONS // 2, FEATURES)] * 2


def test_vmap_of_ids_is_one_launch(launches: LaunchLog) -> None:
    """Hidden states and ids differ by example, like samples of one prompt each, and one launch computes them."""
    many, target = jnp.stack([X, -X]), make_targets(2, POSITIONS, 3)
    gradient = jax.vmap(jax.grad(lambda x, t: total(x, W, t, UPSTREAM)))(many, target)
    assert launches.forward == launches.backward == [(2 * POSITIONS, FEATURES)]
    assert_same(gradient, jax.grad(lambda x: total(x, W, target, UPSTREAM))(many))
