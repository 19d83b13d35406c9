"""Kernels: how they are launched, what goes in and what comes out."""
