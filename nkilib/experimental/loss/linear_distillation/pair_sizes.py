"""The sizes and the needs of a launch, as host code has them that chooses a tiling."""

from __future__ import annotations

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.linear_distillation.host.forward_tiling import (
    PairForwardSizes,
    SecondNeeds,
    StreamSizes,
)
from nkilib.experimental.loss.linear_distillation.host.pair_needs import ModelNeeds, PairNeeds
from nkilib.experimental.loss.linear_distillation.options import ModelOperands, PairLaunch
from nkilib.nki import nl


def pair_needs(launch: PairLaunch) -> PairNeeds:
    """What a forward keeps and does."""
    student, teacher = (
        ModelNeeds(model.bias_hbm is not None, model.softcap is not None, model.scale != 1.0) for model in launch.models
    )
    return PairNeeds(
        student,
        teacher,
        mixed=launch.is_mixed,
        reverse=launch.is_reverse,
        target=launch.wanted.needs_target,
        ratio=launch.ratio != 1.0,
    )


def stream_sizes(model: ModelOperands) -> StreamSizes:
    """Of one model's operands in a forward."""
    return StreamSizes(
        model.num_features,
        dtype_bytes(model.dtype),
        weight_itemsize=model.casts.weight,
        staging_bytes=model.casts.forward_staging(model.has_classes_first),
    )


def forward_sizes(launch: PairLaunch, second: SecondNeeds | None = None) -> PairForwardSizes:
    """Of a forward; with what the second visit of a mixture takes."""
    student, teacher = (stream_sizes(model) for model in launch.models)
    return PairForwardSizes(
        launch.num_positions,
        launch.vocab_size,
        student,
        teacher,
        nl.num_programs(),
        pair_needs(launch).of_products(student.products + teacher.products),
        second,
    )
