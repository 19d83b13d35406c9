# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of the cross-entropy kernels: its options and arguments, known when a kernel is traced, and the form of the
forward.

They determine every branch of the kernels. :class:`LossOptions` are the user's options (:class:`RecipeOptions`: those
that PyTorch lacks, as keywords); :class:`Options` those of a launch, with its :class:`Classes` and the :class:`Wanted`
results; :class:`Launch` its tensors and sizes. A backward also has an :data:`Upstream`, its upstream gradients and the
statistics of the forward: :class:`PositionUpstream`, or :class:`UniformUpstream`. The forward has two forms, with the
exact maximum of every row or with a shift in its place; :func:`with_form` chooses the form.

The needs of a forward or a backward in SBUF are :attr:`Options.forward_plan` and :attr:`Options.backward_plan`; the
constants ``..._PLAN`` are those that tilings are chosen with, and :func:`shift_pays` compares the times of the two
forms.

Range checks of options, :func:`check_options` and :func:`check_recipe`, with the limits (:data:`OPTION_MAX`,
:data:`SOFTCAP_MIN`, :data:`TEMPERATURE_LIMITS`) are here, since torch and jax use them; those of tensors are in
:mod:`.validation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypedDict

from nkilib.core.hardware import div_ceil
from nkilib.core.host.options import Numbers, is_number
from nkilib.core.plan_limits import limited_shift_columns
from nkilib.core.rows.batches import Batch, batches_of_core
from nkilib.core.rows.checks import require
from nkilib.core.rows.elements import rows_per_batch
from nkilib.core.rows.recomputation import BATCHES_MAX, ROWS_MAX
from nkilib.core.rows.sbuf import DividedSbuf, SbufPlan
from nkilib.core.rows.scale import ConstantScale, Scale
from nkilib.experimental.loss.temperatures import LoadedRows, TemperatureLimits, Temperatures
from nkilib.nki import nl

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
    """The options of :class:`LossOptions` that ``torch.nn.functional.cross_entropy`` does not have, as keywords."""

    logit_softcap: float | None
    lse_square_scale: float
    temperature: float | Numbers
    exact_maximum: bool | None


@dataclass(frozen=True)
class LossOptions:
    """The options of a training recipe; the defaults are those of PyTorch.

    Attributes:
        ignore_index: target of ignored positions.
        label_smoothing: e, in [0, 1], the share of the target that is spread over all classes; arXiv 1512.00567.
        logit_softcap: c from 1e-30 to 1e30; replaces the logits x by c * tanh(x / c). None leaves them unchanged.
            arXiv 2408.00118.
        lse_square_scale: s from 0 to 1e30, the factor of the squared log-sum-exp (z-loss); arXiv 2204.02311.
        temperature: divisor of the logits, applied after the cap; from 1e-6 to 1e6.
        exact_maximum: the form of the forward: True computes the maximum of every row before its exponentials, False
            uses a shift, None selects the faster form.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    logit_softcap: float | None = None
    lse_square_scale: float = 0.0
    temperature: float = 1.0
    exact_maximum: bool | None = None


def check_options(function: str, options: LossOptions) -> None:
    """Check that options are in range, except ``ignore_index``: only the caller knows the type of the targets.

    Raises:
        AssertionError: if an option is out of range; the message has function, requirement and value.
    """
    smoothing = options.label_smoothing
    if not is_number(smoothing) or not 0.0 <= smoothing <= 1.0:
        raise AssertionError(f"{function}: label_smoothing must be a number from 0 to 1, got {smoothing}")
    check_recipe(function, options.logit_softcap, options.lse_square_scale, options.temperature)


def check_recipe(function: str, cap: float | None, square: float, temperature: float) -> None:
    """Check that the options of :class:`RecipeOptions`, except ``exact_maximum``, are in range: ``logit_softcap``,
    ``lse_square_scale`` and ``temperature``.

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
    """Flags of the forward's results besides loss and log-sum-exp; ``target`` stands for the target's logit and
    weight.
    """

    argmax: bool = False
    entropy: bool = False
    distance_sum: bool = False
    log_sum: bool = False
    target: bool = False
    log_sum_squares: bool = False
    mean_logit: bool = False


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
        """The cap of the logits, or None."""
        return self.recipe.logit_softcap

    @property
    def temperature(self) -> float:
        """The divisor of the logits, applied after the cap."""
        return self.recipe.temperature

    @property
    def scale(self) -> float:
        """The factor by which the logits, or with a cap c the tangents tanh(logits / c), are multiplied to give z, the
        logits after cap and temperature. Temperatures of positions still have to divide it.
        """
        return (1.0 if self.softcap is None else self.softcap) / self.temperature

    def scale_of(self, temperatures: Temperatures | None) -> Scale:
        """Return :attr:`scale`, divided by the temperatures of positions if there are any."""
        return ConstantScale(self.scale) if temperatures is None else temperatures.scale(self.scale)

    def slope_of(self, temperatures: Temperatures | None) -> Scale:
        """Return the derivative of z by the logits, without the derivative of a cap.

        It is 1 over the temperature, and over the temperatures of positions if there are any.
        """
        slope = 1.0 / self.temperature
        return ConstantScale(slope) if temperatures is None else temperatures.scale(slope)

    @property
    def square(self) -> float:
        """The factor of the squared log-sum-exp."""
        return self.recipe.lse_square_scale

    @property
    def kept(self) -> float:
        """1 - e with the label smoothing e: the share of the target that its own class keeps."""
        return 1.0 - self.recipe.label_smoothing

    @property
    def spread(self) -> float:
        """e / V with the label smoothing e: the share of the target that each of the V classes of all shards gets."""
        return self.recipe.label_smoothing / self.classes.total

    @property
    def sums_classes(self) -> bool:
        """Whether the forward needs sums over all classes besides the sum of exponentials.

        Class probabilities, label smoothing and the distance sum of a shard need them.
        """
        return self.has_probabilities or self.spread != 0.0 or self.wanted.distance_sum

    @property
    def needs_class_weights(self) -> bool:
        """Whether the weights of all classes are needed, not only the weights of the targets."""
        return self.is_weighted and self.sums_classes

    def folds_maxima(self, dtype: nl.DType) -> bool:
        """Return whether GpSimd folds chunks of ``dtype``, so that Vector computes the maximum of fewer elements.

        An entropy doubles Vector's work per chunk. Only bfloat16 is folded: there Vector alone raises elements
        whose exponentials are negligible, in a quarter of a cycle each.
        """
        return self.wanted.entropy and dtype == nl.bfloat16 and self.softcap is None and not self.sums_classes

    @property
    def forward_plan(self) -> SbufPlan:
        """The :class:`SbufPlan` of the forward, with scratch for scores, class weights, class probabilities and
        products.
        """
        return self._plan(self.softcap is not None, self.needs_class_weights, self.has_probabilities, self.sums_classes)

    @property
    def backward_plan(self) -> SbufPlan:
        """The :class:`SbufPlan` of the backward, with scratch for exponentials, squares, class weights and class
        probabilities.
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


@dataclass(frozen=True)
class Launch:
    """The arguments that all kernels share.

    Attributes:
        function: the name of the function in error messages.
        logits_hbm: the logits, [N, V].
        targets_hbm: [N] classes, or [N, V] class probabilities.
        class_weight_hbm: the class weights, [V], or None.
        positions_per_batch, chunk_size: the positions of a batch and the classes of a chunk, into which the
            logits are cut.
        dtype: the type of the tiles.
        temperature_hbm: temperatures of positions, float32 [N] or [1], or None; the logits are divided by them and by
            :attr:`LossOptions.temperature`.
    """

    function: str
    logits_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor
    class_weight_hbm: nl.NkiTensor | None
    positions_per_batch: int
    chunk_size: int
    dtype: nl.DType
    temperature_hbm: nl.NkiTensor | None = None

    @property
    def num_positions(self) -> int:
        """The number of positions, N."""
        return self.logits_hbm.shape[0]

    @property
    def vocab_size(self) -> int:
        """The number of columns of the logits, V."""
        return self.logits_hbm.shape[1]

    def batches(self) -> list[Batch]:
        """Return the batches of the current core; a core has none if there are fewer positions than cores."""
        return self.batches_of(nl.program_id())

    def batches_of(self, core: int) -> list[Batch]:
        """Return the batches of any core of the launch."""
        cores = nl.num_programs()
        rows = rows_per_batch(self.function, self.positions_per_batch, self.vocab_size, cores)
        return batches_of_core(self.num_positions, cores, core, rows)

    def temperatures(self, rows: LoadedRows, shape: tuple[int, int]) -> Temperatures | None:
        """Load the temperatures of a group of rows, whose numbers of rows and batches are ``shape``; None if there are
        none.
        """
        if self.temperature_hbm is None:
            return None
        return Temperatures.load(self.temperature_hbm, rows, shape, TEMPERATURE_LIMITS)

    def divided(self, plan: SbufPlan, batches: list[Batch]) -> DividedSbuf:
        """Divide SBUF among chunk buffers and the plan's scratch, for the core's batches, of which there must be at
        least one.
        """
        loads = len(batches) * div_ceil(self.vocab_size, self.chunk_size)
        return plan.divided(batches[0].rows, self.chunk_size, self.dtype, loads)


@dataclass(frozen=True)
class UniformUpstream:
    """The same upstream gradient for all losses.

    Attributes:
        lse_hbm: the log-sum-exp, [N].
        scale: the gradient of each loss.
    """

    lse_hbm: nl.NkiTensor
    scale: float


@dataclass(frozen=True)
class PositionUpstream:
    """The upstream gradients and statistics of each position: vectors [N] in HBM, None for absent ones.

    Attributes:
        lse_hbm: the log-sum-exp.
        grad_loss_hbm: gradient of each loss; only linear cross-entropy may do without it (None).
        grad_lse_hbm, grad_logprob_hbm: gradients of each lse, and of each target's log-probability.
        target_weight_hbm: the class weight ``w[t]`` of each target, or for class probabilities the sum of each
            position's factors.
        weight_sum: the sum of all class weights, a number.
        maximum_hbm, log_sum_hbm: the maximum of z and the logarithm of the sum of exp(z - maximum); their sum
            is lse.
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
        """The gradient of each loss, for kernels that require it; an AssertionError is raised if it is None."""
        if self.grad_loss_hbm is None:
            raise AssertionError("PositionUpstream: grad_loss_hbm must be a tensor, got None; pass the gradient")
        return self.grad_loss_hbm


Upstream = UniformUpstream | PositionUpstream


def _obstacle(launch: Launch, options: Options) -> str:
    """Return the reason why a launch needs the exact maximum, as a part of an error message; empty if there is none."""
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


# Where a shift pays, fitted to profiles of launches on trn2 (modelled, not measured). The additional work of a shift
# takes the time that it saves over this many columns of batches; in shorter rows, the fixed cost of a batch shows.
_COLUMNS_OF_BATCHES = 130_000
_COLUMNS_OF_ROW = 4_000
# With an entropy, recomputed rows are the more expensive the shorter their chunks are: with fewer columns
# a launch of nothing but such rows takes more than 2.3 times the time of the form with the exact maximum.
_CHUNK_BESIDE_ENTROPY, _COLUMNS_BESIDE_ENTROPY = 8_192, 50_000


def shift_pays(batches: int, vocab_size: int, chunk_size: int) -> bool:
    """Return whether, on one core, a pass for the maximum of all rows takes longer than all additional work of a
    shift.

    This holds for 16-bit types: loads of float32 take longer than either pass.

    Args:
        batches: the number of batches of the core.
        vocab_size, chunk_size: V, and the columns of a chunk.
    """
    columns = vocab_size - chunk_size // 2
    least, least_of_batches = limited_shift_columns(_COLUMNS_OF_ROW), limited_shift_columns(_COLUMNS_OF_BATCHES)
    return columns >= least and batches * columns >= least_of_batches


def _shift_pays_for(launch: Launch, options: Options) -> bool:
    """Return whether a shift pays for a launch, by its types, its entropy and :func:`shift_pays`."""
    is_short = launch.dtype == launch.logits_hbm.dtype and launch.dtype in (nl.bfloat16, nl.float16)
    columns = launch.vocab_size - launch.chunk_size
    is_long = launch.chunk_size >= limited_shift_columns(_CHUNK_BESIDE_ENTROPY)
    is_long = is_long and columns >= limited_shift_columns(_COLUMNS_BESIDE_ENTROPY)
    if options.wanted.entropy and not is_long:
        return False
    return is_short and shift_pays(len(launch.batches_of(0)), launch.vocab_size, launch.chunk_size)


def with_form(launch: Launch, options: Options, exact_maximum: bool | None) -> Options:
    """Return the options with the form of the forward that ``exact_maximum`` requests.

    True means the exact maximum of every row, False a shift in its place, None the one that is modelled to be
    faster.

    Raises:
        AssertionError: if ``exact_maximum`` is none of the three values, or requests a form that the launch or
            its options exclude.
    """
    function = launch.function
    require(
        exact_maximum in (True, False, None),
        f"{function}: exact_maximum must be True, False or None, got {exact_maximum}",
    )
    if exact_maximum:
        return options
    obstacle = _obstacle(launch, options)
    if exact_maximum is None:
        return options if obstacle or not _shift_pays_for(launch, options) else replace(options, with_shift=True)
    require(not obstacle, f"{function}: exact_maximum must be True or None {obstacle}, got False")
    return replace(options, with_shift=True)
