"""A table that continues below itself where the console is too narrow for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_FRAME = 3


@dataclass(frozen=True, slots=True)
class WideTable:
    """Rows with a heading, and columns that are broken into blocks that fit.

    Attributes:
        corner: Heading of the row headings.
        columns: Headings.
        rows: A heading, and as many texts as there are columns; rows whose
            heading is in `bold` stand out.
    """

    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Text]]]
    bold: frozenset[str] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for block in self._blocks(options.max_width):
            yield self._table(block)

    def _blocks(self, max_width: int) -> Iterator[list[int]]:
        used = first = 1 + _FRAME + max(len(name) for name in (self.corner, *self._headings()))
        block: list[int] = []
        for i in range(len(self.columns)):
            width = self._width(i) + _FRAME
            if block and used + width > max_width:
                yield block
                block, used = [], first
            block.append(i)
            used += width
        yield block

    def _headings(self) -> list[str]:
        return [heading for heading, _ in self.rows]

    def _width(self, column: int) -> int:
        words = max(len(word) for word in self.columns[column].split(" "))
        return max([words, *(len(texts[column]) for _, texts in self.rows)])

    def _table(self, block: list[int]) -> Table:
        table = Table()
        table.add_column(self.corner, no_wrap=True)
        for i in block:
            width = self._width(i)
            table.add_column(self.columns[i], justify="right", min_width=width, max_width=width)
        for heading, texts in self.rows:
            style = "bold" if heading in self.bold else ""
            table.add_row(heading, *(texts[i] for i in block), style=style)
        return table
