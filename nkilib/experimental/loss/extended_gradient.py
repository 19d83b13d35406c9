"""The extended backward beside its chunks: the coefficients of each position, and the gradient at its target."""

from __future__ import annotations

from typing import Any

from nkilib.core.cores import strided_rows
from nkilib.experimental.loss.chunk_statistics import NEGATIVE_ONE
from nkilib.experimental.loss.extended_results import selected
from nkilib.experimental.loss.softcap import capped_softmax, through_cap
from nkilib.experimental.loss.target_access import class_targets, gathered_weights
from nkilib.experimental.loss.target_gradient import negated_lse
from nkilib.nki import nisa, nl


def prepare_positions(vectors: Any, constants: Any, batch: Any, cores: int, weight_sum: Any, options: Any) -> Any:
    """What the gradient of a batch is made of: tiles [rows, 1], float32 but for the index.

    With g the gradient of the loss, l that of the log-sum-exp and q that of the target's log-probability,

        D = g * ((e / V) * W + 2 s lse) + l        A = D + g * (1 - e) * w[t] - q

    and the gradient is A * softmax - g * (e / V) * w, less A - D at the target: (A - D) * (p - 1) + D * p, where the
    large terms of a confident target have cancelled, and D does not hide a small p. Where targets are probabilities, W
    is the sum of the factors of each position and stands in D without e / V, and A = D.

    Args:
        vectors: what the kernel was given, in HBM, by name; None for what it was not given.
        constants: from :func:`.target_access.make_class_constants`.
        batch: its first position, and how many.
        cores: of the launch.
        weight_sum: W, a number or float32 [rows or more, 1].
        options: from :mod:`.extended_options`.

    Returns:
        dict: ``bias``, with which exponentials are the softmax times the sum of exp(z - m), or the softmax itself;
        ``inverse``, 1 over that sum, or None; ``all``, A times it; ``rest`` (D, None for 0), ``spread`` (what class
        factors are multiplied with, None for 0) and, of class targets, ``own`` (A - D), ``index``, ``held`` as 0.0 or
        1.0, and ``weights`` of the columns that ``index`` stands for.
    """
    _, rows = batch
    lse_sbuf = loaded_values(vectors["lse"], batch, cores)
    position = dict()
    position["bias"], position["inverse"] = _softmax_terms(vectors, batch, cores, lse_sbuf)
    grad_loss_sbuf = loaded_values(vectors["grad_loss"], batch, cores)
    if options["has_probabilities"]:
        position["spread"] = grad_loss_sbuf
        position["rest"] = _rest(vectors, batch, cores, lse_sbuf, grad_loss_sbuf, grad_loss_sbuf, weight_sum, options)
        position["all"] = _product(position["rest"], position["inverse"])
        return position
    valid_sbuf = nl.ndarray((rows, 1), dtype=nl.uint32, buffer=nl.sbuf)
    held_sbuf = nl.ndarray((rows, 1), dtype=nl.uint32, buffer=nl.sbuf)
    index_sbuf, column_sbuf = class_targets(vectors["targets"], constants, batch, cores, options, valid_sbuf, held_sbuf)
    position["index"] = index_sbuf
    position["held"] = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=position["held"], src=held_sbuf)
    position["weights"] = None
    if options["is_weighted"]:
        position["weights"] = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        gathered_weights(vectors["class_weight"], column_sbuf, position["weights"])
    grad_loss_sbuf = selected(grad_loss_sbuf, valid_sbuf)
    position["spread"] = None
    if options["spread"] != 0.0:
        position["spread"] = _scaled(grad_loss_sbuf, options["spread"])
    position["rest"] = _rest(vectors, batch, cores, lse_sbuf, grad_loss_sbuf, position["spread"], weight_sum, options)
    position["own"] = _own(vectors, batch, cores, position, grad_loss_sbuf, valid_sbuf, options)
    all_sbuf = position["own"]
    if position["rest"] != None:  # noqa: E711
        all_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=all_sbuf, data1=position["own"], data2=position["rest"], op=nl.add)
    position["all"] = _product(all_sbuf, position["inverse"])
    return position


def _softmax_terms(vectors: Any, batch: Any, cores: int, lse_sbuf: Any) -> Any:
    """``bias`` and ``inverse`` of :func:`prepare_positions`.

    Of large logits lse has lost its last digits. The maximum is one of them, and z - m exact.
    """
    if vectors["maximum"] == None:  # noqa: E711
        return negated_lse(lse_sbuf, 0.0), None
    bias_sbuf = loaded_values(vectors["maximum"], batch, cores)
    nisa.tensor_scalar(dst=bias_sbuf, data=bias_sbuf, op0=nl.multiply, operand0=NEGATIVE_ONE)
    # Where lse is infinite, lse * 0 makes the row NaN.
    nisa.scalar_tensor_tensor(
        dst=bias_sbuf, data=lse_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=bias_sbuf
    )
    inverse_sbuf = loaded_values(vectors["log_sum"], batch, cores)
    nisa.activation(dst=inverse_sbuf, op=nl.exp, data=inverse_sbuf, scale=NEGATIVE_ONE)
    return bias_sbuf, inverse_sbuf


def _product(values_sbuf: Any, inverse_sbuf: Any) -> Any:
    if inverse_sbuf == None:  # noqa: E711
        return values_sbuf
    product_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product_sbuf, data1=values_sbuf, data2=inverse_sbuf, op=nl.multiply)
    return product_sbuf


def loaded_values(vector_hbm: Any, batch: Any, cores: int) -> Any:
    """The values of a batch, float32 [rows, 1]."""
    first, rows = batch
    values_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=values_sbuf, src=strided_rows(vector_hbm, first, rows, cores))
    return values_sbuf


def _rest(
    vectors: Any,
    batch: Any,
    cores: int,
    lse_sbuf: Any,
    grad_loss_sbuf: Any,
    spread_sbuf: Any,
    weight_sum: Any,
    options: Any,
) -> Any:
    """D, or None where no option makes it differ from 0."""
    terms = list()
    if spread_sbuf != None:  # noqa: E711  (NKI has no "is")
        spread_term_sbuf = nl.ndarray(lse_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=spread_term_sbuf, data=spread_sbuf, op0=nl.multiply, operand0=weight_sum)
        terms.append(spread_term_sbuf)
    if options["square"] != 0.0:
        square_term_sbuf = nl.ndarray(lse_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=square_term_sbuf,
            data=grad_loss_sbuf,  # first, so that an ignored position stays 0 however large its lse is
            op0=nl.multiply,
            operand0=2.0 * options["square"],
            op1=nl.multiply,
            operand1=lse_sbuf,
        )
        terms.append(square_term_sbuf)
    if vectors["grad_lse"] != None:  # noqa: E711
        terms.append(loaded_values(vectors["grad_lse"], batch, cores))
    if len(terms) == 0:
        return None
    for number in range(1, len(terms)):
        nisa.tensor_tensor(dst=terms[0], data1=terms[0], data2=terms[number], op=nl.add)
    return terms[0]


def _own(
    vectors: Any, batch: Any, cores: int, position: Any, grad_loss_sbuf: Any, valid_sbuf: Any, options: Any
) -> Any:
    """A - D of class targets."""
    own_sbuf = _scaled(grad_loss_sbuf, options["kept"])
    weights_sbuf = position["weights"]
    if vectors["target_weight"] != None:  # noqa: E711
        weights_sbuf = loaded_values(vectors["target_weight"], batch, cores)
    if weights_sbuf != None:  # noqa: E711
        # An ignored position has the weight of some class, which may be infinite.
        nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=selected(weights_sbuf, valid_sbuf), op=nl.multiply)
    if vectors["grad_logprob"] != None:  # noqa: E711
        grad_logprob_sbuf = selected(loaded_values(vectors["grad_logprob"], batch, cores), valid_sbuf)
        nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=grad_logprob_sbuf, op=nl.subtract)
    return own_sbuf


def target_gradient(position: Any, target_logit_sbuf: Any, dtype: Any, options: Any) -> Any:
    """The gradient at the target of each row of a batch, computed in float32 and rounded to ``dtype`` once.

    (A - D) * (p - held) + D * p - spread * w, where held is 0 for a target that is ignored or not here: then it is what
    the chunk has put there.

    Returns:
        tile [rows, 1] of ``dtype``.
    """
    shape = target_logit_sbuf.shape
    softcap = options["softcap"]
    exponential_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    gradient_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    square_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    softmax(exponential_sbuf, square_sbuf, target_logit_sbuf, position["bias"], softcap)
    p_sbuf = _product(exponential_sbuf, position["inverse"])
    sum_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=sum_sbuf,
        data=p_sbuf,
        op0=nl.subtract,
        operand0=position["held"],
        op1=nl.multiply,
        operand1=position["own"],
    )
    if position["rest"] != None:  # noqa: E711
        nisa.scalar_tensor_tensor(
            dst=sum_sbuf, data=position["rest"], op0=nl.multiply, operand0=p_sbuf, op1=nl.add, operand1=sum_sbuf
        )
    if position["spread"] != None:  # noqa: E711
        weights = position["weights"] if options["is_weighted"] else 1.0
        nisa.scalar_tensor_tensor(
            dst=sum_sbuf,
            data=position["spread"],
            op0=nl.multiply,
            operand0=weights,
            op1=nl.subtract,
            operand1=sum_sbuf,
            reverse1=True,
        )
    if softcap == 0.0:
        nisa.tensor_copy(dst=gradient_sbuf, src=sum_sbuf)
    else:
        through_cap(gradient_sbuf, sum_sbuf, square_sbuf)
    return gradient_sbuf


def softmax(exponentials_sbuf: Any, squares_sbuf: Any, logits_sbuf: Any, bias_sbuf: Any, softcap: float) -> None:
    """exp(z + bias) in float32; with a cap, tanh(x / c)^2 too, which the gradient needs."""
    if softcap == 0.0:
        nisa.activation(dst=exponentials_sbuf, op=nl.exp, data=logits_sbuf, bias=bias_sbuf)
    else:
        capped_softmax(exponentials_sbuf, squares_sbuf, logits_sbuf, bias_sbuf, softcap)


def _scaled(values_sbuf: Any, factor: float) -> Any:
    scaled_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled_sbuf, data=values_sbuf, op0=nl.multiply, operand0=factor)
    return scaled_sbuf
