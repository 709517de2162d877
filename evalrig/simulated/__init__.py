"""Programs that run third-party simulated tools in a process of their own (`children.py` starts them). They import nothing of evalrig."""
