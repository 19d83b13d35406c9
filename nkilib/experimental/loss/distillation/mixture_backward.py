# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of Jensen-Shannon: several chunks at a time, so that Scalar changes its activation table less often."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.tiles import float32_like, with_nan_of_infinite
from nkilib.experimental.loss.distillation.coefficients import Coefficients, coefficients_of, loaded_totals
from nkilib.experimental.loss.distillation.host.tiling import gradient_group
from nkilib.experimental.loss.distillation.mixture import Mixture
from nkilib.experimental.loss.distillation.options import Launch
from nkilib.experimental.loss.distillation.pair import Buffers, PairChunk, PairStream
from nkilib.experimental.loss.distillation.rows import Exponentials, Vectors, column
from nkilib.nki import nisa, nl

# Bits of a float32: its sign and exponent, its fraction, and the bits of 1.
_SIGN_AND_EXPONENT, _FRACTION, _BITS_OF_ONE = -(1 << 23), (1 << 23) - 1, 127 << 23


@dataclass(frozen=True)
class MixtureBackward:
    """The state that all rows of the gradient of Jensen-Shannon share.

    The gradient is (L + moment) * e_s * factor. The factor is a signed power of two times a number from 1 to 2, and
    the number goes into the exponent of e_s: the remaining multiplication, by the power, rounds nothing, so Vector
    does it in the type of the logits.

    Attributes:
        launch: the launch of the kernel.
        batches: the batches of the core.
        buffers: the chunk buffers and scratch on chip.
        group: the number of chunks processed at a time.
        mixture: the constants of beta.
        student: the exponentials of the student, e_s times that number.
        bias_sbuf: the bias of the logs, [128, batches].
        addend_sbuf: moment + log(1 - beta).
        power_sbuf: the signed powers of two.
    """

    launch: Launch
    batches: list[Batch]
    buffers: Buffers
    group: int
    mixture: Mixture
    student: Exponentials
    bias_sbuf: nl.NkiTensor
    addend_sbuf: nl.NkiTensor
    power_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, batches: list[Batch], saved: Vectors, grad_loss_hbm: nl.NkiTensor) -> MixtureBackward:
        """Prepare the state from the results of the forward and the upstream gradients."""
        totals = loaded_totals(launch, batches, saved)
        coefficients = coefficients_of(launch, batches, totals, saved.moment_hbm, grad_loss_hbm)
        mixture = Mixture.of(launch)
        addend_sbuf, bias_sbuf = float32_like(coefficients.moment_sbuf), float32_like(coefficients.moment_sbuf)
        nisa.tensor_scalar(dst=addend_sbuf, data=coefficients.moment_sbuf, op0=nl.add, operand0=mixture.log_rest)
        nisa.activation(dst=bias_sbuf, op=nl.log, data=_fraction(coefficients.factor_sbuf))
        nisa.tensor_tensor(dst=bias_sbuf, data1=bias_sbuf, data2=totals.student.bias_sbuf, op=nl.add)
        student = Exponentials(launch.scale, totals.student.neg_shift_sbuf, bias_sbuf, totals.student.sums_sbuf)
        group = gradient_group(launch.tiling.chunk_size, launch.bytes_of_pair)
        buffers = Buffers.make(launch, group + 1, {"difference": group + 2, "student": 2})
        return cls(
            launch,
            batches,
            buffers,
            group,
            mixture,
            student,
            mixture.bias(coefficients.center_sbuf),
            addend_sbuf,
            _power(coefficients),
        )

    def run(self, grad_hbm: nl.NkiTensor) -> None:
        """Process all chunks."""
        stream = PairStream.make(self.launch, self.batches, self.buffers, [True] * len(self.batches))
        loads = stream.student.loads
        for first in range(0, loads, self.group):
            group = range(first, min(first + self.group, loads))
            for load in group:
                self._take_logs(stream.opened_chunk(load))
            for load in group:
                pair = stream.taken(load)
                self._take_gradient(pair)
                nisa.dma_copy(dst=pair.chunk.of(grad_hbm), src=pair.student_sbuf)

    def _take_logs(self, pair: PairChunk[Batch]) -> None:
        """Compute the logs in place of the differences."""
        bias_sbuf = column(self.bias_sbuf, pair.visit, pair.student_sbuf.shape[0])
        self.mixture.take_logs(pair.difference, pair.difference, bias_sbuf)

    def _take_gradient(self, pair: PairChunk[Batch]) -> None:
        """Write the gradient over the student's logits, rounded once."""
        rows = pair.student_sbuf.shape[0]
        weights_sbuf = self.buffers.tile("student", pair.chunk.load, pair.student_sbuf)
        self.student.take(weights_sbuf, pair.student_sbuf, pair.visit)
        nisa.scalar_tensor_tensor(
            dst=pair.student_sbuf,
            data=pair.difference,
            op0=nl.add,
            operand0=column(self.addend_sbuf, pair.visit, rows),
            op1=nl.multiply,
            operand1=weights_sbuf,
        )
        nisa.tensor_scalar(
            dst=pair.student_sbuf,
            data=pair.student_sbuf,
            op0=nl.multiply,
            operand0=column(self.power_sbuf, pair.visit, rows),
        )


def _power(coefficients: Coefficients) -> nl.NkiTensor:
    """Return the signed power of two of each factor: 0 for 0, and NaN for a factor that is no finite number."""
    bits_sbuf = nl.ndarray(coefficients.factor_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bits_sbuf, data=coefficients.factor_sbuf.view(nl.int32), op0=nl.bitwise_and, operand0=_SIGN_AND_EXPONENT
    )
    return with_nan_of_infinite(bits_sbuf.view(nl.float32), coefficients.factor_sbuf, nl.float32)


def _fraction(factor_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the factor over its power of two, from 1 to 2."""
    bits_sbuf = nl.ndarray(factor_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bits_sbuf,
        data=factor_sbuf.view(nl.int32),
        op0=nl.bitwise_and,
        operand0=_FRACTION,
        op1=nl.bitwise_or,
        operand1=_BITS_OF_ONE,
    )
    return bits_sbuf.view(nl.float32)
