"""The kernels in Triton, one op a file; importing this package imports Triton."""
