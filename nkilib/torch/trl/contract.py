"""The function of TRL that is replaced: where it stands, how it is called, and the check that it is still that."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

# Who is named in errors.
INSTALL: Final = "nkilib.torch.trl.install"
# The release whose function was compared with ours, as major and minor number.
RELEASE: Final = "1.16"
# TRL's trainers look the function up here at every call.
_MODULE, ATTRIBUTE = "trl.trainer.utils", "_ChunkedLogProbFunction"
_OWN_MODULE, _OWN_NAME = "trl.kernels.chunked_logprob", "ChunkedLogProbFunction"
_GATHER: Final = "maybe_gather_lm_head_ctx"

# Results beside the log-probability, in the order in which they are returned.
OUTPUTS: Final = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
# The log-probability may be named too; it is returned in any case.
KNOWN_OUTPUTS: Final = frozenset({"log_probs", *OUTPUTS})

_EMPTY: Final = inspect.Parameter.empty
# The arguments in their order, with their defaults.
_PARAMETERS: Final[dict[str, Any]] = {
    "hidden": _EMPTY,
    "weight": _EMPTY,
    "bias": _EMPTY,
    "targets": _EMPTY,
    "temperature": _EMPTY,
    "chunk_size": _EMPTY,
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
    "outputs": OUTPUTS,
}


@dataclass(frozen=True)
class Place:
    """Where the function of TRL stands.

    Attributes:
        module: ``trl.trainer.utils``.
        own: TRL's own function, a subclass of ``torch.autograd.Function``.
    """

    module: Any
    own: Any

    @property
    def current(self) -> Any:
        """What stands there now."""
        return getattr(self.module, ATTRIBUTE)

    def put(self, function: Any) -> None:
        """Let every trainer call ``function``."""
        setattr(self.module, ATTRIBUTE, function)

    def gathered(self, *parameters: Any) -> Any:
        """TRL's context in which ZeRO-3 has gathered parameters."""
        return getattr(self.module, _GATHER)(*parameters)


def find_place() -> Place:
    """The place in the TRL that is installed, which is imported.

    Raises:
        ImportError: there is no TRL, or one that differs from the release that this was written for; the message says
            in what.
    """
    try:
        trl = import_module("trl")
    except ModuleNotFoundError as error:
        if error.name != "trl":
            raise
        raise ImportError(
            f"{INSTALL}: needs trl {RELEASE}, and there is none; install it with pip install 'trl=={RELEASE}.*'",
            name="trl",
        ) from None
    version = str(trl.__version__)
    faults = [] if version.split(".")[:2] == RELEASE.split(".") else [f"its version is {version}"]
    try:
        module, own = import_module(_MODULE), getattr(import_module(_OWN_MODULE), _OWN_NAME)
    except (ImportError, AttributeError) as error:
        raise _refused([*faults, f"it has no {_OWN_MODULE}.{_OWN_NAME} ({error})"]) from error
    faults += [f"{_MODULE} has no {name}" for name in (ATTRIBUTE, _GATHER) if not hasattr(module, name)]
    faults += _differences(own)
    if faults:
        raise _refused(faults)
    return Place(module, own)


def _refused(faults: list[str]) -> ImportError:
    return ImportError(
        f"{INSTALL}: needs the token scores of trl {RELEASE}, and the trl here differs: {'; '.join(faults)}; install "
        f"trl=={RELEASE}.*, or an nkilib that knows this one",
        name="trl",
    )


def _differences(function: Any) -> list[str]:
    """How the arguments of a function differ from those that are known, a clause each."""
    _, *found = inspect.signature(function.forward).parameters.values()  # the first is the context
    names, expected = [each.name for each in found], list(_PARAMETERS)
    if names != expected:
        return [f"{_OWN_NAME} takes ({', '.join(names)}) instead of ({', '.join(expected)})"]
    return [
        f"{_OWN_NAME} has {each.name}={each.default!r} by default instead of {_PARAMETERS[each.name]!r}"
        for each in found
        if each.default != _PARAMETERS[each.name]
    ]
