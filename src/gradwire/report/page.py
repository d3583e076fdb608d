"""Pages from templates; each refers to nothing outside itself."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

_ENVIRONMENT = Environment(
    loader=PackageLoader("gradwire.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render_page(template: str, **values: object) -> str:
    """Return a page's text.

    Args:
        template: Its file in `templates/`.
        values: What the template names.
    """
    return _ENVIRONMENT.get_template(template).render(**values)


def template_text(template: str) -> str:
    """Return a template as it is written."""
    assert _ENVIRONMENT.loader is not None
    return _ENVIRONMENT.loader.get_source(_ENVIRONMENT, template)[0]
