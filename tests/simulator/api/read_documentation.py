# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write ``documented_api.json``: names, parameters, defaults and members of NKI's public API, read from its stubs.

    python -m tests.simulator.api.read_documentation <directory of nki/__init__.py> > documented_api.json

The stubs are those of the NKI 0.6 documentation in the repository aws-neuron/aws-neuron-sdk, directory
``nki/api/nki``. Only facts are taken: no docstring, no annotation except the type of a constant.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

MODULES = {
    "nki": "__init__.py",
    "nki.isa": "isa/__init__.py",
    "nki.language": "language/__init__.py",
    "nki.collectives": "collectives/__init__.py",
}


def read_parameters(arguments: ast.arguments) -> list[list[str]]:
    """``[name]`` or ``[name, default]`` for each parameter, in order; starred ones with their stars."""
    if arguments.posonlyargs or arguments.kwonlyargs:
        raise ValueError("a kind of parameter that the stubs did not have so far")
    required = len(arguments.args) - len(arguments.defaults)
    result = [[argument.arg] for argument in arguments.args]
    for parameter, default in zip(result[required:], arguments.defaults, strict=True):
        parameter.append(ast.unparse(default))
    if arguments.vararg is not None:
        result.append([f"*{arguments.vararg.arg}"])
    if arguments.kwarg is not None:
        result.append([f"**{arguments.kwarg.arg}"])
    return result


def read_class(node: ast.ClassDef) -> dict[str, Any]:
    """Members of an enumeration; attributes, properties and methods of another class."""
    if [ast.unparse(base) for base in node.bases] == ["Enum"]:
        assignments = [item for item in node.body if isinstance(item, ast.Assign)]
        return {"members": {ast.unparse(item.targets[0]): ast.literal_eval(item.value) for item in assignments}}
    attributes: list[str] = []
    methods: dict[str, list[list[str]]] = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign | ast.Assign):
            attributes.append(ast.unparse(item.target if isinstance(item, ast.AnnAssign) else item.targets[0]))
        elif isinstance(item, ast.FunctionDef) and item.decorator_list:
            attributes.append(item.name)  # a property
        elif isinstance(item, ast.FunctionDef):
            methods[item.name] = read_parameters(item.args)
    return {"attributes": attributes, "methods": methods}


def read_module(tree: ast.Module) -> dict[str, Any]:
    """Return what a stub defines, by name; names that it only imports are defined somewhere else."""
    results: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            results[node.name] = {"parameters": read_parameters(node.args)}
        elif isinstance(node, ast.ClassDef):
            results[node.name] = read_class(node)
        elif isinstance(node, ast.AnnAssign):
            results[ast.unparse(node.target)] = {"type": ast.unparse(node.annotation)}
        elif isinstance(node, ast.Assign):
            results[ast.unparse(node.targets[0])] = {"type": None}
    return results


def main() -> None:
    root = Path(sys.argv[1])
    api = {module: read_module(ast.parse((root / file).read_text())) for module, file in MODULES.items()}
    # A line for each name.
    lines = [
        f"{json.dumps(module)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(what)}" for name, what in names.items())
        + "\n}"
        for module, names in api.items()
    ]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
