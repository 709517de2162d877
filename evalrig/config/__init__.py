"""The run file: its schema, and the one module that knows Hydra."""
