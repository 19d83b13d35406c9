"""The scores of both models for a second visit that computes them again, from the products to SBUF."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents
from nkilib.experimental.loss.linear.class_stream import ClassTiles
from nkilib.experimental.loss.linear.logits import LogitTiles
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear_distillation.mixture_terms import MixturePair
from nkilib.experimental.loss.linear_distillation.options import ModelOperands, PairLaunch
from nkilib.nki import nisa, nl

# Banks of PSUM that products take in turn; one is left for the transposes of results.
_BANKS = 7


@dataclass(frozen=True)
class _ModelScores:
    """The scores of one model.

    Attributes:
        model: with its operands.
        lowest: the score of a masked class.
        products: tiles of products.
    """

    model: ModelOperands
    lowest: float
    products: LogitTiles

    def raise_masked(self, classes: ClassTiles) -> None:
        """Make a bias of -inf finite: as low as the score of a masked class, or twice as low under a cap."""
        if classes.bias_sbuf is None:
            return
        least = self.lowest if self.model.softcap is None else 2.0 * self.lowest
        nisa.tensor_scalar(dst=classes.bias_sbuf, data=classes.bias_sbuf, op0=nl.maximum, operand0=least)

    def take(
        self,
        number: int,
        dst_sbuf: nl.NkiTensor,
        tangents_sbuf: nl.NkiTensor,
        input_sbuf: nl.NkiTensor,
        classes: ClassTiles,
    ) -> None:
        """The scores of a tile.

        Args:
            number: which bank the product takes.
            dst_sbuf: float32 [128, classes].
            tangents_sbuf: scratch of that shape.
            input_sbuf, classes: X^T of the tile of positions, and W^T of the block of classes.
        """
        product_psum, cap = self.products.product(number, input_sbuf, classes.weight_sbuf), self.model.score_cap
        if classes.bias_sbuf is None:
            if cap is None:
                nisa.tensor_copy(dst=dst_sbuf, src=product_psum, engine=nisa.engine.vector)
            else:
                hyperbolic_tangents(dst_sbuf, product_psum, cap)
            return
        nisa.tensor_tensor(dst=dst_sbuf, data1=product_psum, data2=classes.bias_sbuf, op=nl.add)
        if cap is None:
            return
        hyperbolic_tangents(tangents_sbuf, dst_sbuf, cap)
        # The sum is the score of a masked class where there is one, and larger than any tangent elsewhere.
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=dst_sbuf,
            op0=nl.add,
            operand0=-self.lowest,
            op1=nl.minimum,
            operand1=tangents_sbuf,
        )


@dataclass(frozen=True)
class PairScores:
    """The scores of both models.

    Attributes:
        student, teacher: of each.
    """

    student: _ModelScores
    teacher: _ModelScores

    @classmethod
    def make(cls, launch: PairLaunch, class_block: int) -> PairScores:
        """For blocks of at most so many classes."""
        banks = [nl.ndarray((PARTITIONS, class_block), dtype=nl.float32, buffer=nl.psum) for _ in range(_BANKS)]
        return cls(
            *(
                _ModelScores(model, launch.lowest(model), LogitTiles(model.num_features, None, banks, [], []))
                for model in launch.models
            )
        )

    def raise_masked(self, classes: tuple[ClassTiles, ClassTiles]) -> None:
        """Make the biases of a block of classes finite, once they are loaded."""
        self.student.raise_masked(classes[0])
        self.teacher.raise_masked(classes[1])

    def take(
        self,
        number: int,
        pair: MixturePair,
        inputs: tuple[nl.NkiTensor, nl.NkiTensor],
        classes: tuple[ClassTiles, ClassTiles],
    ) -> None:
        """The scores of pair ``number``."""
        tangents_sbuf = pair.student_logs_sbuf[:, 0]
        self.student.take(2 * number, pair.student_sbuf[:, 0], tangents_sbuf, inputs[0], classes[0])
        self.teacher.take(2 * number + 1, pair.teacher_sbuf[:, 0], tangents_sbuf, inputs[1], classes[1])
