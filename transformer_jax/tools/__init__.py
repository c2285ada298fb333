"""Tools around a run: benchmarks, dry runs, plots."""
