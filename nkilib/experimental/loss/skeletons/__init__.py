"""Loops that several losses share: of elements, of rows, and of classes of a row."""
