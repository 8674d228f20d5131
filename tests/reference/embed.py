"""Rows of a table of dequantised values."""

import numpy as np


def embed(table, tokens):
    """table [vocabulary, m], tokens [n] -> [n, m]"""
    return np.asarray(table, np.float32)[np.asarray(tokens)]
