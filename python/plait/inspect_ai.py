"""A model provider of Inspect (https://inspect.aisi.org.uk). Needs plait[inspect].

    inspect eval task.py --model plait/path/to/model.gguf -M n_ctx=4096

All samples, epochs and choices of an evaluation run in one Engine, so that prompts share their prefixes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from plait.generation.engine import Engine
from plait.generation.prefix_store import PrefixStore
from plait.generation.prompts import PromptTooLong
from plait.generation.sampler import Sampler
from plait.model import Model
from plait.tokenizer.chat_template import KEY

try:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageTool,
        ContentReasoning,
        ContentText,
        GenerateConfig,
        Logprob,
        Logprobs,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        TopLogprob,
        modelapi,
    )
    from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "plait.inspect_ai needs Inspect: pip install 'plait[inspect]'", name=error.name
    ) from None

if TYPE_CHECKING:
    from plait.generation.events import Completion
    from plait.tokenizer import Tokenizer

_PLAIN: Final = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
_MAX_TOKENS: Final = 2048
_STOP_REASONS: Final[dict[str, Any]] = {
    "tool_calls": "tool_calls",
    "stop": "stop",
    "length": "max_tokens",
    "timeout": "unknown",
}


class PlaitAPI(ModelAPI):  # type: ignore[misc, unused-ignore]
    """A GGUF model in an Engine.

    Without a temperature, texts are greedy. With a seed, the n-th generation of a prompt is the n-th sample of that
    seed, so that epochs differ and the set of their texts can be repeated.

    Args:
        model_name: Path of the file, or "demo" for the model inside the package.
        base_url: Ignored; accepted for Inspect.
        api_key: Ignored; accepted for Inspect.
        config: Options of generation.
        chat_template: Text of a Jinja template to use instead of that of the file. None, for a file without one: the
            texts of the messages, each with a line break.
        n_seq_max: Max generations at a time.
        prefixes: Directory of a plait.PrefixStore, so that later runs do not compute the same prompts again.
        model_args: Options of plait.Engine, such as n_ctx, kv_cells, type_k, backend or threads.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008
        *,
        chat_template: str | None = None,
        n_seq_max: int = 32,
        prefixes: str | None = None,
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        self._n_seq_max = int(n_seq_max)
        model = Model.demo() if model_name == "demo" else Model(model_name)
        self._template = chat_template
        if chat_template is None and KEY not in model.metadata:
            self._template = _PLAIN
        store = None if prefixes is None else PrefixStore(prefixes)
        self._engine = Engine(model, self._n_seq_max, store, **model_args)
        self._n_samples = Counter[tuple[int, str]]()

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Generate the reply to a conversation.

        Args:
            input: The messages.
            tools: Functions that the model may call.
            tool_choice: "none" to pass no tools, "any" or a tool to require a call.
            config: Options of generation.

        Returns:
            The output, with as many choices as `config.num_choices`; for a prompt that exceeds n_ctx, one with the stop
            reason "model_length".

        Raises:
            ValueError: A message has content other than text and reasoning, such as an image.
        """
        messages = [_message(one) for one in input]
        functions = [] if tool_choice == "none" else [_function(tool) for tool in tools]
        sampler = _sampler(config)
        n = config.num_choices or 1
        first = self._next_samples(config.seed, messages, n)
        try:
            done = await asyncio.gather(
                *(
                    self._engine.complete(
                        messages, config.max_tokens or _MAX_TOKENS, sampler,
                        stop=config.stop_seqs or (), sample=first + i, tools=functions or None,
                        tool_choice=_choice(tool_choice) if functions else "auto",
                        top_logprobs=(config.top_logprobs or 0) if config.logprobs else 0,
                        response_format=_format(config), template=self._template,
                    )
                    for i in range(n)
                )
            )  # fmt: skip
        except PromptTooLong as error:  # a result, so that the evaluation continues
            return ModelOutput.from_content(
                self.model_name, str(error), stop_reason="model_length", error=str(error)
            )
        return self._output(done, bool(config.logprobs))

    def max_tokens(self) -> int:
        """Return the max tokens per generation if the task does not specify it."""
        return _MAX_TOKENS

    def max_connections(self) -> int:
        """Return the number of generations at a time."""
        return self._n_seq_max

    def connection_key(self) -> str:
        """Return the scope in which `max_connections` applies."""
        return str(self.model_name)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    async def aclose(self) -> None:
        """End the engine."""
        self._engine.close()

    def _next_samples(self, seed: int | None, messages: list[dict[str, Any]], n: int) -> int:
        """Return the index of the first of `n` samples that this prompt and seed have not had."""
        if seed is None:
            return 0  # the sampler has a random seed
        key = (seed, repr(messages))
        first = self._n_samples[key]
        self._n_samples[key] += n
        return first

    def _output(self, done: list[Completion], logprobs: bool) -> ModelOutput:
        tokenizer = self._engine.model.tokenizer
        usages = [one.usage for one in done if one.usage is not None]
        n_prompt, n_cached = usages[0].n_prompt, usages[0].n_cached  # shared by all choices
        n_generated = sum(usage.n_generated for usage in usages)
        return ModelOutput(
            model=self.model_name,
            choices=[
                ChatCompletionChoice(
                    message=_reply(one, self.model_name),
                    stop_reason=_STOP_REASONS.get(
                        "tool_calls" if one.message.tool_calls else str(one.finish_reason), "unknown"
                    ),
                    logprobs=_logprobs(one, tokenizer) if logprobs else None,
                )
                for one in done
            ],
            usage=ModelUsage(
                input_tokens=n_prompt - n_cached, input_tokens_cache_read=n_cached,
                output_tokens=n_generated, total_tokens=n_prompt + n_generated,
            ),
            time=max(one.timings.total for one in done if one.timings is not None),
        )  # fmt: skip


@modelapi(name="plait")  # type: ignore[misc, untyped-decorator, unused-ignore]
def plait() -> type[ModelAPI]:
    """Return the provider, which Inspect finds by its entry point."""
    return PlaitAPI


def _sampler(config: GenerateConfig) -> Sampler | None:
    """Return the sampler. As in the server, top_p may be 0, top_k may be negative, and seeds count modulo 2**64."""
    changes_logits = config.logit_bias or config.presence_penalty or config.frequency_penalty
    if not config.temperature and not changes_logits:
        return None
    return Sampler(
        temperature=config.temperature or 0, top_k=max(config.top_k or 0, 0), min_p=0,
        top_p=1.0 if config.top_p is None else config.top_p or sys.float_info.min,
        presence_penalty=config.presence_penalty or 0, frequency_penalty=config.frequency_penalty or 0,
        logit_bias=config.logit_bias, seed=None if config.seed is None else config.seed % (1 << 64),
    )  # fmt: skip


def _choice(choice: ToolChoice) -> str:
    """Return the argument `tool_choice` of the engine."""
    if isinstance(choice, str):
        return "required" if choice == "any" else "auto"
    return str(choice.name)


def _format(config: GenerateConfig) -> dict[str, Any] | None:
    if config.response_schema is None:
        return None
    schema = config.response_schema.json_schema.model_dump(exclude_none=True, by_alias=True)
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _function(tool: ToolInfo) -> dict[str, Any]:
    """Return a tool as the JSON schema that chat templates expect."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters.model_dump(exclude_none=True, by_alias=True),
        },
    }


def _message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as the mapping that chat templates expect."""
    if not isinstance(message.content, str):
        for part in message.content:
            if not isinstance(part, ContentText | ContentReasoning):
                raise ValueError(
                    f"plait: a {message.role} message has content of the type {part.type!r}; expected only text"
                )
    made: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message, ChatMessageAssistant) and not isinstance(message.content, str):
        reasoning = (
            part.reasoning
            for part in message.content
            if isinstance(part, ContentReasoning) and not part.redacted
        )
        made["reasoning_content"] = "\n".join(reasoning) or None
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if isinstance(message, ChatMessageTool):
        made |= {"tool_call_id": message.tool_call_id, "name": message.function}
        if message.error is not None:
            made["content"] = message.error.message
    return made


def _reply(done: Completion, model: str) -> ChatMessageAssistant:
    message = done.message
    content: Any = message.content or ""
    if message.reasoning:
        content = [ContentReasoning(reasoning=message.reasoning), ContentText(text=content)]
    calls = [
        ToolCall(id=call.id, function=call.name, arguments=dict(call.arguments))
        for call in message.tool_calls or ()
    ]
    return ChatMessageAssistant(
        content=content, tool_calls=calls or None, model=model, source="generate"
    )


def _logprobs(done: Completion, tokenizer: Tokenizer) -> Logprobs:
    def parts(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    tops = done.top_logprobs or ((),) * len(done.tokens)
    return Logprobs(
        content=[
            Logprob(
                **parts(token, logprob),
                top_logprobs=[TopLogprob(**parts(*pair)) for pair in top] or None,
            )
            for token, logprob, top in zip(done.tokens, done.logprobs, tops, strict=True)
        ]
    )
