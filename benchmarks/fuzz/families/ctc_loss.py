# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of ``nkilib.torch.ctc_loss``."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import INDEX_DTYPES, Array, Draw, array_of, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import REDUCTIONS, dtype_of, machine
from nkilib.experimental.loss.ctc.host import (
    ctc_loss_bound,
    ctc_loss_gradient_bound,
    ctc_loss_gradient_reference,
    ctc_loss_reference,
    reduced,
    reduction_factors,
)

# Of all steps of all sequences, each with its states: what the reference takes seconds for.
_MOST_STEPS = 20_000


def drawn(draw: Draw, function: str) -> Call:
    """Draw a call of ``ctc_loss``."""
    most = min(_MOST_STEPS, draw.limits.elements // 40)
    steps, sequences = draw.sizes((1, 400), (1, 300), most=most)
    (classes,) = draw.sizes((2, 3_000), most=max(2, draw.limits.elements // (steps * sequences)))
    is_single = draw.chance(0.1)
    sequences = 1 if is_single else sequences
    longest = int(draw.rng.integers(1, max(2, steps // 2 + 1)))
    blank = draw.one_of((0, classes - 1))
    others = [label for label in range(min(classes, 50)) if label != blank]
    labels = draw.rng.choice(others, (sequences, longest))
    of_inputs = draw.rng.integers(max(1, steps // 2), steps + 1, sequences)
    of_targets = draw.rng.integers(0, longest + 1, sequences)
    name, dtype = dtype_of(draw)
    logits = draw.one_of((1.0, 3.0)) * normal(draw, steps, sequences, classes).astype(np.float64)
    logits -= logits.max(axis=2, keepdims=True)
    x = tensor_of(logits - np.log(np.exp(logits).sum(axis=2, keepdims=True)), dtype)
    reduction, zero_infinity = draw.one_of(REDUCTIONS), draw.chance(0.5)
    is_flat, module = draw.chance(0.3), "CTCLoss" if draw.chance(0.2) else None
    flat = np.concatenate([row[:count] for row, count in zip(labels, of_targets, strict=True)])
    arguments: dict[str, Any] = {
        "log_probs": x[:, 0] if is_single else x,
        "targets": tensor_of(flat if is_flat else labels, draw.one_of(INDEX_DTYPES)),
        "input_lengths": tensor_of(of_inputs, draw.one_of(INDEX_DTYPES)),
        "target_lengths": tensor_of(of_targets, draw.one_of(INDEX_DTYPES)),
        "blank": int(blank),
        "reduction": reduction,
        "zero_infinity": zero_infinity,
    }
    settings: dict[str, Any] = {
        "shape": (steps, sequences, classes),
        "longest": longest,
        "dtype": name,
        "reduction": reduction,
    }
    settings |= {"zero_infinity": zero_infinity, "is_flat": is_flat, "is_single": is_single, "module": module}
    settings |= {"upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    reference = _Reference(array_of(x), labels, of_inputs, of_targets, arguments, is_single, numpy_dtype(dtype))
    return Call(function, arguments, ("log_probs",), reference, settings, settings["upstream"], module=module)


class _Reference:
    def __init__(
        self,
        log_probs: Array,
        labels: Array,
        of_inputs: Array,
        of_targets: Array,
        arguments: dict[str, Any],
        is_single: bool,
        dtype: np.dtype[Any],
    ) -> None:
        self._log_probs, self._labels, self._lengths = log_probs, labels, (of_inputs, of_targets)
        self._reduction, self._blank = arguments["reduction"], arguments["blank"]
        self._zero_infinity, self._is_single, self._dtype = arguments["zero_infinity"], is_single, dtype

    def __call__(self, results: Results) -> dict[str, Expected]:
        of_inputs, of_targets = self._lengths
        computed = ctc_loss_reference(self._log_probs, self._labels, of_inputs, of_targets, self._blank)
        of_loss = self._dtype if self._reduction == "none" else np.dtype(np.float32)
        loss = reduced(computed.losses, of_targets, self._reduction, self._zero_infinity)
        error = ctc_loss_bound(computed, of_inputs, of_targets, self._reduction, of_loss)
        upstream = results.upstream["loss"].astype(np.float64).reshape(-1)
        factors = upstream * reduction_factors(of_targets, self._reduction)
        exact = ctc_loss_gradient_reference(self._log_probs, computed, of_inputs, factors, self._zero_infinity)
        of_exact = ctc_loss_gradient_bound(self._log_probs, computed, of_inputs, factors, exact)
        one = self._reduction != "none" or self._is_single
        shape = self._log_probs.shape if not self._is_single else self._log_probs[:, 0].shape
        return {
            "loss": Expected(loss.reshape(() if one else -1), error.reshape(() if one else -1), of_loss),
            "grad_log_probs": Expected(exact.reshape(shape), of_exact.reshape(shape), self._dtype),
        }
