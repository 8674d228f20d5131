"""Assertions about model outputs with readable failure messages, and a pytest plugin.

The functions do not need pytest. pytest finds the plugin, `plait.testing.plugin`, where plait is
installed. It provides the fixtures `plait_model`, `plait_context` and `plait_snapshot`, the markers
`plait` and `plait_memory`, and the options `--plait-model`, `--plait-backend`, `--plait-reuse` and
`--plait-update`.
"""

from plait.testing.greedy import assert_greedy
from plait.testing.logits import assert_logits_close
from plait.testing.models import assert_close_models
from plait.testing.snapshot import Snapshot

__all__ = ["Snapshot", "assert_close_models", "assert_greedy", "assert_logits_close"]
