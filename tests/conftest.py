"""Settings of the whole suite."""

from hypothesis import settings

# Time limits belong to benchmarks: a shared machine may pause a test for a second.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
