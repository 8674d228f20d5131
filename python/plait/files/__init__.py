"""Model files: reading and writing GGUF, quantising, downloading from the Hugging Face hub."""
