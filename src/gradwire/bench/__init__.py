"""Compares ways to exchange gradients, side by side in one run."""
