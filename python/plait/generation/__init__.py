"""Generation of text: requests and their scheduler, samplers, grammars, drafts, search and conversations."""
