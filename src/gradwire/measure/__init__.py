"""Measures this machine, its links, and the layers of a model."""
