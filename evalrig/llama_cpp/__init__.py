"""llama.cpp's server out of the `xllamacpp` wheel: how it is started, spoken to, read back, and given other weights."""
