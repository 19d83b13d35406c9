# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The terms of NKI, which all other packages use.

- ``dtypes``: data types, and numpy arrays of the packed data types;
- ``enums``: enumerations and memory regions;
- ``layout``: arithmetic on shapes and strides;
- ``spec``: shapes without data, and the signals that data is needed;
- ``scopes``: the launch, the core and the iterations of loops to which a tensor belongs;
- ``compilation``: compiler settings;
- ``nki_object``: the base of the classes of NKI;
- ``argument_checks``: checks of the values of arguments;
- ``calls``: errors for calls that do not fit a signature;
- ``descriptions``: the words for tensors, other values and elements in messages;
- ``errors``: errors, and the functions that add the line of the kernel to an error's message;
- ``tracebacks``: tracebacks without frames of the simulator;
- ``other_names``: names of older releases and other libraries, with what to use instead.
"""
