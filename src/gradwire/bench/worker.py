"""One rank of a cell: what `demo.launch.Workers` starts for the bench."""

from __future__ import annotations

from gradwire.bench.run import run_cell
from gradwire.bench.settings import CellJob
from gradwire.demo.worker import serve

if __name__ == "__main__":
    serve(CellJob.from_json, run_cell)
