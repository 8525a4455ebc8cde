"""Data files of a workload: names, sizes, contents and formats, and their generation."""
