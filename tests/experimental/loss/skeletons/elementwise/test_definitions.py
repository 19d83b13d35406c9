# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every elementwise loss against float64, within its derived bounds: types, shapes, cores, in place, wrong results; and
a loss stays small: what is not its own arithmetic belongs to the skeleton.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.host.error_bounds import Exact
from nkilib.core.host.options import REDUCTIONS
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.skeletons.elementwise import host as reference
from nkilib.experimental.loss.skeletons.elementwise.host import ElementwiseLoss
from nkilib.nki import nl
from nkilib.simulator import profile, spec
from nkilib.verify.kernels.elementwise import ENTRIES, ElementwiseEntry

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
SHAPES = [(1,), (127,), (128,), (3, 43), (2, 3, 5, 7), (129, 1030), (1, 66000)]
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def is_within(result: Any, exact: Exact) -> bool:
    """Tell whether every number is within its bound."""
    return bool(error_over_bound(result, exact.value, exact.error).max() <= 1.0)


def of_both_cores(kernel: Any, **arguments: Any) -> tuple[Any, ...]:
    """Launch a kernel and return its results, which must be bitwise identical on one core and on two."""
    results = []
    for cores in (1, 2):
        returned = kernel[cores](**arguments)
        results.append(returned if isinstance(returned, tuple) else (returned,))
    for one, two in zip(*results, strict=True):
        assert one.tobytes() == two.tobytes()
    return results[1]


@every_entry
@settings(deadline=None, max_examples=5)
@given(
    shape=st.sampled_from(SHAPES),
    types=st.tuples(*[st.sampled_from(sorted(TYPES))] * 2),
    reduction=st.sampled_from(REDUCTIONS),
    buffers=st.sampled_from([2, 3]),
)
def test_losses_and_gradients(
    entry: ElementwiseEntry, shape: tuple[int, ...], types: tuple[str, str], reduction: str, buffers: int
) -> None:
    tensors = entry.made(shape, tuple(TYPES[name] for name in types))
    options = {"reduction": reduction, "columns": 512, "buffers": buffers}
    (result,) = of_both_cores(entry.forward, **entry.arguments(tensors), **options)
    if reduction == "none":
        assert result.dtype == TYPES[types[0]] and result.shape == shape
        assert is_within(result, reference.losses(entry.reference, tensors, result.dtype))
    else:
        assert result.dtype == np.float32
        assert is_within(result, reference.reduced(entry.reference, tensors, reduction, columns=512))
    upstream = np.full(shape if reduction == "none" else (1,), -1.75, np.float32)
    gradients = of_both_cores(entry.backward, **entry.backward_arguments(tensors, upstream), **options)
    exact = reference.gradients(entry.reference, tensors, upstream, reduction)
    for name, gradient in zip(entry.gradients, gradients, strict=True):
        assert gradient.dtype == tensors[name].dtype and gradient.shape == shape
        assert is_within(gradient, exact[name])


@every_entry
def test_the_bounds_tell_wrong_results(entry: ElementwiseEntry) -> None:
    tensors = entry.made((40, 40))
    losses = reference.losses(entry.reference, tensors, np.float32)
    actual = entry.forward[2](**entry.arguments(tensors), reduction="none")
    upstream = np.full((40, 40), 1.5, np.float32)
    gradients = entry.backward[2](**entry.backward_arguments(tensors, upstream), reduction="none")
    exact = reference.gradients(entry.reference, tensors, upstream, "none")
    pairs = [(actual, losses)]
    returned = gradients if isinstance(gradients, tuple) else (gradients,)
    pairs += [(result, exact[name]) for name, result in zip(entry.gradients, returned, strict=True)]
    for result, known in pairs:
        assert is_within(result, known)
        wrong_results = (np.zeros_like(result), -result, result.T.copy(), result * np.float32(1.0001))
        assert not any(is_within(wrong, known) for wrong in wrong_results)


@every_entry
def test_one_gradient_alone_and_in_place(entry: ElementwiseEntry) -> None:
    """Each has the bits that it has beside the others; written over the first tensor too."""
    tensors = entry.made((150, 600))
    upstream = np.full(1, 2.5, np.float32)
    every = entry.backward[2](**entry.backward_arguments(tensors, upstream), columns=512)
    every = every if isinstance(every, tuple) else (every,)
    for name, expected in zip(entry.gradients, every, strict=True):
        alone = entry.backward[2](**entry.backward_arguments(tensors, upstream, **{name: True}), columns=512)
        assert alone.tobytes() == expected.tobytes()
    first = entry.gradients[0]
    arguments = entry.backward_arguments(tensors, upstream, **{first: True})
    result = entry.backward[2](**arguments, columns=512, inplace=True)
    assert result.tobytes() == every[0].tobytes() == arguments[f"{first}_hbm"].tobytes()


@every_entry
def test_the_type_of_losses_may_be_another(entry: ElementwiseEntry) -> None:
    tensors = entry.made((3, 5), (ml_dtypes.bfloat16,))
    result = entry.forward[2](**entry.arguments(tensors), reduction="none", dtype=nl.float32)
    assert result.dtype == np.float32 and is_within(result, reference.losses(entry.reference, tensors, np.float32))


@every_entry
def test_a_mean_of_many_losses(entry: ElementwiseEntry) -> None:
    """A sum in one accumulator would be off by far more, in one direction."""
    tensors = {name: np.full((2048, 1024), value.reshape(-1)[0]) for name, value in entry.made((2, 2)).items()}
    exact = reference.losses(entry.reference, tensors, np.float32)
    result = float(entry.forward[2](**entry.arguments(tensors))[0])
    assert abs(result - exact.value[0, 0]) <= 1e-6 * abs(exact.value[0, 0]) + exact.error[0, 0]


@pytest.mark.sweep
@every_entry
def test_a_mean_of_a_hundred_million_losses(entry: ElementwiseEntry) -> None:
    """Good to 1e-6, whatever rounding errors of the losses themselves do to each other."""
    tensors = {name: np.tile(value, (12_500, 1)) for name, value in entry.made((64, 125)).items()}
    exact = reference.losses(
        entry.reference, {name: tensor[:64] for name, tensor in tensors.items()}, np.float32
    ).value.mean()
    assert next(iter(tensors.values())).size == 100_000_000
    result = float(entry.forward[2](**entry.arguments(tensors))[0])
    assert abs(result - exact) <= 1e-6 * abs(exact)


@every_entry
def test_a_number_that_is_none_leaves_its_neighbours(entry: ElementwiseEntry) -> None:
    tensors = entry.made((128, 512))
    next(iter(tensors.values()))[7, 9] = np.nan
    losses = entry.forward[2](**entry.arguments(tensors), reduction="none")
    assert np.isnan(losses[7, 9]) and np.isfinite(np.delete(losses.reshape(-1), 7 * 512 + 9)).all()
    assert np.isnan(entry.forward[2](**entry.arguments(tensors))).all()


@every_entry
def test_every_tiling_that_is_accepted_fits_on_chip(entry: ElementwiseEntry) -> None:
    """Tiles are counted before the first instruction: one that is larger than that is refused there, by name."""
    shape = (128 * 8192 * 2 + 5,)

    def accepts(columns: int) -> bool:
        inputs = {f"{name}_hbm": spec(shape, "float32") for name in entry.tensors}
        inputs |= dict.fromkeys(f"{name}_hbm" for name in entry.absent)
        options = {**entry.options, "reduction": "none", "columns": columns, "buffers": 2}
        flags = {f"grad_{name}_wanted": True for name in entry.gradients} if len(entry.gradients) > 1 else {}
        try:
            profile(entry.forward[2], **inputs, **options)
            profile(entry.backward[2], **inputs, grad_loss_hbm=spec(shape, "float32"), **options, **flags)
        except AssertionError as error:
            assert "bytes of an SBUF partition" in str(error)
            return False
        return True

    accepted = [columns for columns in range(1024, 16385, 1024) if accepts(columns)]
    assert accepted and max(accepted) < 16384


MOST_LINES = 40
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FILES = sorted(
    {Path(inspect.getfile(inspect.unwrap(loss.forward))) for loss in LOSSES if isinstance(loss, ElementwiseLoss)}
)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the line numbers of the docstrings of the module, its classes and functions."""
    result: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            result.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return result


def lines_of_classes(source: str) -> dict[str, int]:
    """Lines of code, by the name of the class, but of references: without docstrings, comments and empty ones."""
    tree = ast.parse(source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for token in tokens if token.type not in _LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    code -= docstring_lines(tree)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.endswith("Reference")]
    return {entry.name: len(code & set(range(entry.lineno, (entry.end_lineno or 0) + 1))) for entry in classes}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_loss_definition_is_forty_lines_at_most(path: Path) -> None:
    counted = lines_of_classes(path.read_text())
    assert counted and max(counted.values()) <= MOST_LINES


def test_lines_of_code_are_counted() -> None:
    source = 'class Two:\n    """Not\n    this."""\n\n    # nor this\n    x = (\n        1)\n'
    assert lines_of_classes(source) == {"Two": 3}
