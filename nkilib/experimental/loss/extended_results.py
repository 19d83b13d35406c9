"""The results of the extended forward, of a group of batches at once: tiles [rows, batches] become vectors in HBM."""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.batches import group_values
from nkilib.experimental.loss.chunk_statistics import NEGATIVE_ONE
from nkilib.experimental.loss.forward import log_sum_exps, target_losses
from nkilib.experimental.loss.softcap import capped_logits
from nkilib.nki import nisa, nl


def store_extended_results(group: Any, results: Any, options: Any, cores: int) -> None:
    """Compute and store the results of a group of batches, whose log d is there.

    Args:
        group: from the forward: first position, statistics, moments and positions by name.
        results: vectors [N] in HBM: ``loss``, ``lse``, ``target_logit``, ``position_weight`` and, where ``options`` ask
            for them, ``argmax``, ``entropy``, ``distance_sum``, ``maximum`` and ``log_sum``.
        options: from :mod:`.extended_options`.
        cores: of the launch.
    """
    neg_max_sbuf, sum_sbuf, log_sum_sbuf = group["statistics"][1]
    lse_sbuf = log_sum_exps(log_sum_sbuf, neg_max_sbuf)
    moments = group["moments"]
    found = dict()
    found["lse"] = lse_sbuf
    if options["has_probabilities"]:
        loss_sbuf = _spread_loss(moments, log_sum_sbuf)
        found["loss"] = _with_square(loss_sbuf, lse_sbuf, options)
        found["target_logit"] = _logit_sums(moments, neg_max_sbuf)
        found["position_weight"] = moments["row_factors"]
    else:
        target_logit_sbuf = group["target_logits"]
        if options["softcap"] != 0.0:
            target_logit_sbuf = nl.ndarray(log_sum_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
            capped_logits(target_logit_sbuf, group["target_logits"], options["softcap"])
        loss_sbuf = _class_loss(group, target_logit_sbuf, options)
        found["loss"] = selected(_with_square(loss_sbuf, lse_sbuf, options), group["valid"])
        found["target_logit"] = selected(_in_float32(target_logit_sbuf), group["held"])
        weights_sbuf = group["weights"] if options["is_weighted"] else _constant(log_sum_sbuf, 1.0)
        found["position_weight"] = selected(weights_sbuf, group["held"])
    if options["with_argmax"]:
        found["argmax"] = group["argmax"][1][1]
    if options["with_entropy"]:
        found["entropy"] = _entropies(log_sum_sbuf, sum_sbuf, moments["row_entropy"])
    if options["with_distance_sum"]:
        found["distance_sum"] = _negated(moments["row_first"])
    if options["with_log_sum"]:
        found["maximum"] = _negated(neg_max_sbuf)
        found["log_sum"] = log_sum_sbuf
    _store(found, results, group["first"], cores)


def _store(found: Any, results: Any, first: int, cores: int) -> None:
    """One store for each result; those that are no float32 are cast by a copy, exactly."""
    for name, vector_hbm in results.items():
        tile_sbuf = found[name]
        rows, batches = tile_sbuf.shape
        if vector_hbm.dtype != tile_sbuf.dtype:
            cast_sbuf = nl.ndarray((rows, batches), dtype=vector_hbm.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=cast_sbuf, src=tile_sbuf)
            tile_sbuf = cast_sbuf
        nisa.dma_copy(dst=group_values(vector_hbm, first, rows, batches, cores), src=tile_sbuf)


def _class_loss(group: Any, target_logit_sbuf: Any, options: Any) -> Any:
    """(1 - e) * w[t] * (lse - z[t]) + (e / V) * (W * lse - sum of w z)."""
    neg_max_sbuf, _, log_sum_sbuf = group["statistics"][1]
    loss_sbuf = target_losses(log_sum_sbuf, neg_max_sbuf, target_logit_sbuf)
    if options["is_weighted"]:
        nisa.tensor_tensor(dst=loss_sbuf, data1=loss_sbuf, data2=group["weights"], op=nl.multiply)
    if options["spread"] == 0.0:
        return loss_sbuf
    spread_sbuf = _spread_loss(group["moments"], log_sum_sbuf)
    nisa.tensor_scalar(dst=loss_sbuf, data=loss_sbuf, op0=nl.multiply, operand0=options["kept"])
    nisa.scalar_tensor_tensor(
        dst=loss_sbuf, data=spread_sbuf, op0=nl.multiply, operand0=options["spread"], op1=nl.add, operand1=loss_sbuf
    )
    return loss_sbuf


def _spread_loss(moments: Any, log_sum_sbuf: Any) -> Any:
    """Sum of f * (lse - z) = F * log d - G: large logits have cancelled in G already."""
    loss_sbuf = nl.ndarray(log_sum_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=loss_sbuf, data1=moments["row_factors"], data2=log_sum_sbuf, op=nl.multiply)
    nisa.tensor_tensor(dst=loss_sbuf, data1=loss_sbuf, data2=moments["row_first"], op=nl.subtract)
    return loss_sbuf


def _with_square(loss_sbuf: Any, lse_sbuf: Any, options: Any) -> Any:
    """loss + s * lse^2. As in the plain forward, lse * 0 makes the loss of a row with +inf NaN, as PyTorch has it."""
    total_sbuf = nl.ndarray(lse_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=total_sbuf, data=lse_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=loss_sbuf
    )
    if options["square"] != 0.0:
        square_sbuf = nl.ndarray(lse_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=square_sbuf,
            data=lse_sbuf,
            op0=nl.multiply,
            operand0=options["square"],
            op1=nl.multiply,
            operand1=lse_sbuf,
        )
        nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=square_sbuf, op=nl.add)
    return total_sbuf


def _logit_sums(moments: Any, neg_max_sbuf: Any) -> Any:
    """Sum of f * z = G + F * m."""
    sums_sbuf = nl.ndarray(neg_max_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=sums_sbuf, data1=moments["row_factors"], data2=neg_max_sbuf, op=nl.multiply)
    nisa.tensor_tensor(dst=sums_sbuf, data1=moments["row_first"], data2=sums_sbuf, op=nl.subtract)
    return sums_sbuf


def _negated(values_sbuf: Any) -> Any:
    negated_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negated_sbuf, data=values_sbuf, op0=nl.multiply, operand0=NEGATIVE_ONE)
    return negated_sbuf


def _entropies(log_sum_sbuf: Any, sum_sbuf: Any, row_entropy_sbuf: Any) -> Any:
    """log d - E / d: neither term is negative after the sign, so nothing cancels."""
    entropy_sbuf = nl.ndarray(log_sum_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=entropy_sbuf, data=sum_sbuf)
    nisa.tensor_tensor(dst=entropy_sbuf, data1=entropy_sbuf, data2=row_entropy_sbuf, op=nl.multiply)
    nisa.tensor_tensor(dst=entropy_sbuf, data1=log_sum_sbuf, data2=entropy_sbuf, op=nl.subtract)
    return entropy_sbuf


def selected(values_sbuf: Any, is_wanted_sbuf: Any) -> Any:
    """The values where ``is_wanted`` is not 0, and 0 elsewhere, whatever stands there: a product would keep a NaN.

    Args:
        values_sbuf: float32.
        is_wanted_sbuf: uint32, of the same shape.
    """
    selected_sbuf = _constant(values_sbuf, 0.0)
    nisa.tensor_copy_predicated(dst=selected_sbuf, src=values_sbuf, predicate=is_wanted_sbuf)
    return selected_sbuf


def _constant(like_sbuf: Any, value: float) -> Any:
    constant_sbuf = nl.ndarray(like_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=constant_sbuf, value=value)
    return constant_sbuf


def _in_float32(tile_sbuf: Any) -> Any:
    if tile_sbuf.dtype == nl.float32:
        return tile_sbuf
    cast_sbuf = nl.ndarray(tile_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=cast_sbuf, src=tile_sbuf)
    return cast_sbuf
