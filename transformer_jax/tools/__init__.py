"""Tools around a run: benchmarks, dry runs, plans, plots."""
