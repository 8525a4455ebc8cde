"""Benchmarks of penstock against floors and other loaders; see README.md."""
