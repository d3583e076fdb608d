"""The bench: plans and baselines side by side, over models, ranks and rates."""
