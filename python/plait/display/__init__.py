"""HTML and matplotlib pictures of models, contexts, caches, outputs and statistics."""
