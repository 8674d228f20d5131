"""Looking into a running model: captured values, edits, plans and traces."""
