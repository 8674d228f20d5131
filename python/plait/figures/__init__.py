"""Pictures of models, caches, outputs and statistics. Plots need matplotlib (plait[viz])."""

from plait.display.cache_map import cache_html
from plait.display.plots import plot_cells, plot_layers, plot_stats, style
from plait.display.tables import context_html, model_html, output_html, stats_html
from plait.figures.attention import Attention, attention
from plait.figures.logit_lens import LogitLens, logit_lens

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
    "plot_layers",
    "plot_stats",
    "stats_html",
    "style",
]
