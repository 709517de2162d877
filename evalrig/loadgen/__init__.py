"""The load client: it sends a schedule that was drawn once, records time and bytes, and certifies itself. Nothing is parsed
while a block runs."""
