"""Reports on a bench: numbers, doubts, words, then text, HTML, JSON and CSV."""
