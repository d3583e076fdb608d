"""A forked process has the object, but not its threads: it must be told, not wait."""

import os
import warnings

import torch

from gradwire.comm.local import run_ranks
from gradwire.engine.synchronizer import Synchronizer
from gradwire.key import name_hash
from gradwire.plan import Parameter, Plan
from gradwire.spec import Entry


def _said_in_child(sync):
    """Reduce in a forked process, and return what it was told."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads at a fork
        child = os.fork()
    if child == 0:
        told = []
        try:
            sync.reduce(0, torch.ones(4), ("w",), lambda _, error: told.append(error), is_last=True)
            os.write(writer, str(told).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as end:
        return end.read()


def test_a_forked_process_is_told_and_its_parent_goes_on():
    def body(mailbox):
        entry = Entry(name_hash("w"), (4,))
        sync = Synchronizer(Plan.of("none"), [Parameter("w", entry)], mailbox)
        said = _said_in_child(sync)
        mean = torch.futures.Future()
        sync.reduce(0, torch.ones(4), ("w",), lambda *got: mean.set_result(got), is_last=True)
        outcome = mean.wait()
        sync.close()
        return said, outcome

    ((said, (mean, error)),) = run_ranks(1, body)
    assert "used in a forked process" in said
    assert error is None
    assert torch.equal(mean, torch.ones(4))
