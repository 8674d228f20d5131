"""Many texts on a Ray cluster (Pool), and models that are spread over it (Pipeline). Needs plait[ray].

with plait.ray.Pool("model.gguf") as pool:
    texts = [one.text for one in pool.generate(prompts, max_tokens=64)]
"""

try:
    import ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "plait.ray needs Ray: pip install 'plait[ray]'", name="ray"
    ) from error

from plait.ray.pipeline import Pipeline, PipelineCache, PipelineOutput
from plait.ray.pool import Pool

__all__ = ["Pipeline", "PipelineCache", "PipelineOutput", "Pool"]
