# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradients from hidden states against float64 and derived bounds, and under transformations: jit, vmap,
checkpoint, a mesh, gradients that nobody asks for, and derivatives that do not exist.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from nkilib.jax import linear_cross_entropy
from tests.jax.launch_log import LaunchLog
from tests.jax.linear_inputs import (
    CLASSES,
    FEATURES,
    POSITIONS,
    Operands,
    assert_within,
    make_operands,
    make_targets,
    problem_of,
)

RECIPE: dict[str, Any] = {
    "label_smoothing": 0.1,
    "logit_softcap": 8.0,
    "lse_square_scale": 1e-2,
    "temperature": 0.7,
    "logit_scale": 1.5,
}
WEIGHT = jnp.asarray((0.5 + np.random.default_rng(3).random(CLASSES)).astype(np.float32))


def assert_loss_and_gradients(
    loss: jax.Array, gradients: Any, problem: LinearProblem, operands: Operands, divisor: float
) -> None:
    """Check a sum of losses over ``divisor``, and the gradients of all operands in their types."""
    result = linear_forward_reference(problem)
    assert loss.dtype == jnp.float32
    assert_within(loss, result.loss.sum() / divisor, linear_forward_bounds(problem)["loss"].sum() / divisor)
    upstream = BackwardInputs(result.lse, np.full(POSITIONS, 1.0 / divisor, np.float32))
    types = {"input_dtype": operands.input.dtype, "weight_dtype": operands.weight.dtype}
    exact, bounds = linear_gradients_and_bounds(problem, upstream, **types)
    for gradient, operand, values, bound in zip(gradients, operands, exact, bounds, strict=True):
        assert gradient.dtype == operand.dtype
        assert_within(gradient, values, bound)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_mean_with_ignored_positions(dtype: Any) -> None:
    operands, target = make_operands(dtype), make_targets(ignored=-100)

    def loss(input: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return linear_cross_entropy(input, weight, target, linear_bias=bias)

    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*operands)
    assert_loss_and_gradients(value, gradients, problem_of(operands, target), operands, 4.0)
    assert not np.asarray(gradients[0])[1::3].any()


def test_all_options_of_a_weight_with_features_first() -> None:
    """[batch, sequence, D], targets of numpy, and the weight as Flax has it."""
    operands, target = make_operands(), make_targets(ignored=7)

    def loss(input: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return linear_cross_entropy(
            input.reshape(2, 3, FEATURES),
            weight,
            np.asarray(target, np.int64).reshape(2, 3),
            linear_bias=bias,
            weight=WEIGHT,
            ignore_index=7,
            weight_layout="dv",
            **RECIPE,
        )

    inputs = (operands.input, operands.weight.T, operands.bias)
    value, (of_input, of_weight, of_bias) = jax.value_and_grad(loss, (0, 1, 2))(*inputs)
    divisor = float(np.asarray(WEIGHT, np.float64)[np.asarray(target)[np.asarray(target) != 7]].sum())
    problem = problem_of(operands, target, class_weight=WEIGHT, ignore_index=7, **RECIPE)
    assert_loss_and_gradients(value, (of_input, of_weight.T, of_bias), problem, operands, divisor)


def test_operands_that_are_rounded_for_the_products() -> None:
    """float32 hidden states, a bfloat16 weight: gradients have the type of their operand."""
    operands, target = make_operands(jnp.float32, jnp.bfloat16, jnp.float32), make_targets()

    def loss(input: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return linear_cross_entropy(
            input, weight, target, linear_bias=bias, compute_dtype=jnp.bfloat16, reduction="sum"
        )

    value, gradients = jax.value_and_grad(loss, (0, 1, 2))(*operands)
    problem = problem_of(operands, target, compute_dtype=jnp.bfloat16)
    assert_loss_and_gradients(value, gradients, problem, operands, 1.0)


def test_outputs_and_their_gradients() -> None:
    """Losses apart; upstream gradients of loss, log-probability, log-sum-exp and entropy in one backward."""
    operands, target = make_operands(), make_targets(ignored=-100)
    problem = problem_of(operands, target)
    result, bounds = linear_forward_reference(problem), linear_forward_bounds(problem)
    valid = np.asarray(target) != -100
    upstream = {
        name: np.random.default_rng(seed).standard_normal(POSITIONS).astype(np.float32)
        for seed, name in enumerate(("loss", "logprob", "lse", "entropy"))
    }

    def total(input: jax.Array, weight: jax.Array, bias: jax.Array) -> Any:
        outputs = linear_cross_entropy(input, weight, target, linear_bias=bias, reduction="none", return_outputs=True)
        return sum((getattr(outputs, name) * values).sum() for name, values in upstream.items()), outputs

    gradients, outputs = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*operands)
    assert_within(outputs.loss, result.loss, bounds["loss"])
    assert_within(outputs.lse, result.lse, bounds["lse"])
    assert_within(outputs.logprob, np.where(valid, -result.loss, 0.0), bounds["loss"])
    assert_within(outputs.entropy, result.entropy, bounds["entropy"])
    assert outputs.argmax.dtype == jnp.int32 and outputs.argmax.tolist() == result.argmax.tolist()
    assert not outputs.z_loss.any()
    of_loss, of_logprob, of_lse, of_entropy = upstream.values()
    inputs = BackwardInputs(result.lse, of_loss, of_lse, of_logprob, result.entropy, of_entropy)
    exact, room = linear_gradients_and_bounds(problem, inputs)
    for gradient, values, bound in zip(gradients, exact, room, strict=True):
        assert_within(gradient, values, bound)


def test_no_position_counts_or_is_there() -> None:
    operands, ignored = make_operands(), jnp.full((POSITIONS,), -100)
    loss, gradients = jax.value_and_grad(linear_cross_entropy, (0, 1))(*operands[:2], ignored)
    assert jnp.isnan(loss) and not gradients[0].any() and not gradients[1].any()
    of_none = jax.grad(lambda *given: linear_cross_entropy(*given, ignored[:0], reduction="sum"), (0, 1))
    gradients = of_none(operands.input[:0], operands.weight)
    assert gradients[0].shape == (0, FEATURES) and gradients[1].shape == (CLASSES, FEATURES) and not gradients[1].any()


X, W, B = make_operands()
TARGET = make_targets(ignored=-100)
COUNTED = 4
_FORWARD, _BACKWARD = "linear_cross_entropy_forward", "linear_cross_entropy_backward"


def loss_of(input: jax.Array, weight: jax.Array, bias: jax.Array, target: jax.Array = TARGET) -> jax.Array:
    """The mean over the positions of all devices."""
    return linear_cross_entropy(input, weight, target, linear_bias=bias, normalizer=COUNTED)


@pytest.fixture(scope="module")
def expected() -> Any:
    """Loss and gradients without any transformation; ``test_against_float64`` has their values."""
    return jax.value_and_grad(loss_of, (0, 1, 2))(X, W, B)


def assert_same(result: Any, expected: Any) -> None:
    """Each array to a few units of float32, in which no row is like another."""
    for values, exact in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert values.dtype == exact.dtype and values.shape == exact.shape
        np.testing.assert_allclose(values, exact, rtol=0, atol=2.0**-21 * float(jnp.abs(exact).max()))


def test_a_step_under_jit_with_a_checkpoint(launches: LaunchLog, expected: Any) -> None:
    """A recomputed forward is one more launch, and everything that is compiled in is static."""
    step = jax.jit(jax.value_and_grad(jax.checkpoint(loss_of), (0, 1, 2)))
    assert_same(step(X, W, B), expected)
    assert launches.backward == [(POSITIONS, FEATURES)]
    scaled = jax.jit(linear_cross_entropy, static_argnames=("temperature", "compute_dtype", "weight_layout"))
    value = scaled(X, W.T, TARGET, linear_bias=B, temperature=1.0, compute_dtype=jnp.float32, weight_layout="dv")
    assert_same(value, expected[0])


@pytest.mark.parametrize(("argument", "wanted"), [(0, (True, False, False)), (2, (False, False, True))])
def test_gradients_that_nobody_asks_for_are_not_computed(
    argument: int, wanted: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch, expected: Any
) -> None:
    """A frozen output layer and a frozen body need fewer gradients, and only those wanted are computed."""
    from nkilib.jax.launching import Kernel

    asked, run = [], Kernel.launch

    def noted(self: Kernel, **arguments: Any) -> tuple[Any, ...]:
        if self.name == _BACKWARD:
            asked.append(tuple(arguments[f"grad_{name}_wanted"] for name in ("input", "weight", "bias")))
        return run(self, **arguments)

    monkeypatch.setattr(Kernel, "launch", noted)
    assert_same(jax.grad(loss_of, argument)(X, W, B), expected[1][argument])
    assert asked == [wanted]


def test_vmap_is_one_launch_but_for_gradients_of_the_output_layer(launches: LaunchLog) -> None:
    """Gradients of the output layer are sums over the rows of an example, and take one launch an example."""
    many = jnp.stack([X, 0.5 * X, -X])

    def total(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.vmap(lambda x: loss_of(x, w, B))(x).sum()

    flat = jax.grad(lambda x, w: loss_of(x, w, B, jnp.broadcast_to(TARGET, (3, POSITIONS))), (0, 1))(many, W)
    launches.forward.clear()
    launches.backward.clear()
    assert_same(jax.grad(total)(many, W), flat[0])
    assert launches.forward == launches.backward == [(3 * POSITIONS, FEATURES)]
    assert_same(jax.jit(jax.grad(total, (0, 1)))(many, W), flat)
    assert launches.backward[1:] == [(POSITIONS, FEATURES)] * 3
    weights = jnp.stack([W, -W])
    item = jax.vmap(lambda w: loss_of(X, w, B))(weights)
    assert_same(item, jnp.stack([loss_of(X, w, B) for w in weights]))


def test_a_derivative_under_vmap_after_one_by_another_argument() -> None:
    """JAX keeps forwards of both; each must tell its own backward what is wanted."""

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return linear_cross_entropy(x, w, TARGET, reduction="sum")

    def total(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.vmap(lambda x: loss(x, w))(x).sum()

    expected = [jax.grad(loss, argument)(X, W) for argument in (0, 1)]
    for argument in (1, 0):
        assert_same(jax.grad(total, argument)(X[None], W).reshape((X, W)[argument].shape), expected[argument])


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "outside"])
def test_positions_spread_over_two_devices(is_inside: bool, launches: LaunchLog, expected: Any) -> None:
    """Data parallel: each device launches for its own, and JAX adds up the gradients of the output layer that it has.

    The derivative is taken inside of ``jax.shard_map``, of the sum over the devices, or outside.
    """
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spread, whole = PartitionSpec("data"), PartitionSpec()

    def of_device(x: jax.Array, w: jax.Array, b: jax.Array, target: jax.Array) -> jax.Array:
        return jax.lax.psum(loss_of(x, w, b, target), "data")

    specs: Any = {"mesh": mesh, "in_specs": (spread, whole, whole, spread)}
    if is_inside:
        inner = jax.value_and_grad(of_device, (0, 1, 2))
        step = jax.shard_map(inner, **specs, out_specs=(whole, (spread, whole, whole)))
    else:
        step = jax.value_and_grad(jax.shard_map(of_device, **specs, out_specs=whole), (0, 1, 2))
    assert_same(jax.jit(step)(X, W, B, TARGET), expected)
    assert launches.forward == launches.backward == [(POSITIONS // 2, FEATURES)] * 2


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_mesh_whose_types_are_not_checked(expected: Any) -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spread, whole = PartitionSpec("data"), PartitionSpec()
    losses = jax.shard_map(
        lambda x, w, t: linear_cross_entropy(x, w, t, linear_bias=B, reduction="none"),
        mesh=mesh,
        in_specs=(spread, whole, spread),
        out_specs=spread,
        check_vma=False,
    )
    result = jax.jit(jax.grad(lambda x, w: losses(x, w, TARGET).sum() / COUNTED, (0, 1)))(X, W)
    assert_same(result, expected[1][:2])


@pytest.mark.parametrize("outer", [jax.grad, jax.jacfwd])
def test_there_are_no_second_derivatives(outer: Any) -> None:
    inner = jax.grad(lambda x: loss_of(x, W, B))
    with pytest.raises(NotImplementedError, match=r"^linear_cross_entropy: the gradients have no derivative here"):
        outer(lambda x: inner(x).sum())(X)


def test_there_is_no_forward_mode_and_no_derivative_by_class_weights() -> None:
    with pytest.raises(TypeError, match=r"forward-mode .* custom_vjp"):
        jax.jvp(lambda x: loss_of(x, W, B), (X,), (X,))
    with pytest.raises(NotImplementedError, match=r"weight is differentiated by.*jax.lax.stop_gradient\(weight\)"):
        jax.grad(lambda w: linear_cross_entropy(X, W, TARGET, weight=w))(jnp.ones(CLASSES))
