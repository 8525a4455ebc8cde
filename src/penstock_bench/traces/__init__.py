"""Traces of jobs: import of logs, summaries, and replay."""
