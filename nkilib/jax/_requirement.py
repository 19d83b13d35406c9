"""Which releases of JAX this package runs on; importing it refuses others."""

from __future__ import annotations

from typing import Final

# The first of those that Neuron SDK 2.32 and 2.33 name (release-notes/components/jax: 0.7.0 to 0.10.0), and the first
# with the callbacks and types that are used here.
NEEDED: Final = (0, 7)
_REMEDY: Final = "install it with pip install 'nkilib[jax]', on Python 3.11 or later"


def refuse_unfit_jax() -> None:
    """Refuse to go on without JAX, or with an older one.

    Raises:
        ImportError: with what is needed and what is there.
    """
    needed = f"nkilib.jax: needs jax {'.'.join(map(str, NEEDED))} or later"
    try:
        import jax
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise ImportError(f"{needed}, and there is none; {_REMEDY}", name="jax") from None
    if jax.__version_info__ < NEEDED:
        raise ImportError(f"{needed}, got {jax.__version__} in {jax.__file__}; {_REMEDY}", name="jax")


refuse_unfit_jax()
