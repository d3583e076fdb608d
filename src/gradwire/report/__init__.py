"""Results as plain data, and the renderers that turn them into text and HTML."""
