"""Addresses of the project, from `[project.urls]` of pyproject.toml: MkDocs calls `on_config`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def read_addresses() -> dict[str, str]:
    """Return the addresses that are set: those of `.example` are none yet."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls: dict[str, str] = tomllib.load(file)["project"]["urls"]
    return {name: url for name, url in urls.items() if ".example/" not in url}


def on_config(config: Any) -> Any:
    """Give the site its own address and that of the sources, where they are set."""
    addresses = read_addresses()
    config["site_url"] = addresses.get("Documentation")
    config["repo_url"] = addresses.get("Source")
    return config
