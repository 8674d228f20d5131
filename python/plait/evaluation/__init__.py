"""Evaluation of texts: log-likelihoods, perplexity and embeddings."""
