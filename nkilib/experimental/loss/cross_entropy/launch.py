# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The options and arguments of a launch of the cross-entropy kernels, known when a kernel is traced.

- :class:`LossOptions` are the user's options; :class:`RecipeOptions` those that PyTorch does not have.
- :class:`Options` are the options as the kernels use them, with :class:`Classes` and the :class:`Wanted` results.
- :class:`Launch` has tensors, sizes and the :class:`Layout` of positions.
- :data:`Upstream` is the upstream gradients and the saved statistics of a backward: :class:`PositionUpstream` or
  :class:`UniformUpstream`.

The forward has two *forms*: exponentials are computed with the exact maximum of every row, or under a shift in place of
the maximum. :func:`with_form` chooses the form, and :func:`shift_pays` compares the modelled times.

:attr:`Options.forward_plan` and :attr:`Options.backward_plan` say how much SBUF a kernel needs; tilings are chosen with
the constants ``..._PLAN``. Options are checked here (:func:`check_options`, :func:`check_recipe`), because the torch
and jax packages use the checks too; tensors are checked in :mod:`.validation`. N is the number of positions, V the
number of classes, and z are the logits after cap and temperature.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

from nkilib.core.hardware import div_ceil
from nkilib.core.host.options import Numbers, is_number
from nkilib.core.plan_limits import limited_shift_columns
from nkilib.core.rows.batches import Batch, batches_of_core
from nkilib.core.rows.checks import require
from nkilib.core.rows.elements import rows_per_batch
from nkilib.core.rows.recomputation import BATCHES_MAX, ROWS_MAX
from nkilib.core.rows.sbuf import MAX_CHUNK_BUFFERS, DividedSbuf, SbufPlan
from nkilib.core.rows.scale import ConstantScale, Scale
from nkilib.core.rows.statistics import Folding
from nkilib.experimental.loss.temperatures import LoadedRows, TemperatureLimits, Temperatures
from nkilib.nki import nisa, nl

# The tiles beside the chunks of a kernel without options: five tiles of 128 float32 (two groups of batches overlap)
# and tiles of at most GROUP_BATCHES_MAX columns, with room for alignment.
_SMALL_BYTES = 4096
# The same with every option: ten tiles of statistics instead of three. A chunk of 8192 float32 and all that may be
# asked for still fits trn2.
_SMALL_BYTES_OF_OPTIONS = 12288
# The same under a shift: five tiles more for the recomputed rows, and two matrices of 128 x 128.
_SMALL_BYTES_OF_SHIFT = 8192

# Beyond it, products of options and logits may leave the range of float32.
OPTION_MAX = 1e30
SOFTCAP_MIN = 1e-30
TEMPERATURE_MIN, TEMPERATURE_MAX = 1e-6, 1e6
TEMPERATURE_LIMITS = TemperatureLimits(TEMPERATURE_MIN, TEMPERATURE_MAX)


class RecipeOptions(TypedDict, total=False):
    """The options of :class:`LossOptions` that ``torch.nn.functional.cross_entropy`` does not have, as keyword
    arguments.
    """

    logit_softcap: float | None
    lse_square_scale: float
    temperature: float | Numbers
    exact_maximum: bool | None


@dataclass(frozen=True)
class LossOptions:
    """The options of a training recipe. With the defaults, the loss is PyTorch's with its own defaults.

    Attributes:
        ignore_index: target of ignored positions.
        label_smoothing: e, in [0, 1], the share of the target that is spread over all classes; arXiv 1512.00567.
        logit_softcap: c from 1e-30 to 1e30; replaces the logits x by c * tanh(x / c). None leaves them unchanged. arXiv
            2408.00118.
        lse_square_scale: s from 0 to 1e30, the factor of the squared log-sum-exp (z-loss); arXiv 2204.02311.
        temperature: divisor of the logits, applied after the cap; from 1e-6 to 1e6.
        exact_maximum: the form of the forward: True for the exact maximum, False for a shift, None for the faster form.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    logit_softcap: float | None = None
    lse_square_scale: float = 0.0
    temperature: float = 1.0
    exact_maximum: bool | None = None


def check_options(function: str, options: LossOptions) -> None:
    """Check that the options are in range, except ``ignore_index``.

    Raises:
        AssertionError: if an option is out of range; the message has function, requirement and value.
    """
    smoothing = options.label_smoothing
    if not is_number(smoothing) or not 0.0 <= smoothing <= 1.0:
        raise AssertionError(f"{function}: label_smoothing must be a number from 0 to 1, got {smoothing}")
    check_recipe(function, options.logit_softcap, options.lse_square_scale, options.temperature)


def check_recipe(function: str, cap: float | None, square: float, temperature: float) -> None:
    """Check that the cap, the factor of the squared log-sum-exp and the temperature are in range.

    Raises:
        AssertionError: if an option is out of range; the message has function, requirement and value.
    """
    # A message is formed where it is needed: torch.compile traces this with numbers that have no text.
    if cap is not None and (not is_number(cap) or not SOFTCAP_MIN <= cap <= OPTION_MAX):
        raise AssertionError(
            f"{function}: logit_softcap must be a number from {SOFTCAP_MIN} to {OPTION_MAX} or None, got {cap}; "
            f"pass None for no cap"
        )
    if not is_number(square) or not 0.0 <= square <= OPTION_MAX:
        raise AssertionError(f"{function}: lse_square_scale must be a number from 0 to {OPTION_MAX}, got {square}")
    if not is_number(temperature) or not TEMPERATURE_MIN <= temperature <= TEMPERATURE_MAX:
        raise AssertionError(
            f"{function}: temperature must be a number from {TEMPERATURE_MIN} to {TEMPERATURE_MAX}, got {temperature}; "
            f"pass 1.0 for none"
        )


@dataclass(frozen=True)
class Classes:
    """The range of classes that the columns of the logits hold.

    Attributes:
        first: the class of the first column.
        count: the number of columns.
        total: the number of classes of all shards of the vocabulary.
    """

    first: int
    count: int
    total: int

    @property
    def is_shard(self) -> bool:
        """Whether the logits hold only a part of the classes."""
        return self.total != self.count


@dataclass(frozen=True)
class Wanted:
    """The requested results of the forward, besides loss and log-sum-exp.

    ``target`` requests the target's logit and weight.
    """

    argmax: bool = False
    entropy: bool = False
    distance_sum: bool = False
    log_sum: bool = False
    target: bool = False
    log_sum_squares: bool = False
    mean_logit: bool = False


# The numbers of chunk buffers of a forward with the exact maximum, the best one first; those after it leave room for
# folds. A chunk waits for GpSimd, Vector and Scalar.
BUFFERS_OF_MAXIMUM = (6, 5, 4, 3)
# What GpSimd folds, by the passes of Vector over a chunk besides its maximum, so that none of Scalar, Vector and GpSimd
# waits for long for another one.
BESIDE_EXPONENTIALS, _BESIDE_CLASS_SUMS, _BESIDE_ENTROPY = Folding(1, 0.6), Folding(2), Folding(3)


@dataclass(frozen=True)
class Options:
    """The options of a launch as the kernels use them.

    Attributes:
        classes: the classes that the columns of the logits hold.
        is_plain: whether every target is a valid class and no option is set, so that the kernel needs no masks
            and no coefficients.
        is_weighted: whether there are class weights.
        has_probabilities: whether the targets are class probabilities.
        recipe: the options of the loss.
        wanted: the requested results of the forward.
        with_shift: whether the forward computes exponentials under a shift instead of the maximum.
    """

    classes: Classes
    is_plain: bool = False
    is_weighted: bool = False
    has_probabilities: bool = False
    recipe: LossOptions = field(default_factory=LossOptions)
    wanted: Wanted = field(default_factory=Wanted)
    with_shift: bool = False

    @property
    def softcap(self) -> float | None:
        """The cap of the logits; None for no cap."""
        return self.recipe.logit_softcap

    @property
    def temperature(self) -> float:
        """The divisor of the logits, applied after the cap."""
        return self.recipe.temperature

    @property
    def scale(self) -> float:
        """The factor that turns the values in tiles into z, without temperatures of positions: c / T with a cap c, else
        1 / T.

        The values in tiles are the logits, or with a cap the tangents tanh(logits / c).
        """
        return (1.0 if self.softcap is None else self.softcap) / self.temperature

    def scale_of(self, temperatures: Temperatures | None) -> Scale:
        """Return :attr:`scale`, divided by the temperature of each position if ``temperatures`` is not None."""
        return ConstantScale(self.scale) if temperatures is None else temperatures.scale(self.scale)

    def slope_of(self, temperatures: Temperatures | None) -> Scale:
        """Return the derivative of z with respect to the capped logits: 1 / (temperature * temperature of the
        position).
        """
        slope = 1.0 / self.temperature
        return ConstantScale(slope) if temperatures is None else temperatures.scale(slope)

    @property
    def square(self) -> float:
        """The factor of the squared log-sum-exp."""
        return self.recipe.lse_square_scale

    @property
    def kept(self) -> float:
        """The probability 1 - e that label smoothing e leaves to the target's class."""
        return 1.0 - self.recipe.label_smoothing

    @property
    def spread(self) -> float:
        """The probability e / V that label smoothing e gives to each of the V classes of all shards."""
        return self.recipe.label_smoothing / self.classes.total

    @property
    def sums_classes(self) -> bool:
        """Whether the forward needs a weighted sum over all classes.

        Class probabilities, label smoothing and the requested distance sum need this sum.
        """
        return self.has_probabilities or self.spread != 0.0 or self.wanted.distance_sum

    @property
    def needs_class_weights(self) -> bool:
        """Whether the weights of all classes are needed, not only the weights of the targets."""
        return self.is_weighted and self.sums_classes

    def folding(self, dtype: nl.DType) -> Folding | None:
        """Return how GpSimd *folds* chunks, that is, halves the number of elements that Vector compares; None for no
        folding.

        Chunks of float32 are not folded, because their loads take longer than the maximum; nor are chunks under a cap.
        With an entropy, chunks are folded only in bfloat16 and without sums over classes.
        """
        if dtype == nl.float32 or self.softcap is not None:
            return None
        if self.wanted.entropy:
            return _BESIDE_ENTROPY if dtype == nl.bfloat16 and not self.sums_classes else None
        return _BESIDE_CLASS_SUMS if self.sums_classes else BESIDE_EXPONENTIALS

    @property
    def forward_plan(self) -> SbufPlan:
        """The SBUF that the forward needs. It has a scratch tile each for capped logits, class weights, class
        probabilities and the products of sums over all classes, if an option needs it.
        """
        return self._plan(self.softcap is not None, self.needs_class_weights, self.has_probabilities, self.sums_classes)

    @property
    def backward_plan(self) -> SbufPlan:
        """The SBUF that the backward needs. It has a scratch tile each for exponentials, the squares of capped logits,
        class weights and class probabilities, if an option needs it.
        """
        return self._plan(not self.is_plain, self.softcap is not None, self.needs_class_weights, self.has_probabilities)

    def _plan(self, *scratch: bool) -> SbufPlan:
        small = _SMALL_BYTES if self.is_plain else _SMALL_BYTES_OF_OPTIONS
        return SbufPlan(max(small, _SMALL_BYTES_OF_SHIFT) if self.with_shift else small, sum(scratch))


# A launch with every option has the most scratch. A chosen tiling has to fit then, too.
_EVERYTHING = Options(
    Classes(0, 1, 2),
    is_weighted=True,
    has_probabilities=True,
    recipe=LossOptions(label_smoothing=1.0, logit_softcap=1.0),
    wanted=Wanted(entropy=True),
)
PLAIN_PLAN = Options(Classes(0, 1, 1), is_plain=True).forward_plan
SHIFTED_PLAN = Options(Classes(0, 1, 1), is_plain=True, with_shift=True).forward_plan
LARGEST_PLAN = _EVERYTHING.forward_plan


# More positions of a partition are divided into several batches.
POSITIONS_PER_PARTITION_MAX = 256


class Layout(NamedTuple):
    """The numbers of partitions per position and of positions per partition; at most one of them may be larger than 1.

    Attributes:
        partitions_per_position: the number of partitions of a position, for launches of few positions.
        positions_per_partition: the maximum number of positions of a partition, for launches of few classes.
    """

    partitions_per_position: int = 1
    positions_per_partition: int = 1


ONE_A_PARTITION = Layout()


@dataclass(frozen=True)
class Launch:
    """The arguments that all cross-entropy kernels share.

    Attributes:
        function: the name of the function in error messages.
        logits_hbm: the logits, [N, V].
        targets_hbm: [N] classes, or [N, V] class probabilities.
        class_weight_hbm: the class weights, [V], or None.
        positions_per_batch: the number of positions of a batch.
        chunk_size: the number of classes of a chunk.
        dtype: the type of the tiles.
        temperature_hbm: temperatures of positions, float32 [N] or [1], or None; the logits are divided by these
            temperatures and by :attr:`LossOptions.temperature`.
        layout: the requested layout; :mod:`.layouts.batches` decides whether the launch can have this layout.
    """

    function: str
    logits_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor
    class_weight_hbm: nl.NkiTensor | None
    positions_per_batch: int
    chunk_size: int
    dtype: nl.DType
    temperature_hbm: nl.NkiTensor | None = None
    layout: Layout = ONE_A_PARTITION

    @property
    def num_positions(self) -> int:
        """The number of positions, N."""
        return self.logits_hbm.shape[0]

    @property
    def vocab_size(self) -> int:
        """The number of columns of the logits, V."""
        return self.logits_hbm.shape[1]

    def batches(self) -> list[Batch]:
        """Return the batches of the current core; the list is empty if there are fewer positions than cores."""
        return self.batches_of(nl.program_id())

    def batches_of(self, core: int) -> list[Batch]:
        """Return the batches of core number ``core``."""
        cores = nl.num_programs()
        rows = rows_per_batch(self.function, self.positions_per_batch, self.vocab_size, cores)
        return batches_of_core(self.num_positions, cores, core, rows)

    @property
    def cores_are_alike(self) -> bool:
        """Whether the launch has two cores with equally many batches."""
        return nl.num_programs() == 2 and len(self.batches_of(0)) == len(self.batches_of(1))

    def temperatures(self, rows: LoadedRows, shape: tuple[int, int]) -> Temperatures | None:
        """Load the temperatures of a group of batches; None if the launch has no tensor of temperatures.

        Args:
            rows: loads the elements that belong to the rows.
            shape: the shape of the tile, (rows of a batch, batches).
        """
        if self.temperature_hbm is None:
            return None
        return Temperatures.load(self.temperature_hbm, rows, shape, TEMPERATURE_LIMITS)

    def divided(self, plan: SbufPlan, batches: list[Batch], most_buffers: int = MAX_CHUNK_BUFFERS) -> DividedSbuf:
        """Return the division of SBUF among chunk buffers and the scratch tiles of ``plan``.

        Args:
            plan: the scratch tiles that the kernel needs.
            batches: the batches of the core, at least one.
            most_buffers: the maximum number of chunk buffers.
        """
        loads = len(batches) * div_ceil(self.vocab_size, self.chunk_size)
        return plan.divided(batches[0].rows, self.chunk_size, self.dtype, loads, most_buffers)

    def divided_beside_folds(self, options: Options, batches: list[Batch]) -> tuple[DividedSbuf, Folding | None]:
        """Return the division of SBUF for a forward with the exact maximum, and how GpSimd folds chunks.

        Chunks are folded only if enough chunk buffers fit beside the tiles of folded chunks.

        Returns:
            The division, and the folding (:meth:`Options.folding`) or None if chunks are not folded.
        """
        plan, folding = options.forward_plan, options.folding(self.dtype)
        if folding is not None:
            for most_buffers in BUFFERS_OF_MAXIMUM:
                sbuf = self.divided(plan, batches, most_buffers)
                if folding.fits(plan, sbuf):
                    return sbuf, folding
        # Tiles of scratch have two turns, which more chunks would only wait for.
        most_buffers = MAX_CHUNK_BUFFERS if plan.num_scratch else BUFFERS_OF_MAXIMUM[0]
        return self.divided(plan, batches, most_buffers), None


@dataclass(frozen=True)
class UniformUpstream:
    """An upstream gradient that is the same number for all losses.

    Attributes:
        lse_hbm: the log-sum-exp, [N].
        scale: the upstream gradient of every loss.
    """

    lse_hbm: nl.NkiTensor
    scale: float


@dataclass(frozen=True)
class PositionUpstream:
    """The upstream gradients and statistics of each position: vectors [N] in HBM, None for absent ones.

    Attributes:
        lse_hbm: the log-sum-exp.
        grad_loss_hbm: gradient of each loss; None in linear cross-entropy only.
        grad_lse_hbm: gradient of each lse.
        grad_logprob_hbm: gradient of each target's log-probability.
        target_weight_hbm: the class weight ``w[t]`` of each target, or for class probabilities the sum of the class
            factors of each position.
        weight_sum: the sum of all class weights, a number.
        maximum_hbm, log_sum_hbm: the maximum of z and the logarithm of the sum of exp(z - maximum); their sum is lse.
        entropy_hbm, grad_entropy_hbm: the entropy of each position's softmax, and its gradient.
    """

    lse_hbm: nl.NkiTensor
    grad_loss_hbm: nl.NkiTensor | None
    grad_lse_hbm: nl.NkiTensor | None
    grad_logprob_hbm: nl.NkiTensor | None
    target_weight_hbm: nl.NkiTensor | None
    weight_sum: float | None
    maximum_hbm: nl.NkiTensor | None
    log_sum_hbm: nl.NkiTensor | None
    entropy_hbm: nl.NkiTensor | None = None
    grad_entropy_hbm: nl.NkiTensor | None = None

    @property
    def required_grad_loss_hbm(self) -> nl.NkiTensor:
        """The gradient of each loss; raises AssertionError if it is None."""
        if self.grad_loss_hbm is None:
            raise AssertionError("PositionUpstream: grad_loss_hbm must be a tensor, got None; pass the gradient")
        return self.grad_loss_hbm


Upstream = UniformUpstream | PositionUpstream


def _obstacle(launch: Launch, options: Options) -> str:
    """Return why a launch needs the exact maximum, as the end of an error message; empty if a shift is possible."""
    cores, wanted = nl.num_programs(), options.wanted
    shifted = replace(options, with_shift=True).forward_plan
    for is_there, obstacle in (
        (options.has_probabilities, "for class probabilities"),
        (options.spread != 0.0, "with label_smoothing, which sums distances from it"),
        (options.softcap is not None, "with logit_softcap"),
        (wanted.argmax, "with with_argmax"),
        (wanted.distance_sum, "with with_distance_sum"),
        (launch.vocab_size == 1, "for a vocabulary of one, of which it is the shift"),
        (launch.num_positions < cores, f"for fewer than {cores} positions, one a core"),
        (launch.num_positions > ROWS_MAX, f"for more than {ROWS_MAX} positions, which are counted in float32"),
        (launch.chunk_size > shifted.largest_chunk(launch.dtype), "for chunks that leave no room for smaller tiles"),
    ):
        if is_there:
            return obstacle
    most = max(len(launch.batches_of(core)) for core in range(cores))
    return f"for more than {BATCHES_MAX} batches a core, got {most}" if most > BATCHES_MAX else ""


# Where a shift pays, fitted to profiles of launches (modelled, not measured). The additional work of a shift takes the
# time that it saves over this many columns of batches; in shorter rows, the fixed cost of a batch shows.
_COLUMNS_OF_BATCHES = 130_000
_COLUMNS_OF_ROW = 4_000
# The same where GpSimd folds chunks, on trn3. On trn2 exponentials take as long there as maxima do.
_COLUMNS_BESIDE_FOLDS = 190_000
# With an entropy, recomputed rows are the more expensive the shorter their chunks are: with fewer columns
# a launch of nothing but such rows takes more than 2.3 times the time of the form with the exact maximum.
_CHUNK_BESIDE_ENTROPY, _COLUMNS_BESIDE_ENTROPY = 8_192, 50_000


def shift_pays(batches: int, vocab_size: int, chunk_size: int, folds: bool, is_trn2: bool) -> bool:
    """Return whether the form with a shift is modelled to be faster on one core than the form with the exact maximum.

    The model holds for 16-bit types: loads of float32 take longer than either form's computation.

    Args:
        batches: the number of batches of the core.
        vocab_size, chunk_size: V, and the columns of a chunk.
        folds: whether GpSimd folds chunks in the form with the exact maximum.
        is_trn2: whether the hardware is trn2.
    """
    if folds and is_trn2:
        return False
    columns = vocab_size - chunk_size // 2
    of_batches = _COLUMNS_BESIDE_FOLDS if folds else _COLUMNS_OF_BATCHES
    least, least_of_batches = limited_shift_columns(_COLUMNS_OF_ROW), limited_shift_columns(of_batches)
    return columns >= least and batches * columns >= least_of_batches


def _shift_pays_for(launch: Launch, options: Options) -> bool:
    """Return whether a shift pays for a launch, by the types, the entropy and :func:`shift_pays`."""
    batches = launch.batches_of(0)
    if launch.dtype != launch.logits_hbm.dtype or launch.dtype not in (nl.bfloat16, nl.float16):
        return False
    folds = False
    if options.wanted.entropy:
        columns = launch.vocab_size - launch.chunk_size
        is_long = launch.chunk_size >= limited_shift_columns(_CHUNK_BESIDE_ENTROPY)
        if not is_long or columns < limited_shift_columns(_COLUMNS_BESIDE_ENTROPY):
            return False
    else:
        _, folding = launch.divided_beside_folds(options, batches)
        folds = folding is not None
    is_trn2 = nisa.get_nc_version() == nisa.nc_version.gen3
    return shift_pays(len(batches), launch.vocab_size, launch.chunk_size, folds, is_trn2)


def with_form(launch: Launch, options: Options, exact_maximum: bool | None) -> Options:
    """Return the options with the form of the forward that ``exact_maximum`` requests.

    True requests the exact maximum of every row, False a shift, None the form that is modelled to be faster. With None,
    a launch that requests a split or packed layout gets the exact maximum.

    Raises:
        AssertionError: if ``exact_maximum`` is none of the three values, or is False and a shift is not possible.
    """
    function = launch.function
    require(
        exact_maximum in (True, False, None),
        f"{function}: exact_maximum must be True, False or None, got {exact_maximum}",
    )
    if exact_maximum:
        return options
    # A layout other than one position a partition takes the exact maximum, and has all options that a shift has.
    if exact_maximum is None and launch.layout != ONE_A_PARTITION:
        return options
    obstacle = _obstacle(launch, options)
    if exact_maximum is None:
        return options if obstacle or not _shift_pays_for(launch, options) else replace(options, with_shift=True)
    require(not obstacle, f"{function}: exact_maximum must be True or None {obstacle}, got False")
    return replace(options, with_shift=True)
