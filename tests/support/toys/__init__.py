"""What tests share: a toy language model as an engine, and run folders made with it."""
