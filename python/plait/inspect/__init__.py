"""Inspection of a running model: captured values, edits, gradients, execution plans and traces."""
