# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Numbers, flags and tensors as every function takes them; symbols of a graph; and transforms of functions."""

from __future__ import annotations

from inspect import isfunction, signature
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import nkilib.torch as ours

X, T = torch.randn(4, 5), torch.rand(4, 5)
CLASSES = torch.tensor([1, 2, 0, 2])

NUMPY: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "huber_loss": ((X, T), {"delta": np.float32(0.5)}),
    "smooth_l1_loss": ((X, T), {"beta": np.float64(0.5)}),
    "multi_margin_loss": ((X, CLASSES), {"margin": np.int64(1)}),
    "triplet_margin_loss": ((X, T, -T), {"margin": np.float32(0.5), "p": np.int64(2)}),
    "cosine_embedding_loss": ((X, T, torch.ones(4)), {"margin": np.float32(0.5)}),
    "nll_loss": ((X, CLASSES), {"ignore_index": np.int64(2)}),
    "ctc_loss": (
        (X[:, None].log_softmax(2), torch.tensor([[1]]), list(np.array([4])), list(np.array([1]))),
        {"blank": np.int64(0)},
    ),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numbers_of_numpy(name: str) -> None:
    arguments, options = NUMPY[name]
    torch.testing.assert_close(getattr(ours, name)(*arguments, **options), getattr(F, name)(*arguments, **options))


@pytest.mark.parametrize("value", ["1", None, 1j, True])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(TypeError, match=r"huber_loss: argument 'delta' must be float, not "):
        ours.huber_loss(X, T, delta=value)


@pytest.mark.parametrize("is_dynamic", [None, True])
@pytest.mark.parametrize(
    ("module", "option", "target"),
    [
        ("HuberLoss", "delta", T),
        ("SmoothL1Loss", "beta", T),
        ("PoissonNLLLoss", "eps", T),
        ("HingeEmbeddingLoss", "margin", T),
        ("MultiMarginLoss", "margin", CLASSES),
    ],
)
def test_a_graph_takes_another_value_of_an_option(module: str, option: str, target: Tensor, is_dynamic: Any) -> None:
    """The compiler makes a symbol of the second value."""
    torch.compiler.reset()
    for value in (1.0, 0.5, 0.25):
        loss = getattr(ours, module)(**{option: value})
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=is_dynamic)
        torch.testing.assert_close(compiled(X, target), loss(X, target), rtol=1e-6, atol=0.0)


WHOLE, OTHERS = torch.tensor([1, 5]), torch.tensor([2, 3])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("l1_loss", (WHOLE, OTHERS)),
        ("margin_ranking_loss", (WHOLE, OTHERS, torch.tensor([1, -1]))),
        ("poisson_nll_loss", (WHOLE, OTHERS)),
        ("poisson_nll_loss", (WHOLE, torch.rand(2))),
        ("hinge_embedding_loss", (WHOLE, torch.tensor([1, -1]))),
        ("gaussian_nll_loss", (WHOLE, OTHERS, torch.ones(2))),
        ("gaussian_nll_loss", (WHOLE, torch.rand(2), torch.ones(2))),
    ],
)
def test_integers_are_computed_in_float32(name: str, arguments: tuple[Tensor, ...]) -> None:
    result = getattr(ours, name)(*arguments, reduction="sum")
    known = getattr(F, name)(*arguments, reduction="sum")
    torch.testing.assert_close(result, known, check_dtype=False)
    assert result.dtype == torch.float32


def test_variances_are_no_integers() -> None:
    """Integers in the other tensors are computed in float32, as above."""
    with pytest.raises(RuntimeError, match="gaussian_nll_loss: Integral inputs not supported, got var"):
        ours.gaussian_nll_loss(torch.rand(2), torch.rand(2), WHOLE)


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss"])
def test_integers_alone_are_refused_as_in_pytorch(name: str) -> None:
    with pytest.raises(NotImplementedError):
        getattr(F, name)(WHOLE, OTHERS)
    with pytest.raises(NotImplementedError, match=rf"{name}: not implemented for integers alone.*input\.float\(\)"):
        getattr(ours, name)(WHOLE, OTHERS)


@pytest.mark.parametrize("option", ["weight", "pos_weight"])
def test_counts_are_weights(option: str) -> None:
    counts = {option: torch.tensor([1, 2, 3, 4, 5])}
    result = ours.binary_cross_entropy_with_logits(X, T, **counts)
    torch.testing.assert_close(result, F.binary_cross_entropy_with_logits(X, T, **counts))


@pytest.mark.parametrize("name", ["triplet_margin_loss", "cosine_embedding_loss", "mse_loss"])
def test_gradients_of_what_was_mapped(name: str) -> None:
    batch = torch.randn(3, 4, 5, requires_grad=True)
    others = {"triplet_margin_loss": (T, -T), "cosine_embedding_loss": (T, torch.ones(4)), "mse_loss": (T,)}[name]

    def gradient(function: Any) -> Tensor:
        return torch.autograd.grad(torch.vmap(lambda x: function(x, *others))(batch).sum(), batch)[0]

    torch.testing.assert_close(gradient(getattr(ours, name)), gradient(getattr(F, name)))


def test_derivatives_of_torch_func_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match=r"mse_loss: input is differentiated by torch\.func .* use backward"):
        torch.func.grad(lambda x: ours.mse_loss(x, T))(X)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_rows_of_one_element_that_pytorch_does_not_repeat(is_swapped: bool) -> None:
    """A pair of such rows has a distance of one difference, whatever the third tensor has."""
    one, rows = torch.zeros(2, 1), torch.ones(2, 4)
    options = {"margin": 5.0, "swap": is_swapped}
    for refused in ((one, one, rows), (one, rows, one)):
        with pytest.raises(NotImplementedError, match=r"rows of anchor and .* must have 4 elements"):
            ours.triplet_margin_loss(*refused, **options)
    if is_swapped:
        with pytest.raises(NotImplementedError, match=r"rows of positive and negative must have 4 elements"):
            ours.triplet_margin_loss(rows, one, one + 0.5, **options)
    else:
        inputs = rows, one, one + 0.5
        torch.testing.assert_close(
            ours.triplet_margin_loss(*inputs, **options), F.triplet_margin_loss(*inputs, **options)
        )


# The tensors of a small call of every public function.
W, TARGETS = torch.randn(7, 16), torch.tensor([1, 2, 0, 2])
HIDDEN, SIGN = torch.randn(4, 16), torch.tensor([1.0, -1.0, 1.0, -1.0])
MINIMAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("huber_loss", "kl_div", "l1_loss", "mse_loss", "multilabel_soft_margin_loss"), (X, T)),
    **dict.fromkeys(("binary_cross_entropy_with_logits", "poisson_nll_loss", "smooth_l1_loss"), (X, T)),
    **dict.fromkeys(("cross_entropy", "multi_margin_loss", "nll_loss"), (X, TARGETS)),
    **dict.fromkeys(("token_scores", "vocab_parallel_cross_entropy"), (X, TARGETS)),
    **dict.fromkeys(("linear_cross_entropy", "linear_token_scores"), (HIDDEN, W, TARGETS)),
    **dict.fromkeys(("log_softmax", "softmax"), (X, 1)),
    "vocab_parallel_linear_cross_entropy": (HIDDEN, W, TARGETS),
    "linear_distillation_loss": (HIDDEN, W, -HIDDEN, W, TARGETS),
    "distillation_loss": (X, T),
    "binary_cross_entropy": (T, T),
    "cosine_embedding_loss": (X, T, SIGN),
    "ctc_loss": (X[:, None].log_softmax(2), torch.tensor([[1]]), [4], [1]),
    "gaussian_nll_loss": (X, T, T),
    "hinge_embedding_loss": (X, T.sign()),
    "int32_targets": (TARGETS, 5),
    "margin_ranking_loss": (X, T, T.sign()),
    "multilabel_margin_loss": (X, torch.zeros(4, 5, dtype=torch.int64)),
    "triplet_margin_loss": (X, T, -T),
}
OF_MODELS = ("fuse_linear_loss", "fused_calls")  # tests/torch/lazy_logits
FUNCTIONS = [name for name in ours.__all__ if isfunction(getattr(ours, name)) and name not in OF_MODELS]
# Options that a public function takes as numbers of Python, or one of numpy or of a tensor without dimensions.
FLOATS = {
    **dict.fromkeys(("label_smoothing", "lse_square_scale", "logit_scale", "teacher_logit_scale", "temperature"), 0.5),
    **dict.fromkeys(("beta", "delta", "eps", "margin"), 0.5),
    **dict.fromkeys(("logit_softcap", "teacher_logit_softcap", "p"), 2.0),
}
INTEGERS = {"blank": 2, "dim": 1, "ignore_index": 2}


def options_of(name: str, *kinds: str) -> list[str]:
    """Return the names of the options with one of these annotations."""
    parameters = signature(getattr(ours, name)).parameters.values()
    return [each.name for each in parameters if str(each.annotation) in (*kinds, *(f"{kind} | None" for kind in kinds))]


def called(name: str, **options: Any) -> list[Tensor]:
    """Return the tensors of a result; an option may replace the second argument of softmax."""
    arguments = MINIMAL[name][:1] if "dim" in options else MINIMAL[name]
    result = getattr(ours, name)(*arguments, **options)
    return [each for each in ([result] if isinstance(result, Tensor) else result) if each is not None]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_flag_is_refused(name: str) -> None:
    """Every flag of every function, also ``"no"``, which Python takes for true."""
    for option in options_of(name, "bool", "<class 'bool'>"):
        for value in ("no", 1, np.True_, torch.tensor(True)):
            kind = type(value).__name__
            with pytest.raises(TypeError, match=f"{name}: argument '{option}' must be bool, not {kind}"):
                called(name, **{option: value})


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not name.startswith("vocab_parallel")])
def test_numbers_as_pytorch_takes_them(name: str) -> None:
    """Numbers of numpy and tensors without dimensions are numbers; a bool, a tensor that requires grad and one with
    dimensions are not. A tensor of temperatures is an input, which tests/torch/losses/test_temperatures.py refuses.
    """
    floats = [option for option in options_of(name, "float") if option in FLOATS]
    integers = [option for option in options_of(name, "int") if option in INTEGERS]
    for option in floats + integers:
        is_float = option in floats
        value: Any = FLOATS[option] if is_float else INTEGERS[option]
        expected = called(name, **{option: value})
        for same in (torch.tensor(value), np.float32(value) if is_float else np.int16(value)):
            torch.testing.assert_close(called(name, **{option: same}), expected, rtol=0.0, atol=0.0, equal_nan=True)
        kind = "float" if is_float else "int"
        wrong: list[Any] = [torch.tensor(True), np.True_, "1", torch.tensor([0.5, 0.5])]
        wrong += [] if option == "label_smoothing" else [True]  # which PyTorch takes there
        wrong += [torch.tensor(0.5, requires_grad=True)] if is_float else [1.0, torch.tensor(1.0)]
        if option == "temperature":
            wrong = [value for value in wrong if not isinstance(value, Tensor)]
        for other in wrong:
            with pytest.raises(TypeError, match=f"{name}: argument '{option}' must be {kind}, not "):
                called(name, **{option: other})


def test_a_number_that_is_no_element_is_refused_with_the_remedy() -> None:
    for value in (torch.tensor(0.5, requires_grad=True), torch.tensor([0.5])):
        with pytest.raises(TypeError, match=r"must be float, not Tensor; pass delta\.item\(\)"):
            ours.huber_loss(X, T, delta=value)  # type: ignore[arg-type]


def test_a_tensor_as_an_option_breaks_a_graph_and_is_taken() -> None:
    torch.compiler.reset()

    def loss(x: Tensor, delta: Any) -> Tensor:
        return ours.huber_loss(x, T, delta=delta)

    torch.testing.assert_close(torch.compile(loss, backend="eager")(X, torch.tensor(0.5)), loss(X, 0.5))


class DLPack:
    """An array of another library."""

    def __dlpack__(self) -> None: ...


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_array_or_a_list_is_refused_with_the_remedy(name: str) -> None:
    first, *others = MINIMAL[name]
    for value, remedy in (
        (first.float().numpy(), r"ndarray; pass torch\.from_numpy\(\w+\)"),
        (first.tolist(), r"list; pass torch\.tensor\(\w+\)"),
        (DLPack(), r"DLPack; pass torch\.from_dlpack\(\w+\)"),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: .* (must be Tensor, not|type, got) {remedy}$"):
            getattr(ours, name)(value, *others)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "int32_targets"])
def test_tensors_without_strides_are_refused(name: str) -> None:
    first, *others = MINIMAL[name]
    nested = torch.nested.nested_tensor([first] if first.dim() < 2 else list(first), layout=torch.jagged)
    for tensor, remedy in (
        (first.to_sparse(), r"to_dense\(\)"),
        (first.to_mkldnn(), r"to_dense\(\)"),
        (nested, r"to_padded_tensor\(0\.0\)"),
    ):
        with pytest.raises(NotImplementedError, match=rf"{name}: \w+ must be a dense tensor, got .*{remedy}"):
            getattr(ours, name)(tensor, *others)


BOOL = torch.tensor([True, False, True, True])


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss", "multi_margin_loss", "token_scores"])
def test_labels_that_are_bools(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"to be an integer type, but got torch\.bool.*\.long\(\)") as refused:
        getattr(ours, name)(X, BOOL)
    assert "probabilities" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "at", "is_taken"),
    [
        *(("l1_loss", at, False) for at in (0, 1)),
        *(("mse_loss", at, True) for at in (0, 1)),
        *(("margin_ranking_loss", at, False) for at in (0, 1, 2)),
        *(("triplet_margin_loss", at, False) for at in (0, 1, 2)),
        ("gaussian_nll_loss", 1, False),
        ("hinge_embedding_loss", 0, False),
        ("hinge_embedding_loss", 1, True),
        ("multilabel_soft_margin_loss", 1, False),
        ("cosine_embedding_loss", 2, True),
    ],
)
def test_tensors_of_bools_as_pytorch_takes_them(name: str, at: int, is_taken: bool) -> None:
    """It does not subtract them."""
    arguments = [tensor > 0.5 if number == at else tensor for number, tensor in enumerate(MINIMAL[name])]
    if is_taken:
        torch.testing.assert_close(getattr(ours, name)(*arguments), getattr(F, name)(*arguments))
        return
    with pytest.raises(RuntimeError):
        getattr(F, name)(*arguments)
    with pytest.raises(RuntimeError, match=rf"{name}: bool inputs not supported, got \w+ of torch\.bool; pass"):
        getattr(ours, name)(*arguments)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("rows", [0, 3])
def test_no_classes(rows: int, reduction: str) -> None:
    """Class probabilities of no classes, with gradients of all three tensors."""
    results = []
    for function in (ours.cross_entropy, F.cross_entropy):
        leaves = [torch.zeros(rows, 0).requires_grad_(), torch.zeros(rows, 0).requires_grad_(), torch.zeros(0)]
        leaves[2].requires_grad_()
        loss = function(*leaves, reduction=reduction, label_smoothing=0.1)
        results.append((loss, *torch.autograd.grad(loss.sum(), leaves)))
    torch.testing.assert_close(*results, equal_nan=True)
