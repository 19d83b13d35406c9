"""Every loss of elements beside PyTorch: its samples, its errors, and what the samples lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.functions.elementwise.losses import LOSSES, Loss
from tests.torch.opinfo import (
    DTYPES,
    Checked,
    Difference,
    call_of,
    module_errors,
    module_samples,
    op_errors,
    op_samples,
)
from tests.torch.reduced import REDUCED, is_reduced_half

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*they are broadcast"),
    pytest.mark.filterwarnings("ignore:Using a target size"),
]
FORMS = [pytest.param(loss, form, id=" ".join((loss.name, *form))) for loss in LOSSES for form in loss.forms]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
every_form = pytest.mark.parametrize(("loss", "form"), FORMS)
REDUCTIONS = ("none", "sum", "mean")
MANY_SAMPLES = 50


def checked(loss: Loss, dtype: torch.dtype = torch.float32, is_module: bool = False) -> Checked:
    pair = (loss.our_module, loss.their_module) if is_module else (loss.ours, loss.theirs)
    return Checked(*pair, loss.values, loss.gradients, differences=differences(loss.differs, dtype))


def differences(other: Difference | None, dtype: torch.dtype) -> list[Difference]:
    """The two that there may be, of which a sample may have both."""
    if dtype == torch.float32:
        return [] if other is None else [other]
    if other is None:
        return [REDUCED]
    alone = replace(other, where=lambda sample: other.where(sample) and not is_reduced_half(sample))
    both = replace(other, where=lambda sample: other.where(sample) and is_reduced_half(sample))
    typed = replace(REDUCED, where=lambda sample: is_reduced_half(sample) and not other.where(sample))
    return [alone, replace(both, result_dtype=torch.float32), typed]


@every_loss
@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_pytorch(loss: Loss, dtype: torch.dtype) -> None:
    """In 16 bits every fifth where there are many; the sweep has all of them."""
    name = f"nn.functional.{loss.name}"
    samples = op_samples(name, dtype)
    is_long = dtype != torch.float32 and len(samples) > MANY_SAMPLES
    checked(loss, dtype).check(samples[::5] if is_long else samples)
    if loss.differs is None:
        checked(loss, dtype).check_each_difference_is_met(samples)
    else:
        assert any(loss.differs.where(sample) for each in DTYPES for sample in op_samples(name, each))
    checked(loss, dtype, is_module=True).check(module_samples(loss.module, dtype))


@every_loss
@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_sample_of_pytorch(loss: Loss, dtype: torch.dtype) -> None:
    checked(loss, dtype).check(op_samples(f"nn.functional.{loss.name}", dtype))


@every_loss
def test_errors_of_pytorch(loss: Loss) -> None:
    name = f"nn.functional.{loss.name}"
    for sample, error in op_errors(name):
        checked(loss).check_refused(sample, error)
    for sample, error in module_errors(loss.module):
        checked(loss, is_module=True).check_refused(sample, error)
    checked(loss).check_float64_is_refused(op_samples(name, torch.float64))


@every_form
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_sizes_shapes_and_layouts(loss: Loss, form: Mapping[str, Any], reduction: str) -> None:
    large, small = (3, 200, 170), (4, 5, 6)
    calls = [call_of(*loss.inputs(*large), reduction=reduction, **loss.keywords(form, *large))]
    given, options = loss.inputs(*small), {"reduction": reduction, **loss.keywords(form, *small)}
    first, *others = given
    calls += [
        call_of(*_changed(given, lambda each: each.permute(2, 0, 1)), **_changed_options(options, (2, 0, 1))),
        call_of(first, *(each[:1] for each in others), **options),  # broadcast
    ]
    scalars = {name: value[0, 0, 0] if isinstance(value, Tensor) else value for name, value in options.items()}
    calls.append(call_of(*(each[0, 0, 0] for each in given), **scalars))
    checked(loss).check([each.fresh() for each in calls])
    mixed = call_of(first.detach().bfloat16().requires_grad_(), *others, **options)
    checked(loss, loss.mixed if not loss.keywords(form, *small).keys() & {"weight"} else torch.float32).check([mixed])
    gaps = [each.detach()[:, ::2].requires_grad_(each.requires_grad) for each in given]
    options = {name: value[:, ::2] if isinstance(value, Tensor) else value for name, value in options.items()}
    checked(loss).check([call_of(*gaps, **options)])


def _changed(tensors: list[Tensor], change: Any) -> list[Tensor]:
    return [change(each.detach()).requires_grad_(each.requires_grad) for each in tensors]


def _changed_options(options: Mapping[str, Any], order: tuple[int, ...]) -> dict[str, Any]:
    return {name: value.permute(order) if isinstance(value, Tensor) else value for name, value in options.items()}


@every_form
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_elements(loss: Loss, form: Mapping[str, Any], reduction: str) -> None:
    keywords = loss.keywords(form, 0, 3)
    found, expected = (f(*loss.inputs(0, 3), reduction=reduction, **keywords) for f in (loss.ours, loss.theirs))
    torch.testing.assert_close(found, expected, equal_nan=True)


@every_loss
def test_bad_input_is_refused_as_pytorch_refuses_it(loss: Loss) -> None:
    given = loss.inputs(3, 4)
    calls = [
        lambda f: f(*given, reduction="avg"),
        lambda f: f(given[0], *(torch.ones(5) for _ in given[1:])),
        lambda f: f([1.0], *given[1:]),
    ]
    for call in calls:
        with pytest.raises(Exception, match=r".") as theirs:
            call(loss.theirs)
        with pytest.raises((theirs.type, RuntimeError, TypeError), match=rf"{loss.name}|hape"):
            call(loss.ours)
    with pytest.raises(RuntimeError, match=rf"{loss.name}: Complex inputs not supported"):
        loss.ours(torch.ones(3, 4, dtype=torch.complex64), *given[1:])


@every_form
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_opcheck(loss: Loss, form: Mapping[str, Any], reduction: str) -> None:
    given, keywords = loss.inputs(3, 5), loss.keywords(form, 3, 5)
    tensors = {name: value for name, value in keywords.items() if isinstance(value, Tensor)}
    options = {name: value for name, value in keywords.items() if not isinstance(value, Tensor)}
    options["reduction"] = reduction
    forward = getattr(torch.ops.nkilib, f"{loss.name}_forward").default
    torch.library.opcheck(forward, (*given, *tensors.values()), options)
    names = [each.name for each in forward._schema.arguments if not each.kwarg_only]
    optional = [tensors.get(name) for name in names[len(given) :]]
    grad = torch.ones(3, 5) if reduction == "none" else torch.ones(())
    backward = getattr(torch.ops.nkilib, f"{loss.name}_backward").default
    torch.library.opcheck(backward, (*(each.detach() for each in given), *optional, grad), options)


@every_form
@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck(loss: Loss, form: Mapping[str, Any]) -> None:
    """A step of 2^-8 in float32: the difference of two losses keeps 2^-15 of them, and the curvature costs 2^-10."""
    given, keywords = loss.inputs(2, 3), {"reduction": "sum", **loss.keywords(form, 2, 3)}
    for name, value in keywords.items():
        if isinstance(value, Tensor):
            keywords[name] = value.detach()
    assert torch.autograd.gradcheck(
        lambda *tensors: loss.ours(*tensors, **keywords), tuple(given), eps=2.0**-8, atol=2e-3, rtol=1e-2
    )


@every_loss
def test_only_gradients_that_are_asked_for(loss: Loss) -> None:
    for at in range(loss.differentiated):
        given = [
            each.requires_grad_(number == at) for number, each in enumerate(_changed(loss.inputs(2, 3), Tensor.clone))
        ]
        loss.ours(*given).backward()
        assert [each.grad is not None for each in given] == [number == at for number in range(len(given))]


@every_loss
def test_a_second_derivative_is_refused_by_name(loss: Loss) -> None:
    given = loss.inputs(3)
    (gradient,) = torch.autograd.grad(loss.ours(*given), given[0], create_graph=True)
    with pytest.raises(NotImplementedError, match=rf"{loss.name}_backward: .*torch.nn.functional.{loss.name}"):
        gradient.sum().backward()


@every_loss
@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results(loss: Loss) -> None:
    given = loss.inputs(3, 4, 5)
    wanted = given[: loss.differentiated]

    def function(*tensors: Tensor) -> Tensor:
        return loss.ours(*(each.permute(2, 0, 1) for each in tensors), reduction="none")

    found, expected = torch.compile(function, fullgraph=True, backend="aot_eager")(*given), function(*given)
    assert torch.equal(found, expected)
    for gradient, other in zip(*(torch.autograd.grad(each.sum(), wanted) for each in (found, expected)), strict=True):
        assert torch.equal(gradient, other)


@every_loss
def test_autocast(loss: Loss) -> None:
    given = [each.detach().bfloat16() for each in loss.inputs(2, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        for reduction in REDUCTIONS:
            found, expected = (f(*given, reduction=reduction) for f in (loss.ours, loss.theirs))
            assert found.dtype == (expected.dtype if reduction == "none" else torch.float32)


@every_loss
def test_the_module_has_the_options_of_the_function(loss: Loss) -> None:
    given = [each.detach() for each in loss.inputs(2, 3)]
    for form in loss.module_forms:
        keywords = loss.keywords(form, 2, 3)
        for reduction in REDUCTIONS:
            found, expected = (
                module(reduction=reduction, **keywords)(*given) for module in (loss.our_module, loss.their_module)
            )
            torch.testing.assert_close(found, expected)


@every_form
def test_in_place(loss: Loss, form: Mapping[str, Any]) -> None:
    """The gradient has the memory of the first tensor."""
    first, *others = (each.detach() for each in loss.inputs(6, 5))
    options = {"reduction": "sum", **loss.keywords(form, 6, 5)}
    leaf = first.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss.ours(leaf, *others, **options), leaf)
    leaf = first.clone().requires_grad_()
    computed = leaf * 1.0
    value = loss.ours(computed, *others, inplace=True, **options)
    (gradient,) = torch.autograd.grad(value, computed)
    assert torch.equal(gradient, expected) and gradient.data_ptr() == computed.data_ptr()
    with pytest.raises(RuntimeError, match=f"{loss.name}: inplace=True would overwrite a leaf"):
        loss.ours(leaf, *others, inplace=True, **options)
    with pytest.raises(ValueError, match=f"{loss.name}: inplace=True needs"):
        loss.ours((leaf * 1.0)[:, ::2], *(each[:, ::2] for each in others), inplace=True)
