"""Changes the plan while training runs, alike on every rank. No torch here."""
