"""Fuzz targets of the formats: see README.md."""
