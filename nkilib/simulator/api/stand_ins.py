# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Stand-ins for names of NKI that the simulator does not have, so that older kernels run and errors say what to use.

- :func:`alias`: the object that older kernels know by an undocumented name, or an error with a hint, made from the
  names that modules :func:`offer`;
- :func:`pending`: a documented function that is not implemented yet;
- :data:`COMPILER_MODULES`, :class:`FirstNki`: the package of the compiler, which had the first release of NKI in it.

NKI, 0.7 included, does not document the older names, and new code needs none of them. Each comes from a published
kernel: ``nki.dtype`` as a type in annotations and as a module of types, ``nki.typing.tensor`` in annotations,
``nki.isa.constants`` as the module of the enumerations, and ``nl.bool`` and ``nl.range``.
``nki.experimental.while_loop`` appears in a note of the documentation. Kernels that import ``nki`` for everything else
take ``mutable_tensor``, an annotation, from ``neuronxcc.nki.typing``, where the first release of NKI had it.
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
    """The annotation ``nki.typing.tensor``, or ``nki.typing.tensor[128, 512]`` with the expected shape, of a parameter.

    The shape is for readers: the documentation does not say that a launch checks it, and the simulator checks none.
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
    """The import finder that reports what replaced a module of the first NKI, if the module is not found.

    It knows only submodules of the packages in ``COMPILER_MODULES``. An installed compiler is found first.
    """

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> None:
        """Raise ModuleNotFoundError for a submodule of ``neuronxcc`` that the simulator does not have, with a message
        that names its replacement; return None for all other modules.
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
    """Register a module of NKI for the hints in error messages: its public names, and its contents ``namespace``.

    A hint suggests a name where a kernel asks for one that is misspelt, or that another module has.
    """
    _OFFERED[module] = names
    PUBLIC_NAMES.offer(_CALLED[module], names, namespace)


def _missing(text: str) -> MissingNameError:
    """Return an error for a missing name, with the message ``text``, which may include a hint.

    The error has no name and no object, because Python would then add a suggestion of its own.
    """
    return MissingNameError(text, name=None, obj=None)


def _likely(module: str, name: str) -> str:
    """Return the end of an error message that suggests a name for the missing ``module.name``; empty if none is likely.

    The suggestion is the NKI name of an operation or type that other libraries call ``name``, or the same name in
    another module, or else a name of similar spelling, in ``module`` first.
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
    """Return the object that older kernels know as ``module.name``.

    Raises:
        MissingNameError: if there is none. The message names the replacement of a name that was removed or that comes
            from another library, and for a name that is misspelt or of another module the one that was likely meant.
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
    """Return a stand-in for the documented function ``name``; a call raises NotImplementedError with that name."""

    def not_implemented(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not implemented in the simulator yet")

    not_implemented.__name__ = not_implemented.__qualname__ = name.rpartition(".")[2]
    return not_implemented
