"""Log-likelihoods, perplexity and embeddings of texts."""
