"""One benchmark for this package and its peers: same lines, same timed region, by turns. See `run.Benchmark`."""
