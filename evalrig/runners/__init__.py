"""The shelf of runners: one file a kind."""
