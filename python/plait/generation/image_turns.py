"""How the answers of a Chat with images are generated: in a sequence of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from plait._core import Batch
from plait.context import Context
from plait.errors import CacheFull
from plait.generation.events import Event
from plait.generation.turns import ShiftingTurns, Turn, common_length

if TYPE_CHECKING:
    from plait.generation.turns import Row
    from plait.vision.encoder import ImageEmbeddings
    from plait.vision.parts import ImagePrompt


class ImageTurns(ShiftingTurns):
    """Answers in a sequence of their own, whose prompts have images. Nothing shifts.

    Args:
        ctx: The context.
        owned: The context again if it is to be closed at the end.
        images: The images of the prompts; see ImagePrompt.
    """

    shifts = False

    def __init__(self, ctx: Context, owned: Context | None, images: ImagePrompt) -> None:
        super().__init__(ctx, owned)
        self._images = images

    def start(self, turn: Turn) -> Generator[Event, None, None]:
        """Compute the prompt and return the events of the answer."""
        row = self._prefill(turn.prompt)
        room = self.ctx.n_ctx - len(turn.prompt)
        tokens = [token for token in turn.prompt if token >= 0]
        return self._answer(replace(turn, prompt=tokens, limit=min(turn.limit, room)), row)

    def _prefill(self, prompt: list[int]) -> Row:
        n = min(common_length(self._decoded, prompt), len(prompt) - 1)
        while n and prompt[n] < 0 and self._images.image_at(prompt[n]) is None:
            n -= 1  # to the first row of the image
        if n < len(self._decoded):
            position = sum(self._span(part) for part in self._parts(prompt[:n]))
            if self._seq.rewind(position):
                self._seq.rewind(0)
                n = 0
        self._decoded = prompt[:n]
        self.n_reused = n
        row: Row | None = None
        for part in self._parts(prompt[n:]):
            if part[0] < 0:
                row = self._feed_image(part)
                continue
            for i in range(0, len(part), self.ctx.n_batch):
                row = self._feed(part[i : i + self.ctx.n_batch])
        assert row is not None
        return row

    def _feed_image(self, part: list[int]) -> Row:
        image = self._image(part)
        if len(image) > self.ctx.n_batch:
            raise CacheFull(
                f"Chat: an image has {len(image)} embeddings, but n_batch is {self.ctx.n_batch}; "
                "create a context with a larger n_batch, or a Vision with a smaller max_pixels"
            )
        batch = Batch()
        image.add_to(batch, self._seq.pos, seq=self._seq, logits="last")
        row: Row = self.ctx.decode(batch).logits[0]
        self._decoded += part
        return row

    def _make_room(self) -> None:
        pass  # the answer ends where the context ends

    def _image(self, part: list[int]) -> ImageEmbeddings:
        image = self._images.image_at(part[0])
        assert image is not None
        return image

    def _span(self, part: list[int]) -> int:
        return self._image(part).span if part[0] < 0 else len(part)

    def _parts(self, prompt: list[int]) -> Iterator[list[int]]:
        """Yield the runs of tokens and the rows of each image. A prompt starts with a token or a whole image."""
        i = 0
        while i < len(prompt):
            if prompt[i] < 0:
                end = i + len(self._image(prompt[i : i + 1]))
            else:
                end = next((j for j in range(i, len(prompt)) if prompt[j] < 0), len(prompt))
            yield prompt[i:end]
            i = end
