# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores of tokens and their gradients against float64 and derived bounds, for one id of a position and several, also
under jit, vmap and a mesh.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)
from nkilib.jax import LinearTokenScores, linear_token_scores
from tests.jax.launch_log import LaunchLog
from tests.jax.linear_inputs import FEATURES, POSITIONS, assert_within, make_operands, make_targets, problem_of

RECIPE: dict[str, Any] = {"logit_softcap": 8.0, "temperature": 0.7, "logit_scale": 1.5}
ALL = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")
X, W, B = make_operands()


def upstream_of(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Gradients of the scores that have one."""
    rng = np.random.default_rng(5)
    shapes = {"logprob": shape, "lse": (POSITIONS,), "entropy": (POSITIONS,)}
    return {name: rng.standard_normal(of).astype(np.float32) for name, of in shapes.items()}


@pytest.mark.parametrize("ids", [None, 3], ids=["one id", "three ids"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_all_scores_and_gradients(dtype: Any, ids: int | None) -> None:
    """Ignored ids have a log-probability of 0 and no gradient; the entropy of their position has one."""
    operands = make_operands(dtype)
    shape = (POSITIONS,) if ids is None else (POSITIONS, ids)
    target, upstream = make_targets(*shape, ignored=3), upstream_of(shape)

    def total(input: jax.Array, weight: jax.Array, bias: jax.Array) -> Any:
        spread = (2, 3, *shape[1:])
        scores = linear_token_scores(
            input.reshape(2, 3, FEATURES),
            weight,
            target.reshape(spread),
            linear_bias=bias,
            ignore_index=3,
            outputs=ALL,
            **RECIPE,
        )
        terms = [(getattr(scores, name).reshape(values.shape) * values).sum() for name, values in upstream.items()]
        return sum(terms), scores

    gradients, scores = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*operands)
    problem = problem_of(operands, target.reshape(POSITIONS, -1), ignore_index=3, **RECIPE)
    exact, bounds = scores_forward_reference(problem), scores_forward_bounds(problem)
    assert isinstance(scores, LinearTokenScores) and scores.argmax is not None
    assert scores.argmax.dtype == jnp.int32 and scores.argmax.reshape(-1).tolist() == exact["argmax"].tolist()
    for name, values in scores._asdict().items():
        if name != "argmax":
            assert values.dtype == jnp.float32
            assert_within(
                values.reshape(shape if name == "logprob" else (POSITIONS,)),
                exact[name].reshape(shape if name == "logprob" else (POSITIONS,)),
                bounds[name].reshape(shape if name == "logprob" else (POSITIONS,)),
            )
    inputs = ScoreInputs(
        exact["lse"],
        upstream["logprob"].reshape(POSITIONS, -1),
        upstream["lse"],
        exact["entropy"],
        upstream["entropy"],
    )
    results, room = scores_gradients_and_bounds(problem, inputs)
    for gradient, operand, values, bound in zip(gradients, operands, results, room, strict=True):
        assert gradient.dtype == operand.dtype
        assert_within(gradient, values, bound)


@pytest.mark.parametrize("name", ["logprob", "entropy", "lse"])
def test_a_score_without_a_gradient_costs_nothing(name: str, launches: LaunchLog) -> None:
    """The kernel gets the upstream gradients that there are; a gradient of nothing is no launch."""
    target = make_targets(ignored=-100)

    def scores_of(x: jax.Array) -> LinearTokenScores:
        return linear_token_scores(x, W, target, linear_bias=B, outputs=ALL)

    upstream = {name: upstream_of((POSITIONS,))[name]}
    gradient = jax.jit(jax.grad(lambda x: (getattr(scores_of(x), name) * upstream[name]).sum()))(X)
    problem = problem_of(make_operands(), target[:, None])
    exact = scores_forward_reference(problem)
    of_ids = {"grad_logprob": upstream["logprob"][:, None]} if name == "logprob" else {f"grad_{name}": upstream[name]}
    inputs = ScoreInputs(exact["lse"], **of_ids, entropy=exact["entropy"] if name == "entropy" else None)
    gradients, bounds = scores_gradients_and_bounds(problem, inputs)
    assert_within(gradient, gradients.input, bounds.input)
    kernel_name = "loss" if name == "logprob" else name
    arguments = {
        argument for argument in launches.arguments["linear_cross_entropy_backward"] if argument.endswith("_hbm")
    }
    assert {argument for argument in arguments if argument.startswith("grad_")} == {f"grad_{kernel_name}_hbm"}
    assert ("entropy_hbm" in arguments) == (name == "entropy")
    jax.grad(lambda x: scores_of(x).mean_logit.sum())(X)
    assert len(launches.backward) == 1


def test_what_is_not_asked_for_is_none_and_masked_classes_are_left_out() -> None:
    target = jnp.asarray([0, 1, 2, 3, 4, 5], jnp.int32)
    alone = linear_token_scores(X, W, target, outputs=())
    assert alone[1:] == (None,) * 5
    masked = B.at[7].set(-jnp.inf)
    kept = np.arange(len(W)) != 7
    result = linear_token_scores(X, W, target, linear_bias=masked, outputs=ALL, **RECIPE)
    expected = linear_token_scores(X, W[kept], target, linear_bias=B[kept], outputs=ALL, **RECIPE)
    for name in ("logprob", "entropy", "lse", "log_sum_squares", "mean_logit"):
        np.testing.assert_allclose(getattr(result, name), getattr(expected, name), rtol=2e-6, atol=2e-6)


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
