"""The model inside the package, which reads a short story once and answers many questions about it in one batch.

`corpus` generates the stories, `ask` asks the model questions through plait, and `show` does so on
a terminal: `python -m plait.demo`. The program that trained the model is
bench/demo_training/train.py in the repository.
"""

from pathlib import Path

MODEL = Path(__file__).with_name("model.gguf")
"""The file that `plait.Model.demo()` opens."""

__all__ = ["MODEL"]
