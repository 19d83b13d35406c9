# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The terms of NKI, which all other packages use.

- ``dtypes``: data types, and numpy arrays of the packed ones;
- ``enums``: enumerations and memory regions;
- ``layout``: arithmetic on shapes and strides;
- ``spec``: shapes without data, and the signals that data is needed;
- ``scopes``: the launch, the core and the iterations of loops to which a tensor belongs;
- ``compilation``: compiler settings, and the base of NKI's classes;
- ``argument_checks``: checks of arguments, and of calls against a signature;
- ``public_names``: the public functions by Python's names, and errors for calls that Python refused;
- ``descriptions``: the words for tensors, other values and elements in messages;
- ``errors``, ``tracebacks``: errors, their location in the kernel, and their tracebacks;
- ``other_names``: names of older releases and other libraries, with what to use instead.
"""
