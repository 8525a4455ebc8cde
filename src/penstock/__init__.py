"""penstock: training data from storage to accelerators."""
