"""Reports of sweeps: the map of winners, break-even lines, scaling, cost."""
