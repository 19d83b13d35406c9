# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled time of softmax and log-softmax, compared with the needs of the hardware.

Modelled, not measured.

    python -m benchmarks.softmax_table [--one-queue] [--axis last|middle|short]

Each row is a launch on two cores of trn2, with the tiling of ``choose_softmax_tiling``. The last columns are the time
as a multiple of the bound (each tensor over HBM once; an exponential for each element) and of the larger one of that
bound and two passes of Scalar over all elements, which a softmax needs that keeps no exponentials.
"""

from __future__ import annotations

import argparse
from math import prod

from nkilib.experimental.softmax import choose_softmax_tiling
from nkilib.experimental.softmax.profiling import profile_softmax_launch
from nkilib.experimental.softmax.tensors import Kind
from nkilib.simulator import ModelParameters

LAST_AXIS = (
    ((4096, 32128), -1),
    ((8, 12, 1024, 1024), -1),
    ((32768, 4096), -1),
    ((512, 262144), -1),
    ((131072, 128), -1),
    ((4096, 1024), -1),
    ((32, 32000), -1),
    ((32, 50257), -1),
)
MIDDLE_AXIS = (((8, 12, 1024, 1024), 2), ((64, 1000, 512), 1))
SHORT_AXIS = (((8, 21, 65536), 1), ((16, 21, 512, 512), 1), ((131072, 64, 2), 1), ((32, 64, 4096), 1))
_AXES = {"last": LAST_AXIS, "middle": MIDDLE_AXIS, "short": SHORT_AXIS}
# Elements that Scalar takes in a microsecond, in 128 partitions of two cores.
_SCALAR_PER_US = 2 * 128 * 1200


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-queue", action="store_true", help="one queue triggers loads and stores")
    parser.add_argument("--axis", choices=tuple(_AXES), default="last")
    arguments = parser.parse_args()
    parameters = ModelParameters(queues_by_direction=not arguments.one_queue)
    print("Modelled, not measured: two cores of trn2")
    heads = f"{'us':>9} {'/ bound':>8} {'/ two passes':>12} {'instructions':>12}"
    print(f"{'shape':22} {'axis':>4} {'type':8} {'kernel':20} {heads}")
    for shape, axis in _AXES[arguments.axis]:
        for dtype in ("bfloat16", "float32"):
            for kind in Kind:
                for direction in ("forward", "backward"):
                    _print_row(shape, axis, dtype, kind, direction, parameters)


def _print_row(
    shape: tuple[int, ...], axis: int, dtype: str, kind: Kind, direction: str, parameters: ModelParameters
) -> None:
    tiling = choose_softmax_tiling(shape, axis, dtype, direction, kind=kind)._asdict()
    profiled = profile_softmax_launch(shape, axis, dtype, kind, direction, parameters=parameters, **tiling)
    fraction = profiled.fraction_of_bound
    assert fraction is not None
    bound = profiled.time_us / fraction
    two_passes = max(bound, 2 * prod(shape) / _SCALAR_PER_US)
    name = f"{kind.value} {direction}"
    sizes = " x ".join(map(str, shape))
    print(
        f"{sizes:22} {axis:4} {dtype:8} {name:20} {profiled.time_us:9.1f} {fraction:8.3f} "
        f"{profiled.time_us / two_passes:12.3f} {sum(profiled.instruction_counts.values()):12}",
        flush=True,
    )


if __name__ == "__main__":
    main()
