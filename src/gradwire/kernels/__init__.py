"""gradwire: PyTorch data-parallel training made fast on slow networks."""
