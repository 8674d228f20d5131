"""Inspection of a running model: captured values, edits, execution plans and traces."""
