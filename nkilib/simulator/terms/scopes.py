# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scopes: the launch, the core and the iterations of dynamic loops to which an object belongs.

An *object* is a tensor, a register or an ordering edge between instructions. :func:`new_scope` makes a :data:`Scope`;
:func:`is_around` and :func:`why_apart` compare two.

On the device, SBUF, PSUM and registers belong to one core for the time of one launch, and the device runs one copy of
the body of a dynamic loop. In Python, however, a cache or a variable outside of the kernel can keep a tensor, and code
of another core, launch or iteration can use it there. Scopes detect such uses, which the device does not allow.
"""

from __future__ import annotations

from itertools import count

# A number for the launch, for the core, and for the iteration of each dynamic loop, outermost first. The scope of an
# object that all cores of a launch share has the launch only; the empty scope includes every other.
Scope = tuple[int, ...]

# The numbers of a core's scope: the launch and the core.
CORE = 2
_NUMBERS = count()


def new_scope(outer: Scope = ()) -> Scope:
    """Return a new scope inside ``outer``, different from all other scopes of this process."""
    return (*outer, next(_NUMBERS))


def is_around(outer: Scope, inner: Scope) -> bool:
    """Return whether ``inner`` is ``outer`` or lies inside it: an object of ``outer`` exists in ``inner``."""
    return inner[: len(outer)] == outer


def why_apart(scope: Scope, here: Scope, in_loop: str) -> str:
    """Return the end of an error message: the reason why an object of ``scope`` does not exist in ``here``.

    Args:
        scope: the scope of the object; it is not around ``here``.
        here: the scope in which the object is used.
        in_loop: the text to return if launch and core are the same, so that an iteration of a dynamic loop is the
            reason.
    """
    if scope[:1] != here[:1]:
        return (
            "belongs to another launch, and a variable outside of the kernel or a cache has kept it; a launch uses its "
            "arguments and what it makes itself"
        )
    if scope[:CORE] != here[:CORE]:
        return (
            "belongs to the other core; cores exchange data in nl.shared_hbm, ordered by nisa.core_barrier, or with "
            "nisa.sendrecv"
        )
    return in_loop
