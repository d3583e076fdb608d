"""One rank of a cell: what `demo.launch.Workers` starts for the bench."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.bench.settings import CellJob
from gradwire.demo.worker import Tell, serve


def _load() -> Callable[[CellJob, int, str, Tell], None]:
    from gradwire.bench.run import run_cell  # noqa: PLC0415 - loads torch

    return run_cell


if __name__ == "__main__":
    serve(CellJob.from_json, _load)
