"""Bodies of requests, checked and converted to parameters of an Engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plait.generation.messages.constrain import tools_grammar
from plait.generation.prompts import encode, require_fit
from plait.generation.response_format import formatted, is_text
from plait.generation.sampler import Sampler
from plait.tokenizer.chat_template import KEY

if TYPE_CHECKING:
    from plait.model import Model

MAX_SAMPLES: Final = 64  # generations per request: prompts times n
MAX_IMAGES: Final = 64  # per request
_UNLIMITED: Final = (1 << 31) - 1  # the engine ends a generation when its context is full
# Keys of OpenAI's API, of vLLM and of llama-server, and the parameters of Sampler that they set.
_SAMPLING: Final = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty", "repeat_penalty": "repetition_penalty",
    "typical_p": "typical_p", "top_n_sigma": "top_n_sigma",
    "xtc_probability": "xtc_probability", "xtc_threshold": "xtc_threshold",
    "dry_multiplier": "dry_multiplier", "dry_base": "dry_base", "dry_allowed_length": "dry_allowed_length",
    "dynatemp_range": "dynamic_range", "dynatemp_exponent": "dynamic_exponent",
}  # fmt: skip
# Parameters that would change the reply and that the server does not have, each with what to do instead.
_REFUSED: Final = {
    "suffix": "write the special tokens of the model for infilling into the prompt",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "the server replies with text",
}
# Parameters of render() that are no variables of a template.
_OWN_VARIABLES: Final = ("self", "model", "messages", "tools", "template", "placeholder")


class BadRequest(ValueError):
    """A request that cannot be served.

    Args:
        message: What was given, what is expected.
        param: The key of the body.
        status: The HTTP status.
        code: The code of the error in the reply.
    """

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


@dataclass
class Job:
    """The generations of a request.

    Attributes:
        prompts: Token ids of each prompt, or one conversation.
        n: Generations per prompt.
        parameters: Arguments of Engine.stream().
        stream: Whether to send events as they are generated.
        usage: Whether the stream ends with the number of tokens.
        logprobs: Number of top log-probabilities to report; None to report no log-probabilities.
        echoed: Texts of the prompts if the replies start with them; else empty.
    """

    prompts: list[Any]
    n: int
    parameters: dict[str, Any]
    stream: bool
    usage: bool
    logprobs: int | None
    echoed: Sequence[str] = ()

    @property
    def scores_prompts(self) -> bool:
        """Whether to report the log-probabilities of the prompts, too."""
        return bool(self.echoed) and self.logprobs is not None


def chat_job(
    body: Mapping[str, Any], model: Model, template: str | None, *, images: bool = False
) -> Job:
    """Return the job of a request to /v1/chat/completions.

    Args:
        body: The body.
        model: The model.
        template: Text of a Jinja template to use unless the body has one.
        images: Whether messages may have images.

    Raises:
        BadRequest: The body has wrong values.
    """
    messages = value(body, "messages", list)
    if not messages or not all(isinstance(message, Mapping) for message in messages):
        raise BadRequest("messages: expected a non-empty list of objects", "messages")
    _check_parts(messages, images)
    job = _job(body, [messages], _UNLIMITED)
    template = value(body, "chat_template", str, template)
    if template is None and KEY not in model.metadata:
        raise BadRequest(
            f"the file has no chat template ({KEY}); send one in chat_template, or start the server with "
            "--chat-template FILE",
            "chat_template",
        )
    tools = value(body, "tools", list, None)
    choice = value(body, "tool_choice", object, "auto")
    if isinstance(choice, Mapping):
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(choice, str):
        raise BadRequest(
            'tool_choice: expected "auto", "none", "required" or a function', "tool_choice"
        )
    if choice not in ("auto", "none"):
        form = job.parameters["response_format"]
        if form is not None and not is_text(form):
            raise BadRequest("tool_choice and response_format exclude each other", "tool_choice")
        parallel = value(body, "parallel_tool_calls", bool, True)
        job.parameters["response_format"] = tools_grammar(
            model, tools or [], choice, parallel=parallel, template=template
        )
    job.parameters |= {
        "tools": None if choice == "none" else tools,
        "template": template,
        "variables": _variables(body),
    }
    if value(body, "logprobs", bool, False):
        job.logprobs = job.parameters["top_logprobs"] = number(body, "top_logprobs", 0, 0, 20)
    _compile(job, model)
    return job


def _check_parts(messages: list[Mapping[str, Any]], images: bool) -> None:
    # Nothing that a client sends may make the server read a file or fetch an address.
    n_images = 0
    for i, message in enumerate(messages):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            name = f"messages.{i}.content.{j}"
            if isinstance(part, str):
                continue
            if not isinstance(part, Mapping):
                raise BadRequest(
                    f'{name}: expected a str or an object with "type", got {type(part).__name__}',
                    name,
                )
            kind = part.get("type", "text")
            if kind == "text":
                continue
            if kind != "image_url":
                raise BadRequest(
                    f'{name}: the type is {kind!r}; expected "text" or "image_url"', f"{name}.type"
                )
            if not images:
                raise BadRequest(
                    f"{name}: the server has no image encoder; start it with --mmproj FILE", name
                )
            url = part.get("image_url")
            url = url.get("url") if isinstance(url, Mapping) else url
            if not isinstance(url, str) or not url.startswith("data:"):
                given = repr(url[:40]) if isinstance(url, str) else type(url).__name__
                raise BadRequest(
                    f"{name}: expected an image in a URL data:image/...;base64,..., got {given}; addresses are not "
                    "fetched",
                    f"{name}.image_url",
                )
            n_images += 1
    if n_images > MAX_IMAGES:
        raise BadRequest(
            f"the request has {n_images} images; the limit is {MAX_IMAGES}", "messages"
        )


def text_job(body: Mapping[str, Any], model: Model, *, n_ctx: int | None = None) -> Job:
    """Return the job of a request to /v1/completions.

    Args:
        body: The body.
        model: The model.
        n_ctx: Max tokens of a prompt. None: any number.

    Raises:
        BadRequest: The body has wrong values.
        PromptTooLong: A prompt has more than `n_ctx` tokens; a ValueError.
        ValueError: A prompt has no tokens.
        IndexError: A token id is outside the vocabulary.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and _are_ids(prompt)):
        prompts = [prompt]
    elif isinstance(prompt, list) and prompt:
        prompts = prompt
    else:
        raise BadRequest(
            "prompt: expected a str, a list of token ids, or a list of those", "prompt"
        )
    if not all(
        isinstance(one, str) or (isinstance(one, list) and _are_ids(one)) for one in prompts
    ):
        raise BadRequest(
            "prompt: expected a str, a list of token ids, or a list of those", "prompt"
        )
    echo = value(body, "echo", bool, False)
    job = _job(body, prompts, None, echo=echo)
    job.prompts = _encoded(prompts, model, n_ctx)
    if echo:
        decode = model.tokenizer.decode
        job.echoed = [one if isinstance(one, str) else decode(one) for one in prompts]
    if body.get("logprobs") is not None:
        job.logprobs = job.parameters["top_logprobs"] = number(body, "logprobs", 0, 0, 20)
    if job.stream and (job.scores_prompts or job.parameters["max_tokens"] == 0):
        raise BadRequest("stream excludes echo with logprobs, and max_tokens 0", "stream")
    _compile(job, model)
    return job


def _encoded(prompts: list[Any], model: Model, n_ctx: int | None) -> list[list[int]]:
    """Return the token ids of prompts. An error names the prompt by its index if there are several."""
    encoded = []
    for i, prompt in enumerate(prompts):
        name = "the prompt" if len(prompts) == 1 else f"prompt {i}"
        ids = encode(model, prompt, name, True, True)
        if n_ctx is not None:
            require_fit(ids, n_ctx, name)
        encoded.append(ids)
    return encoded


def _compile(job: Job, model: Model) -> None:
    """Compile the grammar of a job, once for all of its generations."""
    sampler = formatted(job.parameters["sampler"], job.parameters["response_format"])
    if isinstance(sampler, Sampler):
        sampler.bind(model.tokenizer)
    job.parameters |= {"sampler": sampler, "response_format": None}


def value(body: Mapping[str, Any], key: str, kind: Any, *default: Any) -> Any:
    """Return the value of a key; a missing one, or null, is the default.

    Raises:
        BadRequest: The value has another type, or is missing and has no default.
    """
    found = body.get(key)
    if found is None and default:
        return default[0]
    if not isinstance(found, kind):
        name = {Mapping: "object"}.get(kind, getattr(kind, "__name__", str(kind)))
        raise BadRequest(f"{key}: expected {name}, got {type(found).__name__}", key)
    return found


def number(body: Mapping[str, Any], key: str, default: Any, low: int, high: int) -> Any:
    """Return an integer between `low` and `high`.

    Raises:
        BadRequest: The value is not such an integer.
    """
    found = body.get(key)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
        raise BadRequest(f"{key} is {found!r}; expected an integer from {low} to {high}", key)
    return found


def _job(
    body: Mapping[str, Any], prompts: list[Any], limit: int | None, *, echo: bool = False
) -> Job:
    """Return the job of a body.

    Args:
        body: The body.
        prompts: As in Job.
        limit: Max number of tokens if the body has none.
        echo: Whether the replies start with the prompts. Allows a max number of 0.

    Raises:
        BadRequest: The body has wrong values.
    """
    for key, advice in _REFUSED.items():
        if body.get(key):
            raise BadRequest(f"{key} is not supported; {advice}", key)
    for key in ("n_predict", "max_tokens", "max_completion_tokens"):  # the last one counts
        given = number(body, key, None, -1, _UNLIMITED)
        if given == 0 and not echo:
            raise BadRequest(f"{key} is 0; expected at least 1, or -1 for no limit", key)
        if given is not None:
            limit = _UNLIMITED if given == -1 else given
    stop = body.get("stop")
    are_texts = isinstance(stop, list) and all(isinstance(one, str) for one in stop)
    if stop is not None and not isinstance(stop, str) and not are_texts:
        raise BadRequest("stop: expected a str or a list of str", "stop")
    n = number(body, "n", 1, 1, MAX_SAMPLES)
    best_of = number(body, "best_of", n, 1, MAX_SAMPLES)
    if best_of != n:
        raise BadRequest(
            f"best_of is {best_of} but n is {n}; best_of is not supported, use n and choose by logprobs",
            "best_of",
        )
    if n * len(prompts) > MAX_SAMPLES:
        raise BadRequest(
            f"the request asks for {n * len(prompts)} generations; the limit is {MAX_SAMPLES}", "n"
        )
    options = value(body, "stream_options", Mapping, {})
    parameters = {
        "max_tokens": limit,
        "stop": stop or (),
        "sampler": _sampler(body),
        "response_format": value(body, "response_format", Mapping, None),
        "timeout": None,
    }
    return Job(
        prompts, n, parameters, value(body, "stream", bool, False), bool(options.get("include_usage")), None
    )  # fmt: skip


def _variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat template."""
    effort = value(body, "reasoning_effort", str, None)
    variables = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        variables["enable_thinking"] = False
    given = dict(value(body, "chat_template_kwargs", Mapping, {}))
    for name in _OWN_VARIABLES:
        if name in given:
            raise BadRequest(
                f"chat_template_kwargs has {name}, which the server sets itself; remove it",
                "chat_template_kwargs",
            )
    return variables | given


def _sampler(body: Mapping[str, Any]) -> Sampler:
    given: dict[str, Any] = {}
    for key, name in _SAMPLING.items():
        found = body.get(key)
        if found is not None:
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise BadRequest(f"{key}: expected a number, got {type(found).__name__}", key)
            # As in vLLM and llama-server, a negative top_k keeps all tokens.
            given[name] = max(found, 0) if key == "top_k" else found
    if given.get("top_p") == 0:  # only the most likely token, as in OpenAI's API
        given["top_p"] = sys.float_info.min
    if body.get("seed") is not None:
        given["seed"] = number(body, "seed", None, -(1 << 63), (1 << 64) - 1) % (1 << 64)
    bias = value(body, "logit_bias", Mapping, None)
    rules = value(body, "grammar", str, None)
    try:
        if bias:
            given["logit_bias"] = {int(token): one for token, one in bias.items()}
        if rules:
            given["grammar"] = rules
        return Sampler(**given)
    except (ValueError, TypeError) as error:
        raise BadRequest(str(error)) from None


def _are_ids(items: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)
