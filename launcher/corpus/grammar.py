"""The rules of the sample corpus: a small context-free grammar whose every rule is one function that draws.

sentence  -> clause | clause conjunction clause
clause    -> subject predicate [place] [time], told, denied or asked
subject   -> pronoun | name | name "and" name | noun phrase
phrase    -> determiner [adjective] noun [adjective] ["of" owner | "who" verb]
predicate -> "be" [degree] adjective | [modal] verb [object] ["to" recipient] | [modal] "go to" place

What a rule may combine follows from the kinds in the lexicon, so that what is drawn is sense as well as grammar.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from launcher.core.frozen import frozen
from launcher.corpus import lexicon, verbs
from launcher.corpus.english import english
from launcher.corpus.french import french
from launcher.corpus.trees import (
    Clause,
    Compound,
    Couple,
    Event,
    Mood,
    NounPhrase,
    Owner,
    Relative,
    Sentence,
    State,
    Subject,
    Tense,
)
from launcher.corpus.words import Adjective, Determiner, Noun

Option = TypeVar("Option")

PERSON = frozenset({"person"})
KINDS = tuple(sorted({kind for noun in lexicon.NOUNS for kind in noun.kinds} - {"mass", "unowned"}))
TENSES: tuple[Tense, ...] = ("present", "present", "past", "future")
MOODS: tuple[Mood, ...] = ("statement",) * 13 + ("not",) * 3 + ("never",) + ("question",) * 3
RELATIVE_VERBS = tuple(verb for verb in verbs.EVENTS if not verb.objects and "animal" in verb.subjects)
POINTING = (lexicon.DEFINITE, lexicon.DEFINITE, lexicon.DEMONSTRATIVE)
UNOWNED = (*POINTING, lexicon.INDEFINITE, lexicon.INDEFINITE)
MASS = (*POINTING, *lexicon.POSSESSIVES[:2], lexicon.PARTITIVE, lexicon.PARTITIVE)


def pairs(seed: int) -> Iterator[tuple[str, str]]:
    """(French, English) without end, the same for the same seed. Repetitions occur."""
    rules = Rules(random.Random(seed))
    while True:
        sentence = rules.sentence()
        yield french(sentence), english(sentence)


@frozen
class Rules:
    """The grammar with its source of chance: each method draws one phrase of its kind.

    Draws by `random()` alone, the one method whose sequence Python promises to keep from version to version.
    """

    source: random.Random

    def sentence(self) -> Sentence:
        if not self._chance(0.12):
            return self._clause()
        tense = self._one_of(TENSES)
        return Compound(self._core(tense), self._one_of(lexicon.CONJUNCTIONS), self._core(tense))

    def _clause(self) -> Clause:
        mood = self._one_of(MOODS)
        clause = replace(self._core(self._one_of(TENSES)), mood=mood)
        event = clause.predicate
        if isinstance(event, State):
            return replace(clause, asks=lexicon.WHY) if mood == "question" and self._chance(0.2) else clause
        if event.verb.takes_place and self._chance(0.25):
            place = self._one(self._one_of(UNOWNED), frozenset({"place"}))
            clause = replace(clause, place=(self._one_of(lexicon.PREPOSITIONS), place))
        return self._asked(clause, event) if mood == "question" else self._timed(clause)

    def _core(self, tense: Tense) -> Clause:
        """Subject and predicate."""
        draw = self.source.random()
        if draw < 0.2:
            return self._description(tense)
        event = self._giving() if draw < 0.3 else self._going() if draw < 0.36 else self._doing()
        if tense == "present" and self._chance(0.2):
            event = replace(event, modal=self._one_of(verbs.MODALS))
        return Clause(self._subject(event.verb.subjects, tense), event, tense)

    def _description(self, tense: Tense) -> Clause:
        subject = self._named_person() if self._chance(0.15) else self._plain_phrase()
        kinds = subject.noun.kinds if isinstance(subject, NounPhrase) else PERSON
        adjective = self._one_of(_suiting(lexicon.ADJECTIVES, kinds))
        degree = self._one_of(lexicon.DEGREES) if adjective.is_gradable and self._chance(0.35) else None
        return Clause(subject, State(adjective, degree), tense)

    def _plain_phrase(self) -> NounPhrase:
        """Something known, without adjectives, so that nothing is called what it is said to be."""
        phrase = self._phrase(frozenset({self._one_of(KINDS)}))
        determiner = lexicon.DEFINITE if phrase.determiner.becomes_de else phrase.determiner
        return replace(phrase, determiner=determiner, before=None, after=None)

    def _doing(self) -> Event:
        verb = self._one_of(verbs.EVENTS)
        return Event(verb, object=self._phrase(verb.objects) if verb.objects else None)

    def _giving(self) -> Event:
        verb = self._one_of(verbs.GIVING)
        return Event(verb, object=self._phrase(verb.objects), recipient=self._recipient())

    def _going(self) -> Event:
        return Event(verbs.GOING, destination=self._one(self._one_of(POINTING), frozenset({"place"})))

    def _timed(self, clause: Clause) -> Clause:
        """What never happens has no date."""
        if clause.mood == "never" or not self._chance(0.3):
            return clause
        return replace(clause, time=self._one_of(lexicon.TIMES[clause.tense]), time_comes_first=self._chance(0.4))

    def _asked(self, clause: Clause, event: Event) -> Clause:
        """Yes or no; or why, when, and where unless the place is told."""
        if self._chance(0.6):
            return clause
        words = (lexicon.WHY, lexicon.WHEN, lexicon.WHERE)
        return replace(clause, asks=self._one_of(words if event.verb.takes_place and not clause.place else words[:2]))

    def _recipient(self) -> Owner:
        return self._one_of(lexicon.NAMES) if self._chance(0.3) else self._one(self._one_of(UNOWNED), PERSON)

    def _subject(self, kinds: frozenset[str], tense: Tense) -> Subject:
        if "person" in kinds and self._chance(0.5):
            return self._named_person()
        phrase = self._phrase(kinds)
        if phrase.owner or phrase.noun.is_mass or not self._chance(0.08):
            return phrase
        return replace(phrase, relative=Relative(self._one_of(RELATIVE_VERBS), tense))

    def _named_person(self) -> Subject:
        draw = self.source.random()
        if draw < 0.6:
            return self._one_of(lexicon.PRONOUNS)
        first = self._one_of(lexicon.NAMES)
        if draw < 0.9:
            return first
        return Couple(first, self._one_of([name for name in lexicon.NAMES if name != first]))

    def _phrase(self, kinds: frozenset[str]) -> NounPhrase:
        noun = self._one_of(_nouns_of(kinds))
        if noun.is_mass:
            return self._described(NounPhrase(self._one_of(MASS), noun))
        if noun.can_be_owned and "place" not in noun.kinds and self._chance(0.08):
            return NounPhrase(lexicon.DEFINITE, noun, is_plural=self._chance(0.3), owner=self._owner())
        is_plural = self._chance(0.35)
        determiners = UNOWNED + lexicon.POSSESSIVES * noun.can_be_owned + lexicon.QUANTITIES * is_plural
        return self._described(NounPhrase(self._one_of(determiners), noun, is_plural=is_plural))

    def _one(self, determiner: Determiner, kinds: frozenset[str]) -> NounPhrase:
        return self._described(NounPhrase(determiner, self._one_of(_nouns_of(kinds))))

    def _described(self, phrase: NounPhrase) -> NounPhrase:
        before = self._adjective(lexicon.ADJECTIVES_BEFORE, phrase.noun, 0.2)
        return replace(phrase, before=before, after=self._adjective(lexicon.ADJECTIVES_AFTER, phrase.noun, 0.15))

    def _adjective(self, adjectives: tuple[Adjective, ...], noun: Noun, share: float) -> Adjective | None:
        suiting = _suiting(adjectives, noun.kinds)
        return self._one_of(suiting) if suiting and self._chance(share) else None

    def _owner(self) -> Owner:
        if self._chance(0.5):
            return self._one_of(lexicon.NAMES)
        return NounPhrase(lexicon.DEFINITE, self._one_of(_nouns_of(PERSON)), is_plural=self._chance(0.2))

    def _chance(self, share: float) -> bool:
        return self.source.random() < share

    def _one_of(self, options: Sequence[Option]) -> Option:
        return options[int(self.source.random() * len(options))]


@cache
def _nouns_of(kinds: frozenset[str]) -> tuple[Noun, ...]:
    return tuple(noun for noun in lexicon.NOUNS if noun.kinds & kinds)


@cache
def _suiting(adjectives: tuple[Adjective, ...], kinds: frozenset[str]) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in adjectives if adjective.kinds & kinds)
