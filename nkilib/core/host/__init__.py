# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code that the public functions of every framework share. It needs none of the frameworks and is never traced.

- ``options``: options as fields of a dataclass, as keywords of public functions, and reductions;
- ``sizes``: checks of the sizes and types that are passed to functions that choose tilings;
- ``loss``: the registry entry of a loss, stated as data, and the launches that follow from it;
- ``error_bounds``: float64 references, and the accepted errors of float32 arithmetic;
- ``launchable``: a kernel that is launched on its own, and its plain function;
- ``lazy_names``: the names of a package that load their modules when they are first used;
- ``requirement``: the release of a framework that a package needs.
"""
