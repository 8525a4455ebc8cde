"""Real jobs that share this machine and one storage; see `__main__`."""
