"""The shelf of sandboxes: one file a kind."""
