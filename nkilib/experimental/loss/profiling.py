"""What a launch of the kernels is modelled to take, from shapes alone: for host code, and in the simulator only."""

from nkilib.experimental.loss.cross_entropy.host.profiling import (
    profile_launch,
)

__all__ = [
    "profile_launch",
]
