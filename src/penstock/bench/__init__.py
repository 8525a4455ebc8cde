"""The benchmark: DLIO and MLPerf Storage workloads, any loader, one report. See docs/bench.md."""
