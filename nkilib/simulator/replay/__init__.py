"""Launches that run again: what the instructions of a launch do, as a list of steps on arrays."""
