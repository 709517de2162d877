"""The shelf of engines: one file a kind."""
