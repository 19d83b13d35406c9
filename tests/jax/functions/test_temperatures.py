# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Temperatures of positions as arrays: losses, scores and gradients against float64 and derived bounds, row by row.

The temperatures of a call are mixed, from 1e-3 to 1e3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from nkilib.experimental.loss.cross_entropy.bounds import extended_forward_bounds, extended_gradient_bound
from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)
from nkilib.jax import cross_entropy, linear_cross_entropy, linear_token_scores
from nkilib.jax.functions import cross_entropy_derivative, linear_derivative
from tests.jax import inputs, linear_inputs
from tests.jax.inputs import CLASSES, POSITIONS, make_logits, make_probabilities, make_targets, make_weight
from tests.jax.launch_log import LaunchLog
from tests.jax.linear_inputs import FEATURES, make_operands, problem_of
from tests.jax.telling import ROUNDING

# Of one position each; 0.5 is the only one whose inverse is exact.
MIXED = np.array([1e-3, 1e3, 0.03, 0.5, 20.0, 0.7], np.float32)
UPSTREAM = np.array([1.5, -0.5, 2.0, 0.75, -1.0, 1.25], np.float32)
X, TARGET = make_logits(), make_targets(ignored=-100)
HIDDEN, WEIGHT, BIAS = make_operands()
OF_HIDDEN = linear_inputs.make_targets(ignored=-100)


def assert_rows(actual: Any, exact: Any, bound: Any, *others: Any) -> None:
    """Every row of ``actual`` is within the bounds of ``exact``, float64.

    Zeros and flipped signs are not, in any of the rows that are not within the bounds of 0, at least half of all; nor
    is a transposition, nor any of the ``others``, which are results for other temperatures.
    """
    result, exact = np.asarray(actual).astype(np.float64), np.asarray(exact, np.float64)
    rounding = ROUNDING[actual.dtype.name] * np.abs(exact)

    def fits(values: np.ndarray) -> np.ndarray:
        return (np.abs(values - exact) <= np.asarray(bound) + rounding).reshape(len(exact), -1).all(axis=1)

    assert result.shape == exact.shape
    assert fits(result).all(), np.abs(result - exact).max()
    tells = ~fits(np.zeros_like(exact))
    assert 2 * tells.sum() >= len(exact) and not fits(-exact)[tells].any()
    assert not fits(np.moveaxis(exact, 0, -1).reshape(exact.shape) if exact.ndim > 1 else exact[::-1]).all()
    for other in others:
        assert not fits(np.asarray(other)).all()


def of_loss(x: jax.Array, target: jax.Array, options: ExtendedLoss) -> tuple[Any, Any, BackwardInputs]:
    """float64 results, the gradient by UPSTREAM of the losses, and what the backward was given."""
    logits, targets = np.asarray(x), np.asarray(target)
    results = extended_forward_reference(logits, targets, logits.dtype, options)
    given = BackwardInputs(results.lse.astype(np.float32), UPSTREAM)
    return results, extended_backward_reference(logits, targets, logits.dtype, options, given), given


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_losses_of_logits(dtype: Any) -> None:
    x = make_logits(dtype=dtype)

    def total(x: jax.Array, temperature: jax.Array) -> Any:
        outputs = cross_entropy(x, TARGET, reduction="none", return_outputs=True, temperature=temperature)
        return (outputs.loss * UPSTREAM).sum(), outputs

    gradient, outputs = jax.jit(jax.grad(total, has_aux=True))(x, MIXED)
    options = ExtendedLoss(temperature=MIXED)
    other = replace(options, temperature=MIXED[::-1])
    (exact, of_x, given), (swapped, of_swapped, _) = (of_loss(x, TARGET, loss) for loss in (options, other))
    logits, targets = np.asarray(x), np.asarray(TARGET)
    bounds = extended_forward_bounds(logits, targets, logits.dtype, options, exact)
    for name in ("loss", "lse", "entropy"):
        assert_rows(getattr(outputs, name), getattr(exact, name), bounds[name], getattr(swapped, name))
    assert_rows(outputs.logprob, -exact.loss, bounds["loss"])
    assert outputs.argmax.tolist() == exact.argmax.tolist()
    assert gradient.dtype == dtype
    bound = extended_gradient_bound(logits, targets, logits.dtype, options, given)
    assert_rows(gradient, of_x, bound, of_swapped, of_x * MIXED[:, np.newaxis])


def test_class_probabilities_and_options() -> None:
    """The gradients of logits come from the kernel, those of probabilities and class weights from XLA."""
    y, weight = make_probabilities(), make_weight()
    further: dict[str, Any] = {"label_smoothing": 0.1, "logit_softcap": 5.0, "lse_square_scale": 1e-2}

    def total(x: jax.Array, y: jax.Array, weight: jax.Array, temperature: jax.Array) -> Any:
        losses = cross_entropy(x, y, weight, reduction="none", temperature=temperature, **further)
        return (losses * UPSTREAM).sum(), losses

    (of_x, of_y, of_weight), losses = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(X, y, weight, MIXED)
    options = ExtendedLoss(np.asarray(weight), temperature=MIXED, **further)
    exact, gradient, given = of_loss(X, y, options)
    arguments = (np.asarray(X), np.asarray(y), np.float32, options)
    bounds = extended_forward_bounds(*arguments, exact)
    assert_rows(losses, exact.loss, bounds["loss"])
    assert_rows(of_x, gradient, extended_gradient_bound(*arguments, given))
    below = exact.lse[:, np.newaxis] - options.scores(np.asarray(X), np.float32)
    below *= UPSTREAM[:, np.newaxis]
    room = 2.0**-20 * np.abs(options.scores(np.asarray(X), np.float32)).max(axis=1, keepdims=True) + 2.0**-19
    assert_rows(of_y, 0.9 * below * np.asarray(weight), room * np.abs(UPSTREAM[:, np.newaxis]))
    shares = 0.9 * np.asarray(y, np.float64) + 0.1 / CLASSES
    assert_rows(of_weight, (shares * below).sum(axis=0), (shares * room * 2.0).sum(axis=0))


def assert_gradients(gradients: Any, exact: Any, bounds: Any, others: Any) -> None:
    """Check the gradients of hidden states, weight and bias."""
    for gradient, values, bound, other in zip(gradients, exact, bounds, others, strict=True):
        assert_rows(gradient, values, bound, other)


def problem_at(temperatures: np.ndarray, target: jax.Array) -> LinearProblem:
    return problem_of(make_operands(), target, temperature=temperatures, logit_scale=1.5)


def test_losses_of_hidden_states() -> None:
    def total(input: jax.Array, weight: jax.Array, bias: jax.Array, temperature: jax.Array) -> Any:
        options: Any = {"reduction": "none", "logit_scale": 1.5, "temperature": temperature}
        losses = linear_cross_entropy(input, weight, OF_HIDDEN, linear_bias=bias, **options)
        return (losses * UPSTREAM).sum(), losses

    gradients, losses = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(HIDDEN, WEIGHT, BIAS, MIXED)
    results = []
    for temperatures in (MIXED, MIXED[::-1]):
        problem = problem_at(temperatures, OF_HIDDEN)
        exact = linear_forward_reference(problem)
        results.append((problem, exact, linear_gradients_and_bounds(problem, BackwardInputs(exact.lse, UPSTREAM))))
    (problem, exact, (of_operands, bounds)), (_, swapped, (of_swapped, _)) = results
    assert_rows(losses, exact.loss, linear_forward_bounds(problem)["loss"], swapped.loss)
    assert_gradients(gradients, of_operands, bounds, of_swapped)


def test_scores_of_several_ids() -> None:
    """[2, 3, K] ids, and a temperature of each of the two samples."""
    ids = linear_inputs.make_targets(POSITIONS, 3, ignored=-100)
    of_ids = np.random.default_rng(5).standard_normal((POSITIONS, 3)).astype(np.float32)
    samples = np.array([[0.004], [300.0]], np.float32)

    def total(input: jax.Array, weight: jax.Array, bias: jax.Array, temperature: jax.Array) -> Any:
        options: Any = {"linear_bias": bias, "logit_scale": 1.5, "temperature": temperature, "outputs": ("entropy",)}
        scores = linear_token_scores(input.reshape(2, 3, FEATURES), weight, ids.reshape(2, 3, 3), **options)
        assert scores.entropy is not None
        logprob, entropy = scores.logprob.reshape(POSITIONS, 3), scores.entropy.reshape(POSITIONS)
        return (logprob * of_ids).sum() + (entropy * UPSTREAM).sum(), (logprob, entropy)

    gradients, (logprob, entropy) = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(HIDDEN, WEIGHT, BIAS, samples)
    results = []
    for temperatures in (samples, samples[::-1]):
        problem = problem_at(np.repeat(temperatures[:, 0], 3), ids)
        exact = scores_forward_reference(problem)
        given = ScoreInputs(exact["lse"], of_ids, entropy=exact["entropy"], grad_entropy=UPSTREAM)
        results.append((problem, exact, scores_gradients_and_bounds(problem, given)))
    (problem, exact, (of_operands, bounds)), (_, swapped, (of_swapped, _)) = results
    room = scores_forward_bounds(problem)
    assert_rows(logprob, exact["logprob"], room["logprob"], swapped["logprob"])
    assert_rows(entropy, exact["entropy"], room["entropy"], swapped["entropy"])
    assert_gradients(gradients, of_operands, bounds, of_swapped)


def of_logits(temperature: Any, x: jax.Array = X) -> jax.Array:
    return cross_entropy(x, TARGET, reduction="none", temperature=temperature)


def of_hidden(temperature: Any, input: jax.Array = HIDDEN) -> jax.Array:
    return linear_cross_entropy(input, WEIGHT, OF_HIDDEN, reduction="none", temperature=temperature)


def logprob(temperature: Any, input: jax.Array = HIDDEN) -> jax.Array:
    return linear_token_scores(input, WEIGHT, OF_HIDDEN, outputs=(), temperature=temperature).logprob


FUNCTIONS = [of_logits, of_hidden, logprob]
Of = Callable[..., jax.Array]


def test_one_element_is_that_of_every_position() -> None:
    expected = of_logits(np.full(POSITIONS, 0.7, np.float32))
    for shape in ((), (1, 1)):
        result = of_logits(jnp.full(shape, 0.7))
        assert result.shape == expected.shape and result.tolist() == expected.tolist()
    assert of_logits(np.full((1, 1), 0.7)).tolist() == expected.tolist()  # of 64 bits
    assert of_logits(np.array(0.5)).tolist() == of_logits(0.5).tolist() == of_logits(jnp.float32(0.5)).tolist()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_values_compile_nothing(function: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of arrays run for all values, a step under jit and a call for one element; a number compiles."""
    traced: list[str] = []
    for module in (cross_entropy_derivative, linear_derivative):

        def counted(kernel: Any, *arguments: Any, launch: Any = module.launch) -> Any:
            traced.append(kernel.name)
            return launch(kernel, *arguments)

        monkeypatch.setattr(module, "launch", counted)
    steps: list[str] = []

    @jax.jit
    def step(operand: jax.Array, temperature: jax.Array) -> Any:
        steps.append("traced")
        return jax.value_and_grad(lambda operand: function(temperature, operand).sum())(operand)

    operand = X if function is of_logits else HIDDEN
    step(operand, MIXED)
    function(np.full(1, 3.0))
    traced.clear()
    losses = [float(step(operand, values)[0]) for values in (MIXED[::-1], np.full(POSITIONS, 0.25, np.float32))]
    of_one = [float(function(np.full(1, value)).sum()) for value in (0.25, 4.0)]
    assert traced == [] and len(steps) == 1
    assert len({*losses, *of_one[1:]}) == 3
    np.testing.assert_allclose(of_one[0], losses[1], rtol=1e-6)
    np.testing.assert_allclose(function(0.25).sum(), losses[1], rtol=1e-6)
    assert traced


@pytest.mark.parametrize("function", [of_logits, of_hidden])
def test_vmap_is_one_launch_for_examples_with_a_temperature_each(function: Of, launches: LaunchLog) -> None:
    operand = X if function is of_logits else HIDDEN
    temperatures = jnp.asarray([0.5, 2.0, 30.0])
    gradients = jax.vmap(jax.grad(lambda x, t: function(t, x).sum()), (None, 0))(operand, temperatures)
    assert launches.forward == launches.backward == [(3 * POSITIONS, operand.shape[1])]
    of_all = jax.jit(jax.grad(lambda x, t: function(t, x).sum()))
    expected = [of_all(operand, jnp.full(POSITIONS, temperature)) for temperature in temperatures]
    np.testing.assert_allclose(gradients, jnp.stack(expected), rtol=2e-6, atol=1e-7)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_positions_spread_over_two_devices() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spread, whole = PartitionSpec("data"), PartitionSpec()

    def total(x: jax.Array, w: jax.Array, t: jax.Array, temperature: jax.Array) -> jax.Array:
        return linear_cross_entropy(x, w, t, reduction="sum", temperature=temperature)

    expected = jax.value_and_grad(total, (0, 1))(HIDDEN, WEIGHT, OF_HIDDEN, MIXED)
    step = jax.shard_map(
        jax.value_and_grad(lambda *given: jax.lax.psum(total(*given), "data"), (0, 1)),
        mesh=mesh,
        in_specs=(spread, whole, spread, spread),
        out_specs=(whole, (spread, whole)),
    )
    result = jax.jit(step)(HIDDEN, WEIGHT, OF_HIDDEN, MIXED)
    for values, exact in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(values, exact, rtol=0, atol=2.0**-20 * float(jnp.abs(exact).max()))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_there_is_no_derivative(function: Of) -> None:
    message = r"temperature is differentiated by, .* pass jax.lax.stop_gradient\(temperature\)"
    for wrapped in (function, jax.jit(function), jax.checkpoint(function)):
        with pytest.raises(NotImplementedError, match=message):
            jax.grad(lambda t, wrapped=wrapped: wrapped(t).sum())(jnp.ones(POSITIONS))
    kept = jax.grad(lambda t: function(jax.lax.stop_gradient(t)).sum())(jnp.ones(POSITIONS))
    assert not kept.any()


OUTSIDE = np.array([0.0, -1.0, np.nan, np.inf, 2e6, 1.0], np.float32)
IS_NAN = np.array([True] * 5 + [False])


def test_traced_values_that_are_out_of_range_are_nan() -> None:
    """The rows of gradients are NaN too, even of ignored positions, and so is the gradient of an output layer."""
    is_counted = np.asarray(TARGET) != -100

    @jax.jit
    def of_rows(temperature: jax.Array) -> Any:
        def total(x: jax.Array) -> Any:
            outputs = cross_entropy(x, TARGET, reduction="none", return_outputs=True, temperature=temperature)
            return outputs.loss.sum(), outputs

        return jax.grad(total, has_aux=True)(X)

    gradient, outputs = of_rows(OUTSIDE)
    for values in (outputs.lse, outputs.entropy):
        np.testing.assert_array_equal(np.isnan(values), IS_NAN)
    for values in (outputs.loss, outputs.logprob):
        np.testing.assert_array_equal(np.isnan(values), IS_NAN & is_counted)
    np.testing.assert_array_equal(np.isnan(gradient), np.broadcast_to(IS_NAN[:, np.newaxis], X.shape))
    of_probabilities = jax.grad(lambda y, t: cross_entropy(X, y, temperature=t))
    gradient = jax.jit(of_probabilities)(make_probabilities(), OUTSIDE)
    np.testing.assert_array_equal(np.isnan(gradient), np.broadcast_to(IS_NAN[:, np.newaxis], X.shape))
    score = jax.grad(lambda x, w, t: linear_token_scores(x, w, OF_HIDDEN, temperature=t).logprob.sum(), (0, 1))
    of_input, of_weight = jax.jit(score)(HIDDEN, WEIGHT, OUTSIDE)
    np.testing.assert_array_equal(np.isnan(of_input), np.broadcast_to(IS_NAN[:, np.newaxis], HIDDEN.shape))
    assert np.isnan(of_weight).all()


ONES = np.ones(POSITIONS, np.float32)


@pytest.mark.parametrize(
    ("temperature", "error", "message"),
    [
        *(
            (np.array([1.0, wrong, *ONES[2:]]), ValueError, rf"at \[1\] must be from 1e-06 to 1000000.0, got {shown};")
            for wrong, shown in ((0.0, "0.0"), (-1.0, "-1.0"), (np.nan, "nan"), (np.inf, "inf"), (1e7, "10000000.0"))
        ),
        (np.array([1e-7, *ONES[1:]], np.float32), ValueError, r"at \[0\] must be from 1e-06 .*; pass 1.0 for none"),
        (np.full(1, 1e300), ValueError, r"at \[0\] must be from 1e-06 to 1000000.0, got 1e\+300"),
        (ONES[:4], ValueError, r"broadcasts to that of the positions, \(6,\), got \(4,\)$"),
        (ONES[:, np.newaxis], ValueError, r"broadcasts to that of the positions, \(6,\), got \(6, 1\)$"),
        (ONES.astype(np.int32), TypeError, r"a number or a floating array, got an array of int32; pass temperature.as"),
        (ONES > 0.0, TypeError, r"a number or a floating array, got an array of bool; pass temperature.astype"),
        (ONES.astype(np.complex64), TypeError, r"a number or a floating array, got an array of complex64"),
        ([1.0] * 6, TypeError, r"must be float, not list"),
    ],
)
def test_refused(temperature: Any, error: type[Exception], message: str) -> None:
    for function, name in zip(FUNCTIONS, ("cross_entropy", "linear_cross_entropy", "linear_token_scores"), strict=True):
        with pytest.raises(error, match=f"^{name}: .*temperature.*{message}"):
            function(temperature)


def test_arrays_of_jax_are_refused_where_their_values_are_known() -> None:
    with pytest.raises(ValueError, match=r"temperature at \[\] must be from 1e-06 .* got 0.0"):
        of_logits(jnp.float32(0.0))
    with pytest.raises(ValueError, match=r"got \(2,\); pass temperature.reshape\(2, 1\)$"):
        cross_entropy(inputs.make_logits(2, 3, CLASSES), make_targets((2, 3)), temperature=jnp.ones(2))
    ends = jnp.asarray([1e-6, 1e6], jnp.float32)  # the nearest numbers of float32, one of which is below
    x = jnp.asarray([[1e-6, 0.0], [1e6, 0.0]])
    losses = cross_entropy(x, jnp.asarray([0, 0]), reduction="none", temperature=ends)
    np.testing.assert_allclose(losses, np.log1p(np.exp(-1.0)), rtol=1e-6)
