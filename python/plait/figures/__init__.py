"""How models, caches, outputs and statistics look in a notebook. Drawings need matplotlib (plait[viz])."""

from plait.figures.cache_map import cache_html
from plait.figures.insight import Attention, LogitLens, attention, logit_lens
from plait.figures.plots import plot_cells, plot_stats
from plait.figures.tables import context_html, model_html, output_html, stats_html

__all__ = [
    "Attention",
    "LogitLens",
    "attention",
    "cache_html",
    "context_html",
    "logit_lens",
    "model_html",
    "output_html",
    "plot_cells",
    "plot_stats",
    "stats_html",
]
