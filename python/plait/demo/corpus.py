"""Short stories that contain facts, and questions about the facts.

The demo model is trained and evaluated on them. A story consists of a few threads (a home, a pet, a
thing that changes hands, a thing that is moved, a walk, a find) whose sentences are interleaved in
chronological order. Every question has exactly one right answer, given by the state at the end of
the story, at its beginning, or by the event itself.

The two splits share words and sentences, but no facts. A fact is a pair of words: who lives where,
which thing has which colour, who held what, what was where, on which day a thing was given, and so
on. One pair in five, selected by its CRC-32, is held out: a `train` story contains no such pair and
an `unseen` story no other. The answers about an unseen story therefore cannot be remembered from
training; they have to be read from the story.

Stories depend only on the seed: they use only `Random.random()`, whose sequence Python guarantees
for a seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Split = Literal["train", "unseen"]
T = TypeVar("T")


def _words(text: str) -> list[str]:
    return text.split()


WOMEN = _words("Mia Ana Eva Ida Lea Zoe Nora Ruth Emma Clara Ines Sara Yuki Asha Lucy Rosa")
MEN = _words("Tom Ben Max Leo Sam Jan Omar Hugo Noah Adam Luis Paul Kofi Ravi Otto Finn")
PEOPLE = WOMEN + MEN
CITIES = _words("Oslo Rome Lima Cairo Paris Delhi Kyoto Quito Bern Lagos Dublin Seoul")
CITIES += ["Cape Town", "New York"]
FOODS = _words("soup bread rice cake honey cheese tea pasta fish salad")
THINGS = _words(
    "kite drum lamp book coin ring hat ball bell boat clock cup flute key map mirror mug pen scarf spoon torch "
    "train violin watch whistle camera brush rope"
)
COLOURS = _words("red blue green yellow black white brown pink grey purple golden")
ANIMALS = _words("dog cat horse parrot rabbit goat duck pony mouse turtle fox hen")
PET_NAMES = _words("Bo Rex Coco Kiki Milo Luna Pip Toto Fifi Gus Momo Nemo")
CONTAINERS = _words("box bag drawer chest jar basket bucket cupboard suitcase barrel")
ROOMS = _words("garden kitchen attic cellar library garage barn tower forest market school harbour")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
GOODS = _words("apples plums pears eggs shells nuts roses stones cards stamps")
NUMBERS = _words("two three four five six seven eight nine")

HELD_OUT = 5
"""One in so many pairs of words belongs to the unseen split."""
FACTS = (8, 14)
"""Min and max number of sentences of a story, which then has 45 to 115 tokens."""
N_PEOPLE = (2, 4)


@dataclass(frozen=True)
class Story:
    """A story and the questions about it."""

    text: str
    questions: list[tuple[str, str]]
    """Pairs (question, answer) in unspecified order, at most one per fact."""


@dataclass
class _Sentence:
    """A sentence whose `{who}` and `{it}` become pronouns where the previous sentence makes them unambiguous."""

    pattern: str
    who: str
    it: str = ""
    others: tuple[str, ...] = ()


@dataclass
class _Thread:
    sentences: list[_Sentence]
    questions: list[tuple[str, str]] = field(default_factory=list)


class _NoPairError(Exception):
    """The split has no pair for the words drawn so far; the story is drawn again."""


class _Draw:
    """Random choices within one split that use each word at most once per story."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng = rng
        self.unseen = split == "unseen"
        self.used: set[str] = set()
        self.people: list[str] = []

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def one(self, options: Sequence[T]) -> T:
        if not options:
            raise _NoPairError
        return options[int(self.rng.random() * len(options))]

    def word(self, options: Sequence[str], *partners: str) -> str:
        """Draw a word that the story has not used and whose pairs with all partners belong to the split."""
        free = [
            w
            for w in options
            if w not in self.used and all(held_out(p, w) == self.unseen for p in partners)
        ]
        chosen = self.one(free)
        self.used.add(chosen)
        return chosen

    def person(self, *partners: str, but: tuple[str, ...] = ()) -> str:
        """Draw one of the people of this story; a person can occur in several threads."""
        fits = [
            w
            for w in self.people
            if w not in but and all(held_out(w, p) == self.unseen for p in partners)
        ]
        return self.one(fits)

    def between(self, low: int, high: int) -> int:
        return low + int(self.rng.random() * (high - low + 1))

    def shuffle(self, items: list[T]) -> list[T]:
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = int(self.rng.random() * (i + 1))
            items[i], items[j] = items[j], items[i]
        return items


def held_out(a: str, b: str) -> bool:
    """Return whether the fact of these two words belongs to the unseen split."""
    return zlib.crc32(f"{a}|{b}".encode()) % HELD_OUT == 0


def _home(d: _Draw) -> _Thread:
    who = d.person(but=tuple(w for w in d.people if f"home {w}" in d.used))
    d.used.add(f"home {who}")
    city = d.word(CITIES, who)
    pattern = d.one(["{who} lives in " + city, "{who} has a house in " + city])
    return _Thread(
        [_Sentence(pattern, who)], [(f"Where does {who} live?", f"{who} lives in {city}.")]
    )


def _taste(d: _Draw) -> _Thread:
    who = d.person(but=tuple(w for w in d.people if f"taste {w}" in d.used))
    d.used.add(f"taste {who}")
    food = d.word(FOODS, who)
    return _Thread(
        [_Sentence("{who} likes " + food, who)],
        [(f"What does {who} like?", f"{who} likes {food}.")],
    )


def _pet(d: _Draw) -> _Thread:
    animal = d.word(ANIMALS)
    who = d.person(animal)
    name = d.word(PET_NAMES, animal)
    return _Thread(
        [_Sentence(f"{{who}} has a {animal} named {name}", who)],
        [
            (f"What is the name of the {animal}?", f"Its name is {name}."),
            (f"What animal is {name}?", f"{name} is a {animal}."),
        ],
    )


def _colour(d: _Draw, thing: str, thread: _Thread) -> None:
    """Add a sentence about the colour of the thing, at random."""
    if d.chance(0.7):
        colour = d.word(COLOURS, thing)
        thread.sentences.append(_Sentence(f"The {thing} is {colour}", "", thing))
        thread.questions.append((f"What colour is the {thing}?", f"The {thing} is {colour}."))


def _give(d: _Draw, thing: str, what: str, giver: str, taker: str, thread: _Thread) -> None:
    day = d.word(DAYS, thing)
    pattern = f"{{who}} gave {what} to {taker} on {day}"
    thread.sentences.append(_Sentence(pattern, giver, thing, (taker,)))
    thread.questions += [
        (f"Who gave the {thing} to {taker}?", f"{giver} did."),
        (f"When did {taker} get the {thing}?", f"On {day}."),
    ]


def _possession(d: _Draw) -> _Thread:
    """A thing that a person has and may give away, possibly twice."""
    thing = d.word(THINGS)
    holder = d.person(thing)
    thread = _Thread([_Sentence(f"The {thing} belongs to {holder}", "", thing, (holder,))])
    _colour(d, thing, thread)
    past: tuple[str, ...] = (holder,)
    for _ in range(d.one([0, 0, 1, 2])):
        if len(past) == len(d.people):
            break
        taker = d.person(thing, but=past)
        _give(d, thing, "{it}", holder, taker, thread)
        holder, past = taker, (*past, taker)
    thread.questions.append((f"Who has the {thing}?", f"The {thing} belongs to {holder}."))
    return thread


def _gift(d: _Draw) -> _Thread:
    thing = d.word(THINGS)
    giver = d.person(thing)
    taker = d.person(thing, but=(giver,))
    thread = _Thread([])
    _give(d, thing, f"a {thing}", giver, taker, thread)
    thread.questions.append((f"Who has the {thing}?", f"The {thing} belongs to {taker}."))
    return thread


def _moved(d: _Draw) -> _Thread:
    """A thing that is at a place and may be moved to another."""
    thing = d.word(THINGS)
    first = place = d.word(CONTAINERS, thing)
    who = d.person(thing)
    thread = _Thread([_Sentence(f"{{who}} put a {thing} in the {first}", who, thing)])
    _colour(d, thing, thread)
    if d.chance(0.5):
        mover = d.person(thing)
        place = d.word(CONTAINERS, thing)
        thread.sentences.append(
            _Sentence(f"Later {{who}} moved {{it}} to the {place}", mover, thing)
        )
        thread.questions += [
            (f"Where was the {thing} at first?", f"In the {first}."),
            (f"Who moved the {thing}?", f"{mover} did."),
        ]
    thread.questions.append((f"Where is the {thing}?", f"In the {place}."))
    return thread


def _walk(d: _Draw) -> _Thread:
    who = d.person(but=tuple(w for w in d.people if f"walk {w}" in d.used))
    d.used.add(f"walk {who}")
    first = place = d.word(ROOMS, who)
    thread = _Thread([_Sentence(f"{{who}} went to the {first}", who)])
    if d.chance(0.6):
        place = d.word(ROOMS, who)
        thread.sentences.append(_Sentence(f"Then {{who}} went to the {place}", who))
        thread.questions.append((f"Where was {who} at first?", f"In the {first}."))
    thread.questions.append((f"Where is {who}?", f"In the {place}."))
    return thread


def _count(d: _Draw) -> _Thread:
    goods = d.word(GOODS)
    who = d.person(goods, but=tuple(w for w in d.people if f"count {w}" in d.used))
    d.used.add(f"count {who}")
    number = d.one(NUMBERS)
    return _Thread(
        [_Sentence(f"{{who}} found {number} {goods}", who)],
        [(f"How many {goods} did {who} find?", f"{who} found {number} {goods}.")],
    )


_KINDS: list[Callable[[_Draw], _Thread]] = [
    _home, _taste, _pet, _possession, _possession, _gift, _moved, _moved, _walk, _count,
]  # fmt: skip

N_KINDS = len(_KINDS)


def story(
    rng: random.Random,
    split: Split = "train",
    facts: tuple[int, int] = FACTS,
    people: tuple[int, int] = N_PEOPLE,
    kinds: int = N_KINDS,
    max_questions: int = 8,
) -> Story:
    """Draw one story.

    Args:
        rng: The source of randomness.
        split: The split that the facts belong to.
        facts: Min and max number of sentences.
        people: Min and max number of people.
        kinds: Max number of kinds of threads.
        max_questions: Max number of questions.

    Returns:
        The story with its questions and their answers.
    """
    while True:
        try:
            return _draw(_Draw(rng, split), facts, people, kinds, max_questions)
        except _NoPairError:
            continue


def stories(seed: int, count: int, split: Split = "train") -> Iterator[Story]:
    """Generate the first `count` stories of a seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield story(rng, split)


def _draw(
    d: _Draw, facts: tuple[int, int], people: tuple[int, int], kinds: int, max_questions: int
) -> Story:
    room = d.between(*facts)
    d.people = [d.word(PEOPLE) for _ in range(d.between(*people))]
    told_of = d.shuffle(_KINDS)[:kinds]
    threads: list[_Thread] = []
    while room > 0:
        thread = _thread(d, told_of)
        if len(thread.sentences) <= room:
            threads.append(thread)
            room -= len(thread.sentences)
    # Interleaving: each position of the story is assigned to a thread, which supplies its next sentence.
    turns = d.shuffle([i for i, t in enumerate(threads) for _ in t.sentences])
    told = [iter(t.sentences) for t in threads]
    text = " ".join(_tell(d, [next(told[i]) for i in turns]))
    questions = d.shuffle([q for t in threads for q in t.questions])[:max_questions]
    return Story(text, questions)


def _thread(d: _Draw, told_of: Sequence[Callable[[_Draw], _Thread]]) -> _Thread:
    for _ in range(40):
        try:
            return d.one(told_of)(d)
        except _NoPairError:
            continue
    raise _NoPairError


def _tell(d: _Draw, sentences: list[_Sentence]) -> Iterator[str]:
    before = _Sentence("", "")
    for s in sentences:
        # Use a pronoun only if it is unambiguous: the previous sentence names one person, or the same thing.
        who = s.who
        if s.who == before.who and not before.others and d.chance(0.5):
            who = "she" if s.who in WOMEN else "he"
        it = "it" if s.it and s.it == before.it and d.chance(0.5) else f"the {s.it}"
        line = s.pattern.format(who=who, it=it)
        yield line[0].upper() + line[1:] + "."
        before = s


def prompt(question: str) -> str:
    """Return the text between the story and the answer."""
    return f"Q: {question} A:"
