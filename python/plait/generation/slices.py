"""The tokens that requests contribute to a step, and what is drawn from its logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from plait._core import Batch
from plait.errors import CacheFull
from plait.generation.drafts import DraftRequest, StateReader
from plait.generation.draws import Drawn, Row, draw, token_id

if TYPE_CHECKING:
    from plait._core import Output
    from plait.cache.sequence import Sequence
    from plait.context import Context
    from plait.generation.request import Request
    from plait.vision.encoder import ImageEmbeddings


@dataclass(slots=True)
class Slice:
    """The tokens of one request in a batch: pending tokens, then draft tokens; or the embeddings of an image."""

    request: Request
    n_pending: int
    has_output: bool  # whether the last pending token of the request is among them
    draft: list[int] = field(default_factory=list)
    checkpoint: Sequence | None = None  # a fork, for memories that cannot remove single tokens
    row: int = 0  # index of its first row of logits
    image: ImageEmbeddings | None = None

    def free(self) -> None:
        """Close the checkpoint."""
        if self.checkpoint is not None:
            self.checkpoint.close()
            self.checkpoint = None


def prompt_shares(requests: list[Request], room: int) -> list[tuple[Request, int]]:
    """Divide the prompt tokens of a step among prompts, which are given in order of rank.

    Half of them go to prompts in order of rank, so that each makes progress; the other half to those with the fewest
    tokens left, so that a short prompt does not wait for long ones.

    Returns:
        Pairs of a request and its number of tokens in this step.
    """
    shares = [0] * len(requests)
    by_size = sorted(range(len(requests)), key=lambda i: requests[i].n_pending)
    halves = ((range(len(requests)), room - room // 2), (by_size, room // 2))
    left = 0
    for order, amount in (*halves, (range(len(requests)), 0)):
        left += amount
        for i in order:
            n = min(left, requests[i].n_pending - shares[i])
            shares[i] += n
            left -= n
    return list(zip(requests, shares, strict=True))


def image_slices(requests: list[Request], room: int) -> list[Slice]:
    """Return the slices of a step that computes images, which do not mix with tokens in a batch.

    Args:
        requests: Requests in order of rank.
        room: Max number of embeddings, unless the first image has more.

    Returns:
        The next images of requests, as far as they have room and are alike.
    """
    slices: list[Slice] = []
    for request in requests:
        image = request.next_image
        if image is None:
            continue
        first = slices[0].image if slices else image
        assert first is not None
        alike = image.both_directions == first.both_directions
        if slices and (
            len(image) > room or not alike or image.rows.shape[1] != first.rows.shape[1]
        ):
            break
        slices.append(Slice(request, len(image), len(image) == request.n_pending, image=image))
        room -= len(image)
    return slices


def by_drafter(slices: list[Slice]) -> list[list[Slice]]:
    """Return the slices that may end with draft tokens, grouped by the drafter of their requests."""
    groups: dict[int, list[Slice]] = {}
    for part in slices:
        if part.request.draft is not None and part.has_output and part.request.n_generated:
            groups.setdefault(id(part.request.draft), []).append(part)
    return list(groups.values())


def add_drafts(slices: list[Slice], room: int, ctx: Context, removes_tokens: bool) -> int:
    """Add draft tokens to slices.

    Args:
        slices: Slices whose requests have the same drafter.
        room: Max number of draft tokens.
        ctx: The context that verifies the drafts.
        removes_tokens: False to take a checkpoint, for memories that cannot remove single tokens.

    Returns:
        The number of draft tokens.

    Raises:
        ValueError: The drafter did not return one draft per slice.
        TypeError: A draft token is no integer.
        IndexError: A draft token is outside the vocabulary.
        Exception: What the drafter raises.
    """
    drafter = slices[0].request.draft
    assert drafter is not None
    asks = []
    for part in slices:
        request = part.request
        left = min(request.limit - request.n_generated - 1, ctx.n_ctx - len(request.all))
        share = room // len(slices)
        asks.append(DraftRequest(request, request.all, max(0, min(left, share))))
    proposed = list(drafter.propose(asks))
    if len(proposed) != len(asks):
        raise ValueError(
            f"generate: the drafter returned {len(proposed)} drafts for {len(asks)} generations; propose() must return "
            f"one list of tokens for each"
        )
    n_vocab = ctx.model.n_vocab
    drafts = [
        [token_id(token, n_vocab, "drafter") for token in draft[: ask.max_tokens]]
        for ask, draft in zip(asks, proposed, strict=True)
    ]
    for part, draft in zip(slices, drafts, strict=True):
        part.draft = draft
        if part.draft and not removes_tokens:
            assert part.request.seq is not None
            try:
                part.checkpoint = part.request.seq.fork()
            except CacheFull:
                part.draft = []
    return sum(map(len, drafts))


def batch_of(slices: list[Slice]) -> Batch:
    """Return the batch of a step, and set the index of the first row of logits of each slice."""
    batch = Batch()
    row = 0
    for part in slices:
        request = part.request
        assert request.seq is not None
        part.row = row
        if part.image is not None:
            logits = "last" if part.has_output else "none"
            part.image.add_to(batch, request.seq.pos, seq=request.seq, logits=logits)
            row += part.has_output
            continue
        tokens = request.all[request.n_cached : request.n_cached + part.n_pending]
        output = np.zeros(part.n_pending + len(part.draft), np.bool_)
        output[part.n_pending - 1 :] = part.has_output
        batch.add_sequence(tokens + part.draft, seq=request.seq, logits=output)
        row += int(output.sum())
    return batch


@dataclass(slots=True)
class Reading:
    """The intermediate values of a slice, for a drafter that reads them."""

    reader: StateReader
    request: Request
    start: int  # position of the first value
    states: Row

    def report(self) -> None:
        """Give the drafter the values."""
        self.reader.observe(self.request, self.request.all, self.start, self.states)


def decode(ctx: Context, slices: list[Slice]) -> tuple[Output, list[Reading]]:
    """Decode the slices.

    Returns:
        The output, and the values for those drafters that read any.
    """
    batch = batch_of(slices)
    drafters = [part.request.draft for part in slices]
    readers = [one if isinstance(one, StateReader) else None for one in drafters]
    names = ["" if reader is None else reader.reads for reader in readers]
    wanted = set(filter(None, names))
    if not wanted:
        return ctx.decode(batch), []
    with ctx.capture(*wanted) as seen:
        out = ctx.decode(batch)
    readings = []
    begin = 0
    for part, reader, name in zip(slices, readers, names, strict=True):
        end = begin + part.n_pending + len(part.draft)
        if reader is not None and name:
            states = seen[name][begin:end]
            readings.append(Reading(reader, part.request, part.request.n_cached, states))
        begin = end
    return out, readings


def draw_all(live: list[Slice], rows: Row) -> list[Drawn]:
    """Return for each row the sampled token and its log-probability, or the failure of the sampler."""
    drawn: dict[int, Drawn] = {}
    groups: dict[int, list[int]] = {}
    for i, part in enumerate(live):
        groups.setdefault(id(part.request.sampler), []).append(i)
    for members in groups.values():
        requests = [live[i].request for i in members]
        own = rows if len(members) == len(live) else rows[members]
        drawn.update(zip(members, draw(requests, own), strict=True))
    return [drawn[i] for i in range(len(live))]
