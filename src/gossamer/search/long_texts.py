# SPDX-License-Identifier: Apache-2.0
"""What a decoder reads of a long text: rules of attention and types of keys, beside all in fp32.

A way to read is judged by two things, because the first hardly sees the second: the perplexity of
the last tokens of a text, one by one, and how many numbers hidden at ten depths are given back.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gossamer.data.files import Texts
from gossamer.data.token_ids import windows
from gossamer.errors import InputError
from gossamer.ops.timing import fair_clock
from gossamer.patterns.attention.key_rules import KeyRules, parse_key_rules
from gossamer.running.decoder import DecoderEngine
from gossamer.search.workloads import Workload

__all__ = [
    "KeyPoint",
    "LongTexts",
    "ask_depths",
    "choose_keys",
    "key_rules_for",
    "long_parts_of",
    "long_windows",
    "read_on",
]

DEPTHS = 10
_SCORED, _MOST_WINDOWS = 256, 2
# New tokens that a prompt is weighed against.
_NEW = 128
_LEAST = 128
_FACT = " Remember: the secret number is {}. "
# As the fact begins: a small model is not asked to understand, but to look back.
_QUESTION = " Remember: the secret number is"
_ANSWER = 12


@dataclass(frozen=True)
class _Reading:
    """Windows of a text read with some rules: perplexity of their last tokens, seconds."""

    perplexity: float
    prompt: float
    token: float


@dataclass(frozen=True)
class KeyPoint:
    """A way to read, measured.

    Attributes:
        attention: as `--attention` takes it.
        keys: as `--kv` takes it.
        quality: perplexity on the data that choices are made by.
        lost: its growth over that of all keys in fp32, as a fraction.
        found: hidden numbers that were given back; None: too much was lost to ask.
        prompt_ms: of a text.
        token_ms: of a token behind it.
        size: bytes of keys and values.
    """

    attention: str
    keys: str
    quality: float
    lost: float
    found: int | None
    prompt_ms: float
    token_ms: float
    size: int

    @property
    def name(self) -> str:
        """What is asked of `gossamer run`."""
        return f"--attention {self.attention} --kv {self.keys}"

    @property
    def ms(self) -> float:
        """Of a text and an answer to it."""
        return self.prompt_ms + _NEW * self.token_ms


@dataclass(frozen=True)
class LongTexts:
    """What was found about reading texts of a length.

    Attributes:
        length: in tokens.
        points: all that were measured; the first reads all keys in fp32.
        chosen: the fastest that loses little and finds as many numbers as the first.
        full_quality: perplexity of the first, on data that nothing was chosen by.
        quality: of the chosen one, on the same data.
        left_out: what there was no time for.
    """

    length: int
    points: tuple[KeyPoint, ...]
    chosen: KeyPoint
    full_quality: float
    quality: float
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """A sentence for people."""
        full, chosen = self.points[0], self.chosen
        if chosen == full:
            return f"Texts of {self.length} tokens: read all keys in fp32; nothing else was better."
        return (
            f"Texts of {self.length} tokens: {chosen.name}: a prompt in"
            f" {chosen.prompt_ms / full.prompt_ms:.2f} of the time, a token behind it in"
            f" {chosen.token_ms / full.token_ms:.2f}, keys in {chosen.size / full.size:.2f} of the"
            f" bytes; perplexity {self.quality:.2f} instead of {self.full_quality:.2f} on data that"
            f" nothing was chosen by, {chosen.found} of {DEPTHS} numbers found instead of"
            f" {full.found}."
        )


def key_rules_for(length: int) -> tuple[KeyRules, ...]:
    """What is tried, gentlest first; the first is all keys in fp32."""
    pages, window = max(length // 8, 64), max(length // 4, 64)
    texts = (
        "full/fp32",
        "full/int8",
        "full/int4",
        "mass:0.95/int8",
        "mass:0.9/int8",
        f"pages:{pages}/int8",
        f"mass:0.95+pages:{pages}/int8",
        f"mass:0.9+pages:{pages}/int8",
        f"sinks:4+window:{window}/int8",
    )
    return tuple(parse_key_rules(*text.split("/")) for text in texts)


def long_windows(data: Texts, tokenizer: Any, length: int) -> list[list[int]]:
    """Token numbers of the end of a text, one or two windows of this length."""
    if length < _LEAST:
        raise InputError(
            f"shrink: texts of {length} tokens are not long; ask for {_LEAST} or more."
        )
    found: list[list[int]] = windows(data, tokenizer, length)[-_MOST_WINDOWS:].tolist()
    return found


def long_parts_of(work: Workload, length: int) -> tuple[list[list[int]], list[list[int]]]:
    """Windows to choose by and to report; an error where the model cannot read such texts."""
    if work.kind != "decoder":
        raise InputError(
            f"shrink: texts of {length} tokens are read by decoders that write text, and this"
            f" model ({type(work.model).__name__}) is none. Leave the length out."
        )
    DecoderEngine(work.model, "int8", context=length)
    choosing, reporting = (
        long_windows(work.texts[part], work.tokenizer, length) for part in ("choosing", "reporting")
    )
    return choosing, reporting


def read_on(engine: DecoderEngine, texts: Sequence[Sequence[int]], scored: int = 0) -> _Reading:
    """Read the texts, and their last tokens one by one, so that a choice is made for each."""
    clock, total, prompts, tokens = fair_clock(), 0.0, [], []
    count = scored or min(_SCORED, len(texts[0]) // 4)
    for ids in texts:
        session = engine.session()
        start = clock()
        logits_V = session.prompt(ids[:-count])
        prompts.append(clock() - start)
        for token in ids[-count:]:
            total -= float(logits_V.double().log_softmax(0)[token])
            start = clock()
            logits_V = session.append(token)
            tokens.append(clock() - start)
    loss = total / (count * len(texts))
    return _Reading(math.exp(min(loss, 700.0)), min(prompts), statistics.median(tokens))


def ask_depths(engine: DecoderEngine, ids: Sequence[int], tokenizer: Any) -> int:
    """At how many of ten depths of a text a number of six digits is given back at its end."""
    draw, right, session = random.Random(7), 0, engine.session()  # noqa: S311  (no secret)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    question = encode(_QUESTION)
    for depth in range(DEPTHS):
        number = str(draw.randrange(100000, 1000000))
        fact = encode(_FACT.format(number))
        body = ids[: len(ids) - len(question) - len(fact) - _ANSWER]
        at = depth * len(body) // DEPTHS
        # One session: what stands before a fact is not read again.
        prompt = [*body[:at], *fact, *body[at:], *question]
        right += number in tokenizer.decode(engine.generate(prompt, _ANSWER, session=session))
    return right


def choose_keys(
    engine: DecoderEngine,
    choosing: Sequence[Sequence[int]],
    reporting: Sequence[Sequence[int]],
    tokenizer: Any,
    max_loss: float,
    *,
    seconds_left: Callable[[], float] = lambda: math.inf,
    say: Callable[[str], None] = lambda text: None,
) -> LongTexts:
    """The fastest way to read that loses at most `max_loss` and finds what all keys find.

    Args:
        engine: of the model; its own rules do not count.
        choosing: windows of equal length to choose by.
        reporting: windows for the final figure.
        tokenizer: of the model.
        max_loss: growth of perplexity, as a fraction.
        seconds_left: what would take longer is not begun; all keys are always measured.
        say: gets a line for every point.
    """
    length, clock = len(choosing[0]), fair_clock()
    points: list[KeyPoint] = []
    left_out: list[str] = []
    longest = 0.0
    for rules in key_rules_for(length):
        if longest > seconds_left():
            left_out.append(f"--attention {rules} --kv {rules.dtype}: no time was left.")
            continue
        start, reader = clock(), engine.with_keys(rules)
        reading = read_on(reader, choosing)
        full = points[0].quality if points else reading.perplexity
        point = KeyPoint(
            str(rules), rules.dtype, reading.perplexity, reading.perplexity / full - 1, None,
            1e3 * reading.prompt, 1e3 * reading.token, reader.key_bytes,
        )  # fmt: skip
        if point.lost <= max_loss:
            point = replace(point, found=ask_depths(reader, choosing[0], tokenizer))
        points.append(point)
        longest = max(longest, clock() - start)
        say(f"{point.name}: {point.lost:+.2%} lost, {point.found} of {DEPTHS} numbers found")
    wanted = points[0].found or 0
    good = [p for p in points if p.found is not None and p.found >= wanted]
    chosen = min(good, key=lambda point: (point.ms, point.size))
    rules = parse_key_rules(chosen.attention, chosen.keys)
    first = read_on(engine.with_keys(KeyRules()), reporting).perplexity
    last = first if chosen == points[0] else read_on(engine.with_keys(rules), reporting).perplexity
    return LongTexts(length, tuple(points), chosen, first, last, tuple(left_out))
