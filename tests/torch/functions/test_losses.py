# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every loss beside PyTorch: its samples, its errors, and what the samples lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.functions.losses import CTC, ELEMENTWISE, INDEXED, LOSSES, NLL, REDUCTIONS, ROWWISE, Loss, forms_of
from tests.torch.opinfo import DTYPES, Sample, module_errors, op_errors, op_samples

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*they are broadcast"),
    pytest.mark.filterwarnings("ignore:Using a target size"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
every_form = pytest.mark.parametrize(("loss", "form"), forms_of(LOSSES))
MANY_SAMPLES = 50


def _some(loss: Loss, dtype: torch.dtype, samples: Sequence[Sample], step: int) -> Sequence[Sample]:
    """Choose samples: another part of ctc_loss's for each type; in 16 bits every fifth where there are many."""
    if loss is CTC:
        return samples[DTYPES.index(dtype) :: step]
    return samples[::5] if dtype != torch.float32 and len(samples) > MANY_SAMPLES else samples


@every_loss
@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_pytorch(loss: Loss, dtype: torch.dtype) -> None:
    """Some where there are many; the sweep has all of them."""
    samples = loss.samples(dtype)
    loss.checked(dtype).check(_some(loss, dtype, samples, 5))
    if loss.differs is None:
        loss.checked(dtype).check_each_difference_is_met(samples)
    else:
        assert any(loss.differs.where(sample) for dtype in DTYPES for sample in loss.samples(dtype))
    if loss.has_module_info:
        loss.checked(dtype, is_module=True).check(_some(loss, dtype, loss.module_samples(dtype), 9))


@every_loss
@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_sample_of_pytorch(loss: Loss, dtype: torch.dtype) -> None:
    loss.checked(dtype).check(loss.samples(dtype))
    if loss.has_module_info:
        loss.checked(dtype, is_module=True).check(loss.module_samples(dtype))


@every_loss
def test_errors_of_pytorch(loss: Loss) -> None:
    """But for the one that it lists for NLLLoss, a weight of another type, which is taken here."""
    name = f"nn.functional.{loss.name}"
    for sample, error in op_errors(name):
        loss.checked().check_refused(sample, error)
    if loss.has_module_info and loss is not NLL:
        for sample, error in module_errors(loss.module):
            loss.checked(is_module=True).check_refused(sample, error)
    loss.checked().check_float64_is_refused(op_samples(name, torch.float64))


@every_loss
def test_bad_input_is_refused_as_pytorch_refuses_it(loss: Loss) -> None:
    inputs = loss.inputs(*loss.shape)
    calls = [
        lambda f: f(*inputs, reduction="avg"),
        lambda f: f(inputs[0], *(torch.ones(9) for _ in inputs[1:])),
        lambda f: f(inputs[0], torch.ones(*loss.shape[:-1], 9), *inputs[2:]),
        lambda f: f([1.0], *inputs[1:]),
    ]
    for call in calls:
        with pytest.raises(Exception, match=r".") as theirs:
            call(loss.theirs)
        with pytest.raises((theirs.type, RuntimeError, TypeError), match=rf"{loss.name}|hape"):
            call(loss.ours)


@pytest.mark.parametrize("loss", (*ELEMENTWISE, *ROWWISE), ids=lambda loss: loss.name)
def test_complex_numbers_are_refused(loss: Loss) -> None:
    with pytest.raises(RuntimeError, match=rf"{loss.name}: Complex inputs not supported"):
        loss.ours(torch.ones(loss.shape, dtype=torch.complex64), *loss.inputs(*loss.shape)[1:])


@every_form
@pytest.mark.parametrize("is_reduced", [False, True])
def test_opcheck(loss: Loss, form: Mapping[str, Any], is_reduced: bool) -> None:
    """Tensors by the names that the schemas have for them; what the backward takes besides, the forward returns."""
    shape = (*loss.shape[:-1], 5)
    reduction = ("mean" if loss in INDEXED else "sum") if is_reduced else "none"
    inputs, keywords = loss.inputs(*shape), {"reduction": reduction, **loss.keywords(form, *shape)}
    forward, *backwards = (
        getattr(torch.ops.nkilib, f"{loss.name}_{way}").default
        for way in ("forward", "backward", *(() if loss is CTC else ("backward_",)))
    )
    tensors, options = _arguments(forward, inputs, keywords)
    torch.library.opcheck(forward, list(tensors.values()), options)
    detached = {name: None if tensor is None else tensor.detach() for name, tensor in tensors.items()}
    results = forward(*detached.values(), **options)
    value, *saved = results if isinstance(results, tuple) else (results,)
    for backward in backwards:
        names, keyword_only = _names(backward)
        rest = iter(saved)
        known = {name: value.clone() if value is not None else None for name, value in detached.items()}
        known["grad_loss"] = torch.ones_like(value)
        arguments = [known[name] if name in known else next(rest) for name in names]
        chosen = {name: value for name, value in options.items() if name in keyword_only}
        torch.library.opcheck(backward, arguments, chosen)


def _names(operator: Any) -> tuple[list[str], list[str]]:
    """Return the names of its tensors, and of its options."""
    arguments = operator._schema.arguments
    tensors = [argument.name for argument in arguments if not argument.kwarg_only]
    return tensors, [argument.name for argument in arguments if argument.kwarg_only]


def _arguments(
    operator: Any, inputs: Sequence[Tensor], keywords: Mapping[str, Any]
) -> tuple[dict[str, Tensor | None], dict[str, Any]]:
    """The tensors and the options of a forward."""
    tensors: dict[str, Tensor | None] = dict.fromkeys(_names(operator)[0])
    tensors |= dict(zip(tensors, inputs, strict=False))
    options = {}
    for name, value in keywords.items():
        if not isinstance(value, Tensor):
            options[name] = float(value) if f"float {name}" in str(operator._schema) else value
        elif "class_weight" in tensors:
            tensors["class_weight"] = value
        else:
            tensors[name] = value.reshape(1, -1) if value.dim() == 1 else value
    return tensors, options


@pytest.mark.parametrize(("loss", "form"), forms_of([loss for loss in LOSSES if loss.gradcheck is not None]))
@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck(loss: Loss, form: Mapping[str, Any]) -> None:
    inputs, keywords = loss.inputs(2, 3), {"reduction": "sum", **loss.keywords(form, 2, 3)}
    steps = loss.gradcheck
    assert steps is not None
    wanted, others = inputs[: loss.differentiated], inputs[loss.differentiated :]
    assert torch.autograd.gradcheck(
        lambda *tensors: loss.ours(*tensors, *others, **keywords), tuple(wanted), **steps._asdict()
    )


@every_loss
def test_only_gradients_that_are_asked_for(loss: Loss) -> None:
    for at in range(loss.differentiated):
        inputs = [
            tensor.detach().requires_grad_(number == at) for number, tensor in enumerate(loss.inputs(*loss.shape))
        ]
        loss.ours(*inputs).backward()
        assert [argument.grad is not None for argument in inputs] == [number == at for number in range(len(inputs))]


@every_loss
def test_a_second_derivative_is_refused_by_name(loss: Loss) -> None:
    for at in range(loss.differentiated):
        inputs = loss.inputs(*loss.shape)
        computed = [1.0 * argument if argument.requires_grad else argument for argument in inputs]
        (gradient,) = torch.autograd.grad(loss.ours(*computed), inputs[at], create_graph=True)
        with pytest.raises(NotImplementedError, match=rf"{loss.name}_backward: .*torch.nn.functional.{loss.name}"):
            gradient.sum().backward()


@every_loss
@pytest.mark.usefixtures("compile_afresh")
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_full_graph_gives_equal_results(loss: Loss, reduction: str) -> None:
    """The tensors of elementwise losses lie in memory in another order."""
    inputs = loss.inputs(3, 4, 5) if loss in ELEMENTWISE else loss.inputs(*loss.shape)
    wanted = inputs[: loss.differentiated]

    def function(*tensors: Tensor) -> Tensor:
        turned = [tensor.permute(2, 0, 1) for tensor in tensors] if loss in ELEMENTWISE else tensors
        return loss.ours(*turned, reduction=reduction)

    result, expected = torch.compile(function, fullgraph=True, backend="aot_eager")(*inputs), function(*inputs)
    _assert_same(loss, result, expected)
    for gradient, other in zip(*(torch.autograd.grad(item.sum(), wanted) for item in (result, expected)), strict=True):
        _assert_same(loss, gradient, other)


def _assert_same(loss: Loss, result: Tensor, expected: Tensor) -> None:
    """Require bitwise identical results, but those of CTC within the tolerance of PyTorch."""
    if loss is CTC:
        torch.testing.assert_close(result, expected)
    else:
        _assert_equal(result, expected)


def _assert_equal(result: Tensor, expected: Tensor) -> None:
    assert torch.equal(result, expected)


@every_loss
def test_autocast(loss: Loss) -> None:
    """Losses that are not reduced have PyTorch's type; in float32 where it has the loss in no other one."""
    first, *others = (tensor.detach() for tensor in loss.inputs(*loss.shape))
    inputs = [tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in (first, *others)]
    with torch.autocast("cpu", torch.bfloat16):
        for reduction in REDUCTIONS:
            result, expected = (f(*inputs, reduction=reduction) for f in (loss.ours, loss.theirs))
            is_pytorchs = reduction == "none" and not loss.lacks_half
            assert result.dtype == (expected.dtype if is_pytorchs else torch.float32)
            assert result.shape == expected.shape


@every_loss
def test_the_module_has_the_options_of_the_function(loss: Loss) -> None:
    inputs = [tensor.detach() for tensor in loss.inputs(*loss.shape)]
    for form in loss.forms if loss.module_forms is None else loss.module_forms:
        keywords = loss.keywords(form, *loss.shape)
        for reduction in REDUCTIONS:
            mine, theirs = (item(reduction=reduction, **keywords) for item in (loss.our_module, loss.their_module))
            assert mine.state_dict().keys() == theirs.state_dict().keys()
            assert vars(mine).keys() - {"inplace"} >= vars(theirs).keys() - {"size_average", "reduce"}
            torch.testing.assert_close(mine(*inputs), theirs(*inputs))


IN_PLACE = [loss for loss in LOSSES if loss is not CTC]


@pytest.mark.parametrize(("loss", "form"), forms_of(IN_PLACE))
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_in_place(loss: Loss, form: Mapping[str, Any], reduction: str, dtype: torch.dtype) -> None:
    """The gradient has the memory of the first tensor."""
    first, *others = (_to(tensor.detach(), dtype) for tensor in loss.inputs(*loss.shape))
    options = {"reduction": reduction, **loss.keywords(form, *loss.shape)}
    leaf = first.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss.ours(leaf, *others, **options).sum(), leaf)
    computed = leaf * 1.0
    value = loss.ours(computed, *others, inplace=True, **options)
    (gradient,) = torch.autograd.grad(value.sum(), computed)
    assert torch.equal(gradient, expected) and gradient.data_ptr() == computed.data_ptr()


def _to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("loss", IN_PLACE, ids=lambda loss: loss.name)
def test_modules_work_in_place(loss: Loss) -> None:
    first, *others = (tensor.detach() for tensor in loss.inputs(*loss.shape))
    leaf = first.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss.ours(leaf, *others), leaf)
    computed = leaf * 1.0
    loss.our_module(inplace=True)(computed, *others).backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, expected) and torch.equal(computed.detach(), expected)


@pytest.mark.parametrize("loss", IN_PLACE, ids=lambda loss: loss.name)
def test_in_place_of_what_the_kernel_would_copy_is_refused(loss: Loss) -> None:
    first, *others = loss.inputs(*loss.shape)
    with pytest.raises(RuntimeError, match=f"{loss.name}: inplace=True would overwrite a leaf"):
        loss.ours(first, *others, inplace=True)
    with pytest.raises(TypeError, match=f"{loss.name}: argument 'inplace' must be bool, not int"):
        loss.ours(first * 1.0, *others, inplace=1)
    with pytest.raises(ValueError, match=f"{loss.name}: inplace=True needs"):
        loss.ours((first * 1.0)[::2], *(item[::2] for item in others), inplace=True)
    if loss not in ROWWISE:
        narrow = loss.inputs(loss.shape[0], -(-loss.shape[1] // 2))[1:]
        with pytest.raises(ValueError, match=f"{loss.name}: inplace=True needs"):
            loss.ours((first * 1.0)[:, ::2], *narrow, inplace=True)


@pytest.mark.parametrize("loss", INDEXED, ids=lambda loss: loss.name)
def test_values_on_a_device_are_not_looked_at(loss: Loss) -> None:
    assert loss.ours(*(tensor.detach().to("meta") for tensor in loss.inputs(*loss.shape))).shape == ()
