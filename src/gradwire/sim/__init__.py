"""Predicts a training step on a network that need not exist. No torch here."""
