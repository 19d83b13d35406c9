# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``ctc_loss`` and ``CTCLoss`` beside PyTorch: layouts of targets and lengths, what is refused, and its derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nkilib.torch import CTCLoss, ctc_loss
from tests.torch.functions.losses import CTC, Refused
from tests.torch.opinfo import call_of


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
    CTC.checked().check(calls)


REFUSED: Refused = {
    "reduction": (lambda f: f(*inputs(), reduction="avg"), "'avg' is not a valid value for reduction"),
    "dimensions": (lambda f: f(inputs()[0][None], *inputs()[1:]), "Expected 3-dimensional"),
    "empty": (lambda f: f(inputs()[0][:0], *inputs()[1:]), "must not be empty"),
    "blank": (lambda f: f(*inputs(), blank=5), "blank must be in label range, 0 to 4, got 5"),
    "sizes of lengths": (lambda f: f(*inputs()[:3], torch.tensor([1])), "target_lengths must be of size batch_size, 3"),
    "floating lengths": (lambda f: f(*inputs()[:3], torch.ones(3)), "target_lengths must be integral"),
    "mixed lengths": (lambda f: f(*inputs()[:3], (2, 1, 0)), "two tensors or two sequences"),
    "no lengths": (lambda f: f(*inputs()[:2], (6.0, 6, 6), (2, 1, 0)), "'input_lengths' must be Tensor or a sequence"),
    "lengths that are bools": (
        lambda f: f(*inputs()[:2], (True, 6, 6), (2, 1, 0)),
        "'input_lengths' must be Tensor or a sequence",
    ),
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
    CTC.check_refused(REFUSED[name])


def test_what_pytorch_takes_and_we_refuse() -> None:
    with pytest.raises(TypeError, match="targets must be integers"):
        ctc_loss(inputs()[0], inputs()[1].float(), *inputs()[2:])
    with pytest.raises(TypeError, match="'zero_infinity' must be bool"):
        ctc_loss(*inputs(), zero_infinity=1)  # type: ignore[arg-type]


def test_lengths_on_a_device_are_not_looked_at() -> None:
    x, targets, *lengths = (tensor.detach().to("meta") for tensor in inputs())
    assert ctc_loss(x, targets, *lengths).shape == ()
    assert ctc_loss(x, targets.flatten(), *lengths, reduction="none").shape == (3,)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck() -> None:
    """Check by logits, behind whose log_softmax the gradient is right; a step of 2^-7 keeps 2^-15 of a float32 loss."""
    _, *arguments = inputs(3, 2, 3)
    logits = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return ctc_loss(x.log_softmax(2), *arguments)

    assert torch.autograd.gradcheck(loss, (logits,), eps=2.0**-7, atol=5e-4, rtol=1e-3)


@pytest.mark.usefixtures("compile_afresh")
@pytest.mark.parametrize("is_flat", [False, True])
def test_a_full_graph_gives_equal_results(is_flat: bool) -> None:
    x, targets, input_lengths, target_lengths = inputs()
    arguments = (torch.cat([targets[0], targets[1, :1]]) if is_flat else targets, input_lengths, target_lengths)
    graph = torch.compile(ctc_loss, fullgraph=True, backend="aot_eager")
    result, expected = graph(x, *arguments), ctc_loss(x, *arguments)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (result, expected)))


def test_the_module_with_positional_arguments() -> None:
    x, *arguments = inputs()
    module, theirs = CTCLoss(1, "sum", True), nn.CTCLoss(1, "sum", True)
    assert vars(module).keys() == vars(theirs).keys()
    torch.testing.assert_close(module(x, *arguments), theirs(x, *arguments))
