# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Stand-ins for names of NKI that the simulator does not have, so that older kernels run and errors name the remedy.

- :func:`alias`: returns the object for an undocumented name that older kernels use, or raises an error with a hint.
  :func:`offer` registers the public names of a module for these hints.
- :func:`pending`: returns a function that stands for a documented function that is not implemented yet.
- :data:`COMPILER_MODULES`: stand-ins for modules of ``neuronxcc``, the compiler's package, which contained the first
  release of NKI. :class:`FirstNki` raises the error for its other modules.

NKI, 0.7 included, does not document the older names, and new code needs none of them. All come from published kernels:
``nki.dtype`` as a type in annotations and as a module of types, ``nki.typing.tensor`` in annotations,
``nki.isa.constants`` as the module of the enumerations, and ``nl.bool`` and ``nl.range``.
``nki.experimental.while_loop`` appears in a note of the documentation. Some kernels that otherwise import ``nki`` take
the annotation ``mutable_tensor`` from ``neuronxcc.nki.typing``, its module in the first release of NKI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Annotated, Any, NoReturn

from ..language.loops import while_loop
from ..tensors.tensor import NkiTensor
from ..terms import dtypes, enums
from ..terms.calls import PUBLIC_NAMES
from ..terms.errors import MissingNameError
from ..terms.other_names import FIRST_NKI, OTHER_NAMES, REMOVED


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name, f"The replacement of the module ``{name}`` of older NKI releases.")
    for key, value in {**contents, "__all__": sorted(contents)}.items():
        setattr(module, key, value)
    return module


class TensorAnnotation:
    """The annotation ``nki.typing.tensor`` of a parameter, or ``nki.typing.tensor[128, 512]`` with the expected shape.

    The simulator does not check the shape, because the documentation does not say that a launch checks it.
    """

    def __class_getitem__(cls, shape: object) -> object:
        return Annotated[NkiTensor, shape]


_TYPES = {str(dtype): dtype for dtype in dtypes.ALL_DTYPES}
_ANNOTATIONS = {"tensor": TensorAnnotation, "mutable_tensor": NkiTensor}
_CONSTANTS = ("dge_mode", "dma_engine", "engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd")

# Whole modules, by the name under which kernels import them.
MODULES: dict[str, ModuleType] = {
    "nki.experimental": _module("nki.experimental", {"while_loop": while_loop}),
    "nki.dtype": _module("nki.dtype", _TYPES),
    "nki.typing": _module("nki.typing", _ANNOTATIONS),
    "nki.isa.constants": _module("nki.isa.constants", {name: getattr(enums, name) for name in _CONSTANTS}),
}

# The same for the package of the compiler, which had the first release of NKI in it.
COMPILER_MODULES: dict[str, ModuleType] = {
    "neuronxcc": _module("neuronxcc", {}),
    "neuronxcc.nki": _module("neuronxcc.nki", {}),
    "neuronxcc.nki.typing": _module("neuronxcc.nki.typing", _ANNOTATIONS),
}
for _name in ("neuronxcc.nki", "neuronxcc.nki.typing"):
    _parent, _, _leaf = _name.rpartition(".")
    setattr(COMPILER_MODULES[_parent], _leaf, COMPILER_MODULES[_name])
    COMPILER_MODULES[_parent].__path__ = []  # so that Python asks FirstNki for its other submodules


def _first_nki_hint(name: str) -> str:
    if name.startswith("_"):
        return ""
    instead = REMOVED["nki"].get(name)
    return f"; {FIRST_NKI}{f', and use {instead}' if instead else ''}"


def _missing_in_first_nki(name: str) -> Any:
    module = COMPILER_MODULES["neuronxcc.nki"]
    text = f"module {module.__name__!r} has no attribute {name!r}{_first_nki_hint(name)}"
    raise AttributeError(text, name=name, obj=module)


setattr(COMPILER_MODULES["neuronxcc.nki"], "__getattr__", _missing_in_first_nki)  # noqa: B010 - a module's own


class FirstNki(MetaPathFinder):
    """The import finder that raises an error for missing submodules of ``neuronxcc``, and names the replacement.

    Python asks it last, so an installed compiler is found first.
    """

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> None:
        """Return None for modules outside ``neuronxcc``.

        Raises:
            ModuleNotFoundError: for a submodule of ``neuronxcc``; the message names the replacement.
        """
        if fullname.startswith("neuronxcc."):
            hint = _first_nki_hint(fullname.rpartition(".")[2])
            # With the name of the module that is asked for, `from package import module` would hide this error.
            raise ModuleNotFoundError(f"No module named {fullname!r}{hint}", name="neuronxcc")


# Single names in documented modules. (A submodule above is an attribute of its parent as well.)
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "nki": {},
    "nki.isa": {},
    "nki.language": {"bool": dtypes.bool_, "range": range, "dtype": dtypes.DType, "tensor": NkiTensor},
}

# The names that each documented module offers, and the name under which kernels know the module.
_OFFERED: dict[str, Sequence[str]] = {}
_CALLED = {"nki.isa": "nisa", "nki.language": "nl"}
_CALLED |= {name: name for name in ("nki", "nki.collectives", "nki.compiler")}


def offer(module: str, names: Sequence[str], namespace: Mapping[str, Any]) -> None:
    """Register the public names of a module of NKI for the hints in error messages.

    A hint suggests the name that a kernel probably meant, if it misspelt a name or used the wrong module.

    Args:
        module: the name of the module, such as ``nki.isa``.
        names: the public names.
        namespace: the contents of the module.
    """
    _OFFERED[module] = names
    PUBLIC_NAMES.offer(_CALLED[module], names, namespace)


def _missing(text: str) -> MissingNameError:
    # Without a name and an object: with these, Python would add a suggestion of its own.
    return MissingNameError(text, name=None, obj=None)


def _likely(module: str, name: str) -> str:
    """Return the end of an error message that suggests a name for the missing ``module.name``; empty without a
    suggestion.

    The suggestion is the first of these that exists: the NKI name of an operation or type that other libraries call
    ``name``; ``name`` in another module; a name of similar spelling in ``module``; one in another module.
    """
    if name.startswith("_"):
        return ""
    if name in OTHER_NAMES.get(module, {}):
        return f"; use {OTHER_NAMES[module][name]}"
    others = [other for other in _OFFERED if other != module]
    for other in others:
        if name in _OFFERED[other]:
            return f"; it is {_CALLED[other]}.{name}"
    for candidate_module in (module, *others):
        spelt = {candidate.lower(): candidate for candidate in _OFFERED.get(candidate_module, ())}
        close = get_close_matches(name.lower(), spelt, 1, cutoff=0.6 if candidate_module == module else 0.8)
        if close:
            return f"; did you mean {_CALLED[candidate_module]}.{spelt[close[0]]}?"
    return ""


def alias(module: str, name: str) -> Any:
    """Return the object that older kernels use under the undocumented name ``module.name``.

    Raises:
        MissingNameError: there is no such object. The message names the replacement of a removed name or of another
            library's name, or suggests the name that was probably meant.
    """
    submodule = MODULES.get(f"{module}.{name}")
    if submodule is not None:
        return submodule
    if name in _ATTRIBUTES.get(module, {}):
        return _ATTRIBUTES[module][name]
    instead = REMOVED[module].get(name)
    if instead is not None:
        raise _missing(f"{module}.{name} was removed from NKI before release 0.6; use {instead}")
    likely = _likely(module, name)
    text = f"module {module!r} has no attribute {name!r}{likely}"
    raise _missing(text) if likely else MissingNameError(text)


def pending(name: str) -> Callable[..., NoReturn]:
    """Return a function that raises NotImplementedError, in place of the documented function ``name``."""

    def not_implemented(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not implemented in the simulator yet")

    not_implemented.__name__ = not_implemented.__qualname__ = name.rpartition(".")[2]
    return not_implemented
