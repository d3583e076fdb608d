"""Worker processes on limited links, for measured comparisons."""
