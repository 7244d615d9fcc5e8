# SPDX-License-Identifier: Apache-2.0
"""Plain English sentences made on the spot: varied enough to have similarities worth ranking."""

from itertools import product

import torch

from gossamer.errors import InputError

# A topic per line: who; does; what.
_TOPICS = """
The chef, My grandmother, A hungry student, The new restaurant; cooked, served, tasted, burned;\
 a tomato soup, fresh bread, the chicken curry, an apple pie, fried rice
The striker, Our goalkeeper, The young team, A retired coach; won, watched, talked about, lost;\
 the cup final, a penalty shootout, the second half, the away game, the derby
The engineer, A software company, The intern, An open source group;\
 released, debugged, rewrote, tested;\
 the database driver, a web server, the compiler, a mobile app, the login page
The doctor, A nurse, The hospital, An anxious patient; described, treated, worried about, studied;\
 a broken arm, the flu, high blood pressure, a rare allergy, the new vaccine
The astronomer, A space probe, The science museum, My physics teacher;\
 observed, photographed, explained, discovered;\
 a distant galaxy, the rings of Saturn, a solar eclipse, a comet, black holes
The bank, An investor, The finance minister, A small shop; raised, feared, announced, calculated;\
 interest rates, the new tax, a quarterly loss, the price of oil, a bonus
"""
_TAILS = (
    "",
    " yesterday",
    " last summer",
    " in the rain",
    " for the first time",
    " with great care",
)


def make_sentences(count: int, generator: torch.Generator) -> list[str]:
    """`count` different sentences on a few topics, drawn from `generator`."""
    every = [
        f"{' '.join(words)}{tail}."
        for topic in _TOPICS.strip().splitlines()
        for *words, tail in product(*(part.split(", ") for part in topic.split("; ")), _TAILS)
    ]
    if not 1 <= count <= len(every):
        raise InputError(f"sentences: expected 1 to {len(every)}, got {count}.")
    order = torch.randperm(len(every), generator=generator)[:count]
    return [every[index] for index in order.tolist()]
