"""The shelf of gates: one file a kind."""
