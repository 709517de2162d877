"""The shelf of suites: one file a kind."""
