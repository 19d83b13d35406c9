# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Python functions in programs of JAX, by both kinds of callback."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax.dispatch import host_call as module
from nkilib.jax.dispatch.host_call import Result, host_call
from tests.fresh_python import run_fresh


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
        monkeypatch.setattr(module, "BUFFER_CALLBACK", None)
    elif module.BUFFER_CALLBACK is None:
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
from nkilib.jax.dispatch.host_call import Result, host_call
x, y = jnp.ones((3000, 3000)), jnp.zeros(3000)  # 36 MB, with which jax.pure_callback hangs
for _ in range(2):
    (y,) = host_call(lambda x, y: [x[:, 0] + y], [Result(y.shape, y.dtype)], x + y, y)
print(y[0])
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="takes a core away, as Linux can")
def test_large_arrays_on_one_core_do_not_wait_for_each_other() -> None:
    outcome = run_fresh(ON_ONE_CORE)
    assert (outcome.output, outcome.error) == ("3.0", "")
