"""Tests of `penstock.images`."""
