"""Decides what goes on the wire, from measured costs. No torch here."""
