# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arrays that devices share become different where others are, and flags are saved for a backward without elements."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from nkilib.jax.derivatives import differing_alike, flags_of, saved_flags


def test_outside_of_a_mesh_they_stay_what_they_are() -> None:
    arrays = {"rows": jnp.ones(2), "shared": jnp.ones(3), "none": None}
    result = differing_alike(arrays)
    assert all(result[name] is array for name, array in arrays.items())


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_gradient_of_what_devices_share_is_summed() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spread, whole = PartitionSpec("data"), PartitionSpec()

    def products(rows: jax.Array, shared: jax.Array) -> jax.Array:
        arrays = differing_alike({"rows": rows, "shared": shared})
        assert jax.typeof(arrays["rows"] * 0) == jax.typeof(arrays["shared"][:1] * 0)
        return arrays["rows"] * arrays["shared"]

    of_devices = jax.shard_map(products, mesh=mesh, in_specs=(spread, whole), out_specs=spread)
    rows = jnp.asarray([3.0, 4.0])
    assert jax.jit(jax.grad(lambda shared: of_devices(rows, shared).sum()))(jnp.ones(1)).tolist() == [7.0]


def test_flags_return_as_they_were() -> None:
    for flags in product((False, True), repeat=3):
        saved = saved_flags(*flags)
        assert saved.size == 0 and flags_of(saved) == flags
