"""Which releases of PyTorch this package runs on; importing it refuses others."""

from __future__ import annotations

from typing import Final

# The first whose torch.compiler.disable takes a reason.
NEEDED: Final = (2, 8)
_REMEDY: Final = "install it with pip install 'nkilib[torch]'"


def refuse_unfit_torch() -> None:
    """Refuse to go on without PyTorch, or with an older one.

    Raises:
        ImportError: with what is needed and what is there.
    """
    needed = f"nkilib.torch: needs torch {'.'.join(map(str, NEEDED))} or later"
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{needed}, and there is none; {_REMEDY}", name="torch") from None
    version = str(torch.__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < NEEDED:  # 2.8.0a0+git is of 2.8
        raise ImportError(f"{needed}, got {version} in {torch.__file__}; {_REMEDY}", name="torch")


refuse_unfit_torch()
