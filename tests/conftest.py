"""Settings of the whole suite."""

import gc
import os

from hypothesis import settings

# Time limits belong to benchmarks: a shared machine may pause a test for a second.
# PENSTOCK_EXAMPLES=1000 looks longer for what breaks a property.
examples = int(os.environ.get("PENSTOCK_EXAMPLES", "30"))
settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=examples)
settings.load_profile("penstock")


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not in the libraries and thousands of tests."""
    gc.collect()
    gc.freeze()
