from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from gradwire.report.model import DemoResult
from gradwire.report.text import render_text
from gradwire.report.words import verdicts


def printed(result: DemoResult) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(render_text(result))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_text_shows_table_verdicts_and_notes(result: DemoResult, matches_snapshot):
    matches_snapshot("demo.txt", printed(result))


def test_verdict_says_where_gradwire_loses(result: DemoResult):
    ddp, *_, int4 = result.methods
    slower = replace(int4, steps=tuple(replace(s, exposed_s=3.0, loss=4.0) for s in int4.steps))
    (line,) = verdicts(replace(result, methods=(ddp, slower)))
    assert line == (
        "gradwire int4 against plain DDP: LOSES time: a step is 1.65 times slower "
        "(3310 ms, not 2012 ms); LOSES in training loss, which ends 1.894 higher."
    )


def test_verdict_without_gradwire_says_so(result: DemoResult):
    (line,) = verdicts(replace(result, methods=result.methods[:3]))
    assert line.startswith("gradwire was not among the methods")


def test_table_marks_ranks_that_differ(result: DemoResult):
    *rest, int4 = result.methods
    torn = replace(int4, digests=("a1", "b2"))
    assert "NO" in printed(replace(result, methods=(*rest, torn)))
