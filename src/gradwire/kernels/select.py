"""Which back end runs an op on the CPU, and why another one does not."""

from __future__ import annotations

from gradwire.kernels import ops, reference, reference_sparse

REFERENCE = {
    name: getattr(reference_sparse if name.startswith("sparse") else reference, name)
    for name in ops.names()
}

for _name, _kernel in REFERENCE.items():
    ops.implement(_name, "CompositeExplicitAutograd", _kernel)
