# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arrays on other devices than those where kernels run."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

from nkilib.jax.dispatch import platforms
from nkilib.jax.dispatch.platforms import check_platforms


@dataclass(frozen=True)
class OnGpu:
    """A stand-in for an array on a GPU, with the only method that is asked for."""

    def devices(self) -> set[object]:
        return {type("Device", (), {"platform": "gpu"})()}


def test_the_simulator_runs_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    check_platforms("f", {"input": jnp.zeros(1), "weight": None})
    monkeypatch.setattr(platforms, "is_known", lambda array: True)
    with pytest.raises(NotImplementedError, match=r"^f: input must be on the CPU, .* got a gpu device; move it with"):
        check_platforms("f", {"input": OnGpu()})


def test_what_is_traced_may_be_anywhere() -> None:
    assert jax.eval_shape(lambda x: check_platforms("f", {"input": x}), jnp.zeros(1)) is None
