"""What a sentence of the sample corpus says, before it is said in either language.

`launcher.corpus.grammar` draws these trees; `launcher.corpus.french` and `launcher.corpus.english` put them into words.
"""

from __future__ import annotations

from typing import Literal

from launcher.core.frozen import frozen
from launcher.corpus.words import Adjective, Determiner, Gender, Modal, Name, Noun, Phrase, Pronoun, Verb

Tense = Literal["present", "past", "future"]
Mood = Literal["statement", "not", "never", "question"]


@frozen
class Agreement:
    """What a subject imposes on its verb, its participle and its adjectives."""

    person: int
    is_plural: bool
    gender: Gender

    @property
    def form(self) -> int:
        """Index among the six forms of a conjugation: je tu il nous vous ils.

        >>> Agreement(person=2, is_plural=True, gender="m").form
        4
        """
        return self.person - 1 + 3 * self.is_plural


@frozen
class Relative:
    """A clause of one verb: "qui dort", "who sleeps"."""

    verb: Verb  # Invariant: takes no object
    tense: Tense


@frozen
class NounPhrase:
    """Invariant: the determiner has the number's form, and is definite when there is an owner."""

    determiner: Determiner
    noun: Noun
    is_plural: bool = False
    before: Adjective | None = None
    after: Adjective | None = None
    owner: Owner | None = None
    relative: Relative | None = None


@frozen
class Couple:
    """Two subjects joined by "and"; masculine unless both are feminine."""

    first: Name
    second: Name


Owner = Name | NounPhrase
Subject = Pronoun | Name | NounPhrase | Couple


@frozen
class Event:
    verb: Verb
    modal: Modal | None = None  # Invariant: only in the present
    object: NounPhrase | None = None
    recipient: Owner | None = None
    destination: NounPhrase | None = None


@frozen
class State:
    adjective: Adjective
    degree: Phrase | None = None


@frozen
class Clause:
    subject: Subject
    predicate: Event | State
    tense: Tense = "present"
    mood: Mood = "statement"
    asks: Phrase | None = None  # where, when, why; None in a yes-or-no question
    place: tuple[Phrase, NounPhrase] | None = None
    time: Phrase | None = None
    time_comes_first: bool = False

    @property
    def weakens_some(self) -> bool:
        """Whether "some" of the object turns into "any": after a negation or in a yes-or-no question."""
        return self.mood in {"not", "never"} or (self.mood == "question" and self.asks is None)


@frozen
class Compound:
    first: Clause
    conjunction: Phrase
    second: Clause


Sentence = Clause | Compound


def agreement_of(subject: Subject) -> Agreement:
    """The person, number and gender of `subject`."""
    if isinstance(subject, Pronoun):
        return Agreement(subject.person, subject.is_plural, subject.gender)
    if isinstance(subject, Couple):
        feminine = subject.first.gender == subject.second.gender == "f"
        return Agreement(3, is_plural=True, gender="f" if feminine else "m")
    if isinstance(subject, Name):
        return Agreement(3, is_plural=False, gender=subject.gender)
    return Agreement(3, is_plural=subject.is_plural, gender=subject.noun.gender)
