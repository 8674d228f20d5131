"""A model of lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness).

Needs plait[eval].

    lm_eval --model plait --model_args model=model.gguf --tasks arc_easy

In Python, import this module, then call lm_eval.simple_evaluate(model="plait", model_args={"model":
"model.gguf"}, tasks=[...]). If plait is on the path but not installed, use `python -m
plait.lm_eval` instead of `lm_eval`.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from plait.context import Context
from plait.errors import UnsupportedError
from plait.evaluation.scoring import score_pairs
from plait.generation.engine import Engine
from plait.generation.generate import complete
from plait.generation.messages.render import render_text
from plait.generation.prefix_store import PrefixStore
from plait.generation.sampler import Sampler
from plait.model import open_named

try:
    from lm_eval import utils
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "plait.lm_eval needs lm-evaluation-harness: pip install 'plait[eval]'", name=error.name
    ) from None

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_log = logging.getLogger("plait")

_DEFAULT_N_CTX = 2048
# Names that the harness accepts for the max number of tokens, in its order of precedence.
_MAX_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("plait")
class PlaitLM(LM):  # type: ignore[misc]
    """A GGUF model in one context with an Engine. Common prefixes of prompts are computed once.

    Args:
        model: Path of the file, "demo" for the model inside the package, or "hf:owner/name" or
            "hf:owner/name/file" for a model of the Hugging Face hub. A colon may stand before the file, too.
        pretrained: Another name for `model`.
        n_ctx: Max length of a text in tokens; the start of longer ones is cut off. None: the training length, or 2048
            if the file has none.
        n_seq_max: Number of generations at a time.
        max_gen_toks: Max tokens per generation, unless the task specifies it; see generate_until().
        seed: Seed of tasks that sample; see generate_until().
        receipt: Path of a receipt of all that is computed, for plait.verify(); see Context.record(). It is written anew
            after each group of requests.
        prefixes: Directory of a plait.PrefixStore, so that later runs do not compute the same prompts again.
        batch_size: Ignored; accepted for the harness.
        max_batch_size: Ignored; accepted for the harness.
        device: Ignored; accepted for the harness.
        options: Options of plait.Context: kv, kv_cells (2 * n_ctx by default), type_k, type_v, backend, threads, isa.

    Raises:
        ValueError: No model is given.
    """

    def __init__(
        self,
        model: str | None = None,
        pretrained: str | None = None,
        n_ctx: int | None = None,
        n_seq_max: int = 16,
        max_gen_toks: int = 256,
        seed: int = 1234,
        receipt: str | os.PathLike[str] | None = None,
        prefixes: str | os.PathLike[str] | None = None,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
        **options: Any,
    ) -> None:
        super().__init__()
        path = model or pretrained
        if path is None:
            raise ValueError("plait: no model given; pass model=PATH in --model_args")
        self.model = open_named(path, "model")
        self.seed = int(seed)
        self.n_ctx = int(n_ctx or self.model.n_ctx_train or _DEFAULT_N_CTX)
        self.max_gen_toks = int(max_gen_toks)
        if options.get("kv") != "streams":
            options = {"kv_cells": 2 * self.n_ctx} | options
        self.ctx = Context(self.model, n_ctx=self.n_ctx, n_seq_max=int(n_seq_max), **options)
        self._receipt_path = receipt
        self._receipt = None if receipt is None else self.ctx.record().__enter__()
        # Kept prefixes would take the cells that scores need.
        self.engine = Engine(self.ctx, prefixes=False)
        self._store = None if prefixes is None else PrefixStore(prefixes)
        self._samplers: dict[tuple[float, ...], Sampler] = {}
        self._encode = self.model.tokenizer.encode

    @property
    def prefix_token_id(self) -> int:
        """Token placed before a text without context: BOS, or EOS if the vocabulary has no BOS."""
        tokenizer = self.model.tokenizer
        found = tokenizer.bos if tokenizer.bos is not None else tokenizer.eos
        if found is None:
            raise UnsupportedError("plait: the vocabulary has neither a BOS nor an EOS token")
        return int(found)

    @property
    def tokenizer_name(self) -> str:
        """Identifies the tokenizer in the harness's cache of requests: the file."""
        return self.model.path

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the chat template of the file, for the harness's records.

        Args:
            chat_template: Ignored.
        """
        return str(self.model.metadata.get("tokenizer.chat_template", ""))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation with the chat template of the file.

        If the template rejects the role "system", the system text is placed before the first user message.

        Args:
            chat_history: The messages.
            add_generation_prompt: End with the start of the assistant's answer. If False, and the last message is the
                assistant's, the prompt ends with its text, so that the model continues it.

        Returns:
            The prompt.

        Raises:
            ValueError: The template rejects the messages, or does not write the text of the last one.
        """
        variables = {"add_generation_prompt": add_generation_prompt}
        text = render_text(self.model.chat_template, chat_history, None, variables)
        last = chat_history[-1]
        if add_generation_prompt or last["role"] != "assistant":
            return text
        return _up_to(text, last["content"])

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return (log-likelihood, whether it is the greedy continuation) of each request.

        Args:
            requests: Pairs (context, continuation).
            disable_tqdm: Show no progress bar.
        """
        pairs = [self._pair(*request.args) for request in requests]
        results = self._scored(pairs, disable_tqdm)
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, result)
        self._save_receipt()
        return results

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of each text, in windows as the harness defines them.

        Args:
            requests: The texts.
            disable_tqdm: Show no progress bar.
        """
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
        self._save_receipt()
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each request, up to one of the texts in its option `until`.

        The harness repeats equal requests for tasks that judge several samples. The n-th of them has the seed of the
        model plus n, so that their texts differ and another call returns the same ones.

        If a prompt and its max number of tokens exceed n_ctx, the prompt loses its beginning, but keeps at least half
        of n_ctx. Max numbers above half of n_ctx are lowered to what the prompt leaves. A logged warning reports both.

        Args:
            requests: Pairs (context, options).
            disable_tqdm: Show no progress bar.
        """
        prompts, limits, samplers, stops, seeds = [], [], [], [], []
        n_before = Counter[tuple[Any, ...]]()
        n_cut = n_lowered = 0
        for request in requests:
            context, options = request.args[0], dict(request.args[1])
            until = options.get("until") or []
            stops.append([stop for stop in ([until] if isinstance(until, str) else until) if stop])
            prompt, limit = self._beginning(context), self._max_tokens(options)
            prompts.append(prompt[-(self.n_ctx - min(limit, self.n_ctx // 2)) :])
            limits.append(min(limit, self.n_ctx - len(prompts[-1])))
            n_cut += len(prompts[-1]) < len(prompt)
            n_lowered += limits[-1] < limit
            samplers.append(self._sampler(options))
            repeated = (tuple(prompts[-1]), samplers[-1])
            seeds.append((self.seed + n_before[repeated]) % (1 << 64))
            n_before[repeated] += 1
        if n_cut or n_lowered:
            _log.warning(
                "generate_until: n_ctx is %d; of %d requests, %d lose the beginning of their prompts, and %d may "
                "generate fewer tokens than their task allows",
                self.n_ctx, len(requests), n_cut, n_lowered,
            )  # fmt: skip
        with tqdm(total=len(requests), disable=disable_tqdm, desc="generate") as bar:
            done = complete(
                self.engine if self._store is None else self.ctx,
                prompts, limits, samplers, stop=stops, seed=seeds, prefixes=self._store,
                progress=lambda done, _: bar.update(done - bar.n),
            )  # fmt: skip
        for request, one in zip(requests, done, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, one.text)
        self._save_receipt()
        return [one.text for one in done]

    def _save_receipt(self) -> None:
        if self._receipt is not None and self._receipt_path is not None:
            self._receipt.save(self._receipt_path)

    def _max_tokens(self, options: dict[str, Any]) -> int:
        """Return the max number of tokens in a task's options."""
        given = [options[name] for name in _MAX_TOKENS if options.get(name) is not None]
        return int(given[0] if given else self.max_gen_toks)

    def _sampler(self, options: dict[str, Any]) -> Sampler | None:
        """Return the sampler of a task's options; equal options share one. A temperature alone requests sampling."""
        if options.get("do_sample") is False or not options.get("temperature", 0):
            return None
        names: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
        chosen: dict[str, Any] = {
            name: type(value)(options.get(name, value)) for name, value in names.items()
        }
        key = tuple(chosen.values())
        if key not in self._samplers:
            self._samplers[key] = Sampler(**chosen, seed=self.seed)
        return self._samplers[key]

    def _scored(
        self, pairs: list[tuple[list[int], list[int]]], disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        fitting = []
        for context, continuation in pairs:
            text = [*context, *continuation][-(self.n_ctx + 1) :]  # the last token is never decoded
            n = min(len(continuation), len(text) - 1)
            fitting.append((text[:-n], text[-n:]) if n else (text, []))
        results: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        asked = [i for i, (_, continuation) in enumerate(fitting) if continuation]
        with tqdm(total=len(asked), disable=disable_tqdm, desc="loglikelihood") as bar:
            scores = score_pairs(
                self.ctx,
                [fitting[i] for i in asked],
                prefixes=self._store,
                progress=lambda done, _: bar.update(done - bar.n),
            )
        for i, score in zip(asked, scores, strict=True):
            results[i] = (score.logprob, score.is_greedy)
        return results

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokenise a context and its continuation together.

        Trailing spaces of the context belong to the continuation.

        Returns:
            The token ids of the context and of the continuation.
        """
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
        if same == 0:  # the vocabulary has no BOS, and the first token differs
            return [self.prefix_token_id], whole
        return whole[:same], whole[same:]

    def _beginning(self, text: str) -> list[int]:
        """Encode a text with the token that the vocabulary adds before it, but without the one it adds after it."""
        tokenizer = self.model.tokenizer
        ids = [int(token) for token in self._encode(text)]
        if tokenizer.add_bos and ids[:2] == [tokenizer.bos] * 2:
            del ids[0]  # the text begins with BOS itself, as from a chat template
        if tokenizer.add_eos and ids and ids[-1] == tokenizer.eos:
            ids.pop()
        return ids or [self.prefix_token_id]

    def _tokens(self, text: str) -> list[int]:
        return [int(token) for token in np.asarray(self._encode(text, add_special=False))]


def _up_to(text: str, content: str) -> str:
    """Return a prompt up to the end of its last message, whose content the template may have stripped."""
    start = text.rfind(content.strip())
    if start < 0:
        raise ValueError("chat template: the text of the last message is missing in the prompt")
    kept = content.lstrip()
    return text[:start] + (kept if text.startswith(kept, start) else kept.rstrip())


def main() -> None:
    """Run the command lm_eval with `--model plait` registered."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
