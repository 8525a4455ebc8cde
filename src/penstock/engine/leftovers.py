"""Names that systems leave in folders: files and folders that are no data. Pure.

The core has the same list for folders and archives, in cpp/ground/leftovers.hpp.
"""

from __future__ import annotations

import re

LEFTOVERS = (
    *("__macosx", "icon\r"),  # macOS, whose others are hidden
    *("thumbs.db", "ehthumbs.db", "desktop.ini"),  # Windows
    *("$recycle.bin", "recycler", "system volume information"),
    *("@eadir", "#recycle", "@recycle", "#snapshot"),  # NAS
    *("@recently-snapshot", "network trash folder", "temporary items"),
    *("lost+found", "__pycache__", "_success"),  # Linux, Python, Spark
)
"""Names, in lower case."""
_names = "|".join(map(re.escape, LEFTOVERS))
_find = re.compile(rf"(?:^|/)(?:\.(?!\.?(?:/|\Z))|(?:{_names})(?=/|\Z))", re.I | re.A).search


def is_left_over(path: str) -> bool:
    """True if a folder of a path, or the file, is hidden or was left by a system."""
    return _find(path) is not None
