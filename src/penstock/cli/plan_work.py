"""`penstock plan-work`: the group of commands of `work`."""

from .work import plan as app

__all__ = ["app"]
