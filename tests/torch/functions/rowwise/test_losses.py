"""Every loss of rows beside PyTorch: its samples, its errors, and what the samples lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import nkilib.torch as ours
from tests.torch.functions.rowwise.losses import LOSSES, Loss
from tests.torch.opinfo import (
    DTYPES,
    Checked,
    call_of,
    module_errors,
    module_samples,
    op_errors,
    op_samples,
)
from tests.torch.reduced import REDUCED

FORMS = [pytest.param(loss, form, id=" ".join((loss.name, *form))) for loss in LOSSES for form in loss.forms]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
every_form = pytest.mark.parametrize(("loss", "form"), FORMS)
REDUCTIONS = ("none", "sum", "mean")


def checked(loss: Loss, dtype: torch.dtype = torch.float32, is_module: bool = False) -> Checked:
    pair = (loss.our_module, loss.their_module) if is_module else (loss.ours, loss.theirs)
    return Checked(*pair, loss.values, loss.gradients, differences=(REDUCED,) if dtype != torch.float32 else ())


@every_loss
@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_pytorch(loss: Loss, dtype: torch.dtype) -> None:
    samples = op_samples(f"nn.functional.{loss.name}", dtype)
    checked(loss, dtype).check(samples)
    checked(loss, dtype).check_each_difference_is_met(samples)
    if loss.has_module_info:
        checked(loss, dtype, is_module=True).check(module_samples(loss.module, dtype))


@every_loss
def test_errors_of_pytorch(loss: Loss) -> None:
    name = f"nn.functional.{loss.name}"
    for sample, error in op_errors(name):
        checked(loss).check_refused(sample, error)
    if loss.has_module_info:
        for sample, error in module_errors(loss.module):
            checked(loss, is_module=True).check_refused(sample, error)
    checked(loss).check_float64_is_refused(op_samples(name, torch.float64))


@every_form
def test_long_and_short_rows(loss: Loss, form: Mapping[str, Any]) -> None:
    calls = [
        call_of(*loss.inputs(*shape), reduction=reduction, **loss.keywords(form, *shape))
        for shape, reduction in (((6, 1100), "none"), ((300, 12), "mean"), ((3, 4, 20), "none"))
        if len(shape) <= loss.most_dims
    ]
    checked(loss).check(calls)


@every_loss
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_shapes_types_and_layouts(loss: Loss, reduction: str) -> None:
    given, options = loss.inputs(12, 20), {"reduction": reduction, **loss.keywords(loss.forms[-1], 12, 20)}
    first, *others = given
    calls = [
        call_of(*(_of_rows(each, lambda each: each.T.contiguous().T) for each in given), **options),
        call_of(*(_of_rows(each, lambda each: each[:, ::2]) for each in given), **loss.keywords({}, 12, 10)),  # gaps
        call_of(first.detach().bfloat16().requires_grad_(), *others, **options),  # mixed types
        call_of(first, others[0][:1], *others[1:], **options),  # broadcast
        call_of(*(each[0] for each in given), **options),  # one row
    ]
    checked(loss).check([each.fresh(lambda tensor: tensor.detach()) for each in calls])


def _of_rows(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    changed = change(tensor.detach()) if tensor.dim() == 2 else tensor
    return changed.requires_grad_(tensor.requires_grad)


@every_loss
@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_elements(loss: Loss, shape: tuple[int, ...], reduction: str) -> None:
    given = [each.requires_grad_() if at == 0 else each for at, each in enumerate(loss.inputs(*shape))]
    found, expected = (f(*given, reduction=reduction) for f in (loss.ours, loss.theirs))
    torch.testing.assert_close(found, expected, equal_nan=True)
    (gradient,) = torch.autograd.grad(found.sum(), given[0])
    assert gradient.shape == shape


@every_loss
def test_bad_input_is_refused_as_pytorch_refuses_it(loss: Loss) -> None:
    given = loss.inputs(3, 4)
    calls = [
        lambda f: f(*given, reduction="avg"),
        lambda f: f(given[0], torch.ones(3, 5), *given[2:]),
        lambda f: f([1.0], *given[1:]),
    ]
    for call in calls:
        with pytest.raises(Exception, match=r".") as theirs:
            call(loss.theirs)
        with pytest.raises((theirs.type, RuntimeError, TypeError), match=rf"{loss.name}|hape"):
            call(loss.ours)


@every_loss
def test_complex_numbers_are_refused(loss: Loss) -> None:
    with pytest.raises(RuntimeError, match=rf"{loss.name}: Complex inputs not supported"):
        loss.ours(torch.ones(3, 4, dtype=torch.complex64), *loss.inputs(3, 4)[1:])


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "p": (lambda f: f.triplet_margin_loss(*LOSSES[0].inputs(3, 4), p=0.5), NotImplementedError, "p must be at least 1"),
    "margin": (lambda f: f.triplet_margin_loss(*LOSSES[0].inputs(3, 4), margin="1"), TypeError, "'margin' must be"),
    "swap": (lambda f: f.triplet_margin_loss(*LOSSES[0].inputs(3, 4), swap=2.5), TypeError, "'swap' must be bool"),
    "module's margin": (lambda f: f.TripletMarginLoss(margin=0.0), ValueError, "margin must be greater than 0"),
    "2-D target": (
        lambda f: f.cosine_embedding_loss(*LOSSES[1].inputs(3, 4)[:2], torch.ones(3, 1)),
        RuntimeError,
        "target must be 0-D or 1-D",
    ),
    "1-D inputs": (
        lambda f: f.cosine_embedding_loss(torch.ones(3), torch.ones(3), torch.ones(3)),
        RuntimeError,
        "a 1-D target goes with 2-D inputs",
    ),
    "row of one element": (
        lambda f: f.cosine_embedding_loss(torch.ones(3, 4), torch.ones(3, 1), torch.ones(3)),
        RuntimeError,
        "must have the same length",
    ),
    "no classes": (
        lambda f: f.multilabel_soft_margin_loss(torch.tensor(1.0), torch.tensor(1.0)),
        IndexError,
        "a dimension of classes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(ours)


def test_integers_as_pytorch_takes_them() -> None:
    rows = torch.arange(12).reshape(3, 4)
    calls = [
        (LOSSES[0], call_of(rows, rows.flip(0), rows.flip(1), reduction="none")),
        (LOSSES[1], call_of(rows, rows.flip(0), torch.tensor([1, -1, 0]), reduction="none")),
        (LOSSES[2], call_of(torch.randn(3, 4), rows % 2, reduction="none")),
    ]
    for loss, call in calls:
        checked(loss).check([call])


def test_classes_along_a_dimension_that_is_not_the_last() -> None:
    """PyTorch takes the last dimension of the input, which broadcasting may put elsewhere."""
    x, t = torch.randn(4, requires_grad=True), torch.rand(3, 4)
    calls = [call_of(x, t, reduction=reduction) for reduction in REDUCTIONS]
    calls += [call_of(torch.randn(3, 1), t), call_of(torch.randn(3, 4), t, torch.rand(3, 4))]
    checked(LOSSES[2]).check([each.fresh() for each in calls])


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1), (3, 4), (1,), (), (2, 1, 4), (2, 3, 4)])
def test_gradients_of_the_weight(shape: tuple[int, ...]) -> None:
    """Of every shape that broadcasts, beside the other gradients and alone, in the type of the weight."""
    x, t, weight = torch.randn(3, 4), torch.rand(3, 4), torch.rand(shape) + 0.125
    calls = [
        call_of(x.requires_grad_(flag), t.requires_grad_(flag), weight.requires_grad_(), reduction=reduction).fresh()
        for reduction in REDUCTIONS
        for flag in (False, True)
    ]
    calls.append(call_of(x.detach(), t.detach(), weight.detach().bfloat16().requires_grad_()))
    checked(LOSSES[2]).check(calls)


def test_the_gradient_of_weights_of_many_rows() -> None:
    shapes = [(300, 700), (2000, 5), (2, 3, 40)]
    calls = [
        call_of(*(each.detach() for each in LOSSES[2].inputs(*shape)), torch.rand(shape[-1]).requires_grad_())
        for shape in shapes
    ]
    checked(LOSSES[2]).check(calls)


@every_loss
@pytest.mark.parametrize(("reduction", "form"), [("none", 1), ("sum", 0)])
def test_opcheck(loss: Loss, reduction: str, form: int) -> None:
    given, keywords = loss.inputs(3, 5), loss.keywords(loss.forms[form], 3, 5)
    tensors = {name: value.reshape(1, -1) for name, value in keywords.items() if isinstance(value, Tensor)}
    options = {name: float(value) if name == "p" else value for name, value in keywords.items() if name not in tensors}
    options["reduction"] = reduction
    forward = getattr(torch.ops.nkilib, f"{loss.name}_forward").default
    torch.library.opcheck(forward, (*given, *tensors.values()), options)
    backward = getattr(torch.ops.nkilib, f"{loss.name}_backward").default
    names = [each.name for each in backward._schema.arguments if not each.kwarg_only]
    known = {**dict(zip(_names(forward), given, strict=False)), **tensors}
    known["grad_loss"] = torch.ones(3) if reduction == "none" else torch.ones(())
    if "coefficients" in names:
        known["coefficients"] = forward(*given, **options)[1]
    arguments = [known[name].detach() if name in known else None for name in names]
    torch.library.opcheck(backward, arguments, {name: value for name, value in options.items() if name != "margin"})


def _names(operator: Any) -> list[str]:
    return [each.name for each in operator._schema.arguments if not each.kwarg_only]


@every_form
@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck(loss: Loss, form: Mapping[str, Any]) -> None:
    """A step of 2^-8 in float32: the difference of two losses keeps 2^-15 of them, and the curvature costs 2^-10."""
    given, keywords = loss.inputs(2, 3), {"reduction": "sum", **loss.keywords(form, 2, 3)}
    assert torch.autograd.gradcheck(
        lambda *tensors: loss.ours(*tensors, **keywords), tuple(given), eps=2.0**-8, atol=4e-3, rtol=1e-2
    )


@every_loss
def test_only_gradients_that_are_asked_for(loss: Loss) -> None:
    for at in range(loss.differentiated):
        given = [each.detach().requires_grad_(number == at) for number, each in enumerate(loss.inputs(2, 3))]
        loss.ours(*given).backward()
        assert [each.grad is not None for each in given] == [number == at for number in range(len(given))]


@every_loss
def test_a_second_derivative_is_refused_by_name(loss: Loss) -> None:
    given = loss.inputs(3, 4)
    (gradient,) = torch.autograd.grad(loss.ours(*given), given[0], create_graph=True)
    with pytest.raises(NotImplementedError, match=rf"{loss.name}_backward: .*torch.nn.functional.{loss.name}"):
        gradient.sum().backward()


@every_loss
@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results(loss: Loss) -> None:
    given = loss.inputs(6, 5)
    wanted = given[: loss.differentiated]

    def function(*tensors: Tensor) -> Tensor:
        return loss.ours(*tensors, reduction="none")

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


@every_form
def test_the_module_has_the_options_of_the_function(loss: Loss, form: Mapping[str, Any]) -> None:
    given, keywords = [each.detach() for each in loss.inputs(2, 3)], loss.keywords(form, 2, 3)
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
    computed = leaf * 1.0
    value = loss.ours(computed, *others, inplace=True, **options)
    (gradient,) = torch.autograd.grad(value, computed)
    assert torch.equal(gradient, expected) and gradient.data_ptr() == computed.data_ptr()
    with pytest.raises(RuntimeError, match=f"{loss.name}: inplace=True would overwrite a leaf"):
        loss.ours(leaf, *others, inplace=True, **options)
    with pytest.raises(ValueError, match=f"{loss.name}: inplace=True needs"):
        loss.ours((leaf * 1.0)[::2], *(each[::2] for each in others), inplace=True, **options)


def test_small_losses_are_right() -> None:
    """Of logits far from 0, with the labels that they say."""
    x = torch.tensor([[-20.0, 20.0], [-60.0, 90.0]], requires_grad=True)
    t = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    expected = F.multilabel_soft_margin_loss(x.detach().double(), t.double(), reduction="none")
    torch.testing.assert_close(
        ours.multilabel_soft_margin_loss(x, t, reduction="none").double(), expected, rtol=1e-6, atol=0.0
    )
