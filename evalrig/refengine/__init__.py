"""The embedded engine: exact, small, in numpy, served over HTTP in SGLang's dialect by its own process (`python -m
evalrig.refengine`)."""
