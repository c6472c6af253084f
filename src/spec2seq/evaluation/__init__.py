"""Measuring what the package promises."""
