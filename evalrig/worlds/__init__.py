"""The shelf of worlds: one file a kind."""
