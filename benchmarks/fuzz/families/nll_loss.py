# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of ``nkilib.torch.nll_loss``."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import INDEX_DTYPES, Draw, array_of, laid_out, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import REDUCTIONS, dtype_of, machine
from nkilib.experimental.loss.nll.host import (
    nll_loss_bound,
    nll_loss_gradient_bound,
    nll_loss_gradient_reference,
    nll_loss_reference,
)


def drawn(draw: Draw, function: str) -> Call:
    """Draw a call of ``nll_loss``."""
    rows, classes, inner = draw.sizes((1, 3_000), (1, 60_000), (1, 600))
    shape = draw.one_of(((rows, classes), (rows, classes), (rows, classes, inner), (classes,)))
    of_target = (shape[0], *shape[2:]) if len(shape) > 1 else ()
    name, dtype = dtype_of(draw)
    ignored = draw.one_of((-100, 0, 5))
    target = np.asarray(draw.rng.integers(0, classes, of_target))
    target = np.where(draw.rng.random(of_target) < 0.2, ignored if ignored < classes else -100, target)
    if (target == ignored).all():
        ignored = -100 if ignored != -100 else -101
        target = np.zeros(of_target, np.int64)
    ignored = ignored if ignored < classes else -100
    weight = draw.rng.random(classes, dtype=np.float32) + np.float32(0.25) if draw.chance(0.4) else None
    reduction = draw.one_of(REDUCTIONS)
    written = "input" if draw.chance(0.2) else None
    x, layout = tensor_of(-np.abs(4.0 * normal(draw, *shape)), dtype), "contiguous"
    if written is None:
        x, layout = laid_out(draw, x)
    arguments: dict[str, Any] = {
        "input": x,
        "target": tensor_of(target, draw.one_of(INDEX_DTYPES)),
        "ignore_index": ignored,
        "reduction": reduction,
    }
    arguments |= {} if weight is None else {"weight": tensor_of(weight)}
    arguments |= {} if written is None else {"inplace": True}
    module = "NLLLoss" if draw.chance(0.2) else None
    settings: dict[str, Any] = {
        "shape": shape,
        "dtype": name,
        "reduction": reduction,
        "ignore_index": ignored,
        "layout": layout,
    }
    settings |= {"weight": weight is not None, "inplace": written is not None, "module": module}
    settings |= {"upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    inputs, of_input = array_of(x).reshape((1, *shape) if len(shape) == 1 else shape), numpy_dtype(dtype)
    indices = target.reshape((1,) if len(shape) == 1 else of_target)

    def reference(results: Results) -> dict[str, Expected]:
        computed = nll_loss_reference(inputs, indices, weight, ignored)
        of_loss = of_input if reduction == "none" else np.dtype(np.float32)
        loss = np.asarray(computed.reduced(reduction))
        error = np.asarray(nll_loss_bound(computed, inputs.shape, reduction, of_loss))
        upstream = results.upstream["loss"].astype(np.float64)
        upstream = upstream.reshape(indices.shape) if reduction == "none" else upstream
        upstream = upstream / computed.weights.sum() if reduction == "mean" else upstream
        exact = nll_loss_gradient_reference(inputs, indices, computed.weights, upstream)
        of_exact = nll_loss_gradient_bound(exact, of_input)
        of_value = of_target if reduction == "none" else ()
        return {
            "loss": Expected(loss.reshape(of_value), error.reshape(of_value), of_loss),
            "grad_input": Expected(exact.reshape(shape), of_exact.reshape(shape), of_input),
        }

    return Call(
        function, arguments, ("input",), reference, settings, settings["upstream"], written=written, module=module
    )
