"""Kernels: the work on values and bytes, behind one set of ops."""

from gradwire.kernels import ops, select

__all__ = ["ops", "select"]
