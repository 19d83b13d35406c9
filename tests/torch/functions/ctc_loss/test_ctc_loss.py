"""``ctc_loss`` and ``CTCLoss`` beside PyTorch: its samples, its errors, and what the samples lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import CTCLoss, ctc_loss
from tests.torch.opinfo import (
    DTYPES,
    Budget,
    Checked,
    Sample,
    call_of,
    module_samples,
    op_samples,
    with_inputs_of,
)

ops = torch.ops.nkilib
NAME = "nn.functional.ctc_loss"
# Samples have 50 steps; each rounds logarithms of up to some 200, while the largest input is below 10. An occupancy is
# e to three of them.
VALUES = Budget(of_float32=2000.0)
GRADIENTS = Budget(of_type=2.0, of_float32=6000.0)


def theirs(log_probs: Tensor, *args: Any, **options: Any) -> Tensor:
    """PyTorch's, which has no types of 16 bits, with our types of results."""
    found = F.ctc_loss(log_probs.float() if log_probs.dtype != torch.float64 else log_probs, *args, **options)
    is_each = options.get("reduction", "mean") == "none"
    return found.to(log_probs.dtype) if is_each else found


class Theirs(nn.CTCLoss):
    """The module around it."""

    def forward(self, *args: Any) -> Tensor:
        return theirs(*args, blank=self.blank, reduction=self.reduction, zero_infinity=self.zero_infinity)


OF_FUNCTION = Checked(ctc_loss, theirs, values=VALUES, gradients=GRADIENTS)
OF_MODULE = Checked(CTCLoss, Theirs, values=VALUES, gradients=GRADIENTS)


def samples_of(dtype: torch.dtype) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    listed = op_samples(NAME, torch.float32), module_samples("CTCLoss", torch.float32)
    of_function, of_module = (with_inputs_of(each, dtype) for each in listed)
    return of_function, of_module


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_pytorch(dtype: torch.dtype) -> None:
    """Each fifth of them, another fifth for each type; the sweep has all."""
    of_function, of_module = samples_of(dtype)
    start = DTYPES.index(dtype)
    OF_FUNCTION.check(of_function[start::5])
    OF_MODULE.check(of_module[start::9])


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_samples_of_pytorch(dtype: torch.dtype) -> None:
    of_function, of_module = samples_of(dtype)
    OF_FUNCTION.check(of_function)
    OF_MODULE.check(of_module)


def test_float64_is_refused() -> None:
    OF_FUNCTION.check_float64_is_refused(op_samples(NAME, torch.float64))


def inputs(steps: int = 6, sequences: int = 3, classes: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities, padded targets and lengths."""
    generator = torch.Generator().manual_seed(steps)
    log_probs = torch.randn(steps, sequences, classes, generator=generator).log_softmax(2)
    targets = torch.randint(1, classes, (sequences, 2), generator=generator)
    lengths = torch.full((sequences,), steps), torch.tensor([2, 1, 0])[:sequences]
    return log_probs.requires_grad_(), targets, *lengths


def test_layouts_of_targets_and_lengths() -> None:
    x, targets, input_lengths, target_lengths = inputs()
    flat = torch.cat([row[:length] for row, length in zip(targets, target_lengths, strict=True)])
    alone = x.detach()[:, 0].clone().requires_grad_()
    calls = [
        call_of(x, targets.int(), input_lengths, target_lengths, reduction="none"),
        call_of(x, flat, (6, 5, 4), (2, 1, 0), reduction="none"),
        call_of(x, flat, input_lengths.int(), target_lengths.int()),
        call_of(x, targets[:, :0], [6, 6, 6], [0, 0, 0], reduction="sum"),
        call_of(alone, targets[0], torch.tensor(6), torch.tensor(2), reduction="none"),
        call_of(alone, targets[:1], (6,), (2,)),
        call_of(x.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_(), flat, (6, 5, 4), (2, 1, 0)),
        call_of(x, targets[:, [0, 0]], (2, 2, 2), (2, 2, 2), reduction="none", zero_infinity=True),
    ]
    OF_FUNCTION.check(calls)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "reduction": (lambda f: f(*inputs(), reduction="avg"), "'avg' is not a valid value for reduction"),
    "dimensions": (lambda f: f(inputs()[0][None], *inputs()[1:]), "Expected 3-dimensional"),
    "empty": (lambda f: f(inputs()[0][:0], *inputs()[1:]), "must not be empty"),
    "blank": (lambda f: f(*inputs(), blank=5), "blank must be in label range, 0 to 4, got 5"),
    "sizes of lengths": (lambda f: f(*inputs()[:3], torch.tensor([1])), "target_lengths must be of size batch_size, 3"),
    "floating lengths": (lambda f: f(*inputs()[:3], torch.ones(3)), "target_lengths must be integral"),
    "mixed lengths": (lambda f: f(*inputs()[:3], (2, 1, 0)), "two tensors or two sequences"),
    "no lengths": (lambda f: f(*inputs()[:2], (6.0, 6, 6), (2, 1, 0)), "'input_lengths' must be Tensor or a sequence"),
    "too much time": (lambda f: f(*inputs()[:2], (7, 6, 6), (2, 1, 0)), "at most 6, but got value 7"),
    "negative time": (lambda f: f(*inputs()[:2], (-1, 6, 6), (2, 1, 0)), "at least 0, but got value -1"),
    "too many labels": (lambda f: f(*inputs()[:3], torch.tensor([3, 1, 0])), "at most 2, but got value 3"),
    "negative labels": (lambda f: f(*inputs()[:3], torch.tensor([-1, 1, 0])), "at least 0, but got value -1"),
    "concatenated": (lambda f: f(inputs()[0], inputs()[1].flatten(), *inputs()[2:]), "to have size 3 at dimension 0"),
    "negative concatenated": (
        lambda f: f(inputs()[0], inputs()[1].flatten(), (6, 6, 6), (-1, 4, 3)),
        "at least 0, but got value -1",
    ),
    "batch": (lambda f: f(inputs()[0], inputs()[1][:2], *inputs()[2:]), "targets to have size 3 at dimension 0"),
    "targets 3-D": (lambda f: f(inputs()[0], inputs()[1][None], *inputs()[2:]), "Expected 1 to 2 dimensions"),
    "no tensor": (lambda f: f(inputs()[0], [1, 2], *inputs()[2:]), "must be Tensor"),
    "integers": (lambda f: f(inputs()[0].detach().long(), *inputs()[1:]), "int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(Exception, match=r".") as refused:
        call(F.ctc_loss)
    with pytest.raises(refused.type, match=message) as ours:
        call(ctc_loss)
    assert str(ours.value).startswith("ctc_loss: ")


def test_what_pytorch_takes_and_we_refuse() -> None:
    with pytest.raises(TypeError, match="targets must be integers"):
        ctc_loss(inputs()[0], inputs()[1].float(), *inputs()[2:])
    with pytest.raises(TypeError, match="'zero_infinity' must be bool"):
        ctc_loss(*inputs(), zero_infinity=1)  # type: ignore[arg-type]


def test_lengths_on_a_device_are_not_looked_at() -> None:
    x, targets, *lengths = (each.detach().to("meta") for each in inputs())
    assert ctc_loss(x, targets, *lengths).shape == ()
    assert ctc_loss(x, targets.flatten(), *lengths, reduction="none").shape == (3,)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_opcheck(reduction: str) -> None:
    given, options = inputs(2, 2, 3), {"reduction": reduction}
    torch.library.opcheck(ops.ctc_loss_forward.default, given, options)
    detached = [each.detach() for each in given]
    _, nll, alpha = ops.ctc_loss_forward(*detached, **options)
    grad = torch.ones(2 if reduction == "none" else ())
    torch.library.opcheck(ops.ctc_loss_backward.default, (*detached, nll, alpha, grad), options)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck() -> None:
    """By the logits, behind whose log_softmax the gradient is right; a step of 2^-7 keeps 2^-15 of a float32 loss."""
    _, *given = inputs(3, 2, 3)
    logits = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return ctc_loss(x.log_softmax(2), *given)

    assert torch.autograd.gradcheck(loss, (logits,), eps=2.0**-7, atol=5e-4, rtol=1e-3)


def test_a_second_derivative_is_refused_by_name() -> None:
    x, *given = inputs()
    (gradient,) = torch.autograd.grad(ctc_loss(2 * x, *given), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"ctc_loss_backward: .*torch.nn.functional.ctc_loss"):
        gradient.sum().backward()


@pytest.mark.usefixtures("compile_afresh")
@pytest.mark.parametrize("is_flat", [False, True])
def test_a_full_graph_gives_equal_results(is_flat: bool) -> None:
    x, targets, input_lengths, target_lengths = inputs()
    given = (torch.cat([targets[0], targets[1, :1]]) if is_flat else targets, input_lengths, target_lengths)
    graph = torch.compile(ctc_loss, fullgraph=True, backend="aot_eager")
    found, expected = graph(x, *given), ctc_loss(x, *given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (found, expected)))


def test_autocast_and_modules() -> None:
    x, *given = inputs()
    half = x.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        for reduction in ("none", "mean"):
            assert ctc_loss(half, *given, reduction=reduction).dtype == torch.float32
            assert F.ctc_loss(half, *given, reduction=reduction).dtype == torch.float32
    module, theirs = CTCLoss(1, "sum", True), nn.CTCLoss(1, "sum", True)
    assert vars(module).keys() == vars(theirs).keys()
    torch.testing.assert_close(module(x, *given), theirs(x, *given))
