"""Contenders written in Python: one process each, one epoch per line on standard input."""
