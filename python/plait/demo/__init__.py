"""The model that ships with plait: it reads a short story once and answers many questions about it in one batch.

`corpus` makes the stories, `train` trained the model on them (and needs torch; nothing else here does), `ask` puts
questions to it through plait, and `show` does that on a terminal: `python -m plait.demo`.
"""

from pathlib import Path

MODEL = Path(__file__).with_name("model.gguf")
"""The file that `plait.Model.demo()` opens."""

__all__ = ["MODEL"]
