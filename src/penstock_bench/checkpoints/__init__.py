"""DLIO's checkpoints: shapes, contents, writers, and the run that times them."""
