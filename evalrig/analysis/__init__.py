"""Pure numbers: arrays in, estimates out. Knows no file, no engine, no suite."""
