"""Shows the doctests under `Example:` as code in the reference pages."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames `Example:` to the section name that the parser knows."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - the parent's signature
        """Change one docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
