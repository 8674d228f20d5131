"""The KV cache of a context and handles of its sequences."""
