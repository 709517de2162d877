"""The embedded engine: exact, small, in numpy, served over HTTP by its own process."""
