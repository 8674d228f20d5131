"""plait as a model of lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness). Needs plait[eval].

    lm_eval --model plait --model_args model=model.gguf --tasks arc_easy

From Python: import this module, then lm_eval.simple_evaluate(model="plait", model_args={"model": "model.gguf"},
tasks=[...]). Where plait was put on the path instead of installed, `python -m plait.lm_eval` is `lm_eval`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from plait.context import Context
from plait.errors import UnsupportedError
from plait.evaluation.scoring import score_pairs
from plait.generation.generate import complete
from plait.generation.sampler import Sampler
from plait.model import Model

try:
    from lm_eval import utils
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "plait.lm_eval needs lm-evaluation-harness: pip install plait[eval]", name=error.name
    ) from None

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_DEFAULT_N_CTX = 2048


@register_model("plait")
class PlaitLM(LM):  # type: ignore[misc]
    """A GGUF file in one context. Prompts share what they have in common at their beginning.

    `model` (or `pretrained`): a path, or demo, the embedded model. `n_ctx`: longest text, by default what the model was
    trained on; longer ones lose their beginning. `n_seq_max`: generations side by side. `max_gen_toks`: where a task
    does not say. The others are options of Context: kv, type_k, type_v, backend, threads, isa.
    """

    def __init__(
        self,
        model: str | None = None,
        pretrained: str | None = None,
        n_ctx: int | None = None,
        n_seq_max: int = 16,
        max_gen_toks: int = 256,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
        **options: Any,
    ) -> None:
        super().__init__()
        path = model or pretrained
        if path is None:
            raise ValueError("plait: expected model=PATH among the model's arguments")
        self.model = Model.demo() if path == "demo" else Model(path)
        self.n_ctx = int(n_ctx or self.model.n_ctx_train or _DEFAULT_N_CTX)
        self.max_gen_toks = int(max_gen_toks)
        self.ctx = Context(
            self.model, n_ctx=self.n_ctx, n_seq_max=int(n_seq_max),
            kv_cells=None if options.get("kv") == "streams" else 2 * self.n_ctx, **options,
        )  # fmt: skip
        self._encode = self.model.tokenizer.encode

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that nothing stands before: the beginning of texts, or their end."""
        tokenizer = self.model.tokenizer
        found = tokenizer.bos if tokenizer.bos is not None else tokenizer.eos
        if found is None:
            raise UnsupportedError("plait: this vocabulary has neither a bos nor an eos token")
        return int(found)

    @property
    def tokenizer_name(self) -> str:
        """The file, for the harness's cache of requests."""
        return self.model.path

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The file's own template, for the harness's records."""
        return str(self.model.metadata.get("tokenizer.chat_template", ""))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt of a conversation, as the file's own template writes it."""
        return self.model.chat_template.render(
            chat_history, add_generation_prompt=add_generation_prompt
        )

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """(log-likelihood, whether greedy decoding would say it) of each (context, continuation)."""
        pairs = [self._pair(*request.args) for request in requests]
        results = self._scored(pairs, disable_tqdm)
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, result)
        return results

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of each whole text, cut into windows as the harness says."""
        results = []
        for request in tqdm(requests, disable=disable_tqdm, desc="rolling"):
            windows = utils.get_rolling_token_windows(
                token_list=self._tokens(request.args[0]), prefix_token=self.prefix_token_id,
                max_seq_len=self.n_ctx, context_len=1,
            )  # fmt: skip
            pairs = [utils.make_disjoint_window(window) for window in windows]
            total = math.fsum(logprob for logprob, _ in self._scored(pairs, True))
            results.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """A continuation of each (context, options), up to one of the texts in `until`."""
        groups: dict[str, list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            groups[repr(sorted(request.args[1].items()))].append(i)
        texts = [""] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="generate") as bar:
            for members in groups.values():
                options = dict(requests[members[0]].args[1])
                said = self._generated([requests[i].args[0] for i in members], options)
                for i, text in zip(members, said, strict=True):
                    texts[i] = text
                    self.cache_hook.add_partial("generate_until", requests[i].args, text)
                bar.update(len(members))
        return texts

    def _generated(self, contexts: list[str], options: dict[str, Any]) -> list[str]:
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        most = min(int(options.get("max_gen_toks", self.max_gen_toks)), self.n_ctx - 1)
        room = self.n_ctx - most
        prompts = [self._beginning(context)[-room:] for context in contexts]
        greedy = not options.get("do_sample", False) or not options.get("temperature", 0)
        sampler = None if greedy else Sampler(
            temperature=float(options["temperature"]), top_p=float(options.get("top_p", 1)),
            top_k=int(options.get("top_k", 0)), min_p=float(options.get("min_p", 0)), seed=1234,
        )  # fmt: skip
        done = complete(
            self.ctx, prompts, most, sampler, stop=[stop for stop in stops if stop], progress=False
        )
        return [one.text for one in done]

    def _scored(
        self, pairs: list[tuple[list[int], list[int]]], disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        fitting = []
        for context, continuation in pairs:
            text = [*context, *continuation][-(self.n_ctx + 1) :]  # the last token is never read
            n = min(len(continuation), len(text) - 1)
            fitting.append((text[:-n], text[-n:]) if n else (text, []))
        results: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        asked = [i for i, (_, continuation) in enumerate(fitting) if continuation]
        with tqdm(total=len(asked), disable=disable_tqdm, desc="loglikelihood") as bar:
            scores = score_pairs(
                self.ctx,
                [fitting[i] for i in asked],
                progress=lambda done, _: bar.update(done - bar.n),
            )
        for i, score in zip(asked, scores, strict=True):
            results[i] = (score.logprob, score.is_greedy)
        return results

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both, tokenised together; blanks at the end of a context belong to what follows."""
        if not context:
            return [self.prefix_token_id], self._tokens(continuation)
        bare = context.rstrip()
        if bare:
            context, continuation = bare, context[len(bare) :] + continuation
        before, whole = self._beginning(context), self._beginning(context + continuation)
        same = next(
            (i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b),
            min(len(before), len(whole)),
        )
        if same == 0:  # no token that all texts begin with, and the first one changed
            return [self.prefix_token_id], whole
        return whole[:same], whole[same:]

    def _beginning(self, text: str) -> list[int]:
        """With what the vocabulary puts before a text, and not with what it puts behind."""
        tokenizer = self.model.tokenizer
        ids = [int(token) for token in self._encode(text)]
        if tokenizer.add_eos and ids and ids[-1] == tokenizer.eos:
            ids.pop()
        return ids or [self.prefix_token_id]

    def _tokens(self, text: str) -> list[int]:
        return [int(token) for token in np.asarray(self._encode(text, add_special=False))]


def main() -> None:
    """`lm_eval`, which knows --model plait."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
