"""penstock: training data from storage to accelerators."""

from .dataset import Dataset, open
from .index import Index

__all__ = ["Dataset", "Index", "open"]
