"""Say a tree in French: agreement first, then elision and contraction over the finished row of words."""

from __future__ import annotations

import unicodedata

from launcher.corpus.lexicon import ASPIRATED, INDEFINITE
from launcher.corpus.trees import (
    Agreement,
    Clause,
    Compound,
    Couple,
    Event,
    NounPhrase,
    Sentence,
    State,
    Subject,
    Tense,
    agreement_of,
)
from launcher.corpus.verbs import AVOIR_PRESENT, ETRE_FUTURE_STEM, ETRE_IMPERFECT, ETRE_PRESENT, FUTURE_ENDINGS
from launcher.corpus.words import Adjective, Name, Pronoun, Verb, french_plural

ELIDED = {"je": "j'", "ne": "n'", "le": "l'", "la": "l'", "de": "d'", "que": "qu'"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
BEFORE_VOWEL = {"ce": "cet", "ma": "mon"}
NEGATIONS = {"not": "pas", "never": "jamais"}


def french(sentence: Sentence) -> str:
    """The French sentence of a tree, with its capital and its stop (set off by a blank where it is a question mark)."""
    if isinstance(sentence, Compound):
        words = [*_clause(sentence.first), *sentence.conjunction.fr.split(), *_clause(sentence.second)]
        return f"{spelled(words)}."
    return spelled(_clause(sentence)) + (" ?" if sentence.mood == "question" else ".")


def spelled(words: list[str]) -> str:
    """The words as one text: elided, contracted, with a capital.

    >>> spelled("je ne ai pas vu la horloge de le musée".split())
    "Je n'ai pas vu l'horloge du musée"
    """
    row: list[str] = []
    for word in reversed(words):  # from the right, since what a word becomes depends on what the next one became
        following = row[0] if row else ""
        if (word, following) in CONTRACTED:
            row[0] = CONTRACTED[word, following]
        elif word in ELIDED and sounds_vowel(following):
            row[0] = ELIDED[word] + following
        else:
            row.insert(0, BEFORE_VOWEL.get(word, word) if sounds_vowel(following) else word)
    text = " ".join(row).replace(" ,", ",")
    return text[:1].upper() + text[1:]


def sounds_vowel(word: str) -> bool:
    """Whether `word` begins with a vowel to the ear, which decides on elision: a silent h does, an aspirated one not."""
    first = unicodedata.normalize("NFD", word[:1]).lower()[:1]
    return first in {*"aeiouœ"} or (first == "h" and word not in ASPIRATED)


def adjective_form(adjective: Adjective, agreement: Agreement) -> str:
    """The form that stands after a noun or a verb: un homme vieux, elles sont vieilles."""
    if agreement.gender == "f":
        return adjective.feminine + "s" * agreement.is_plural
    return french_plural(adjective.masculine) if agreement.is_plural else adjective.masculine


def conjugated(verb: Verb, tense: Tense, agreement: Agreement) -> tuple[str, ...]:
    """The finite verb, and the participle where the past needs one."""
    if tense == "present":
        return (verb.present[agreement.form],)
    if tense == "future":
        return (verb.future_stem + FUTURE_ENDINGS[agreement.form],)
    if not verb.takes_etre:
        return (AVOIR_PRESENT[agreement.form], verb.participle)
    ending = "e" * (agreement.gender == "f") + "s" * agreement.is_plural
    return (ETRE_PRESENT[agreement.form], verb.participle + ending)


def _etre(tense: Tense, agreement: Agreement) -> str:
    """A state of the past is told in the imperfect: la maison était grande."""
    if tense == "future":
        return ETRE_FUTURE_STEM + FUTURE_ENDINGS[agreement.form]
    return (ETRE_PRESENT if tense == "present" else ETRE_IMPERFECT)[agreement.form]


def _clause(clause: Clause) -> list[str]:
    finite, *rest = _predicate(clause)
    verb = [finite, *rest]
    if negation := NEGATIONS.get(clause.mood):
        verb = ["ne", finite, negation, *rest]
    opening: list[str] = []
    if clause.mood == "question":
        opening = [*([clause.asks.fr] if clause.asks else []), "est-ce", "que"]
    words = [*opening, *_subject(clause.subject), *verb, *_place(clause)]
    if clause.time is None:
        return words
    time = clause.time.fr.split()
    return [*time, ",", *words] if clause.time_comes_first else [*words, *time]


def _predicate(clause: Clause) -> list[str]:
    """The finite verb, then all that follows it but place and time."""
    agreement = agreement_of(clause.subject)
    if isinstance(clause.predicate, State):
        degree = [clause.predicate.degree.fr] if clause.predicate.degree else []
        return [_etre(clause.tense, agreement), *degree, adjective_form(clause.predicate.adjective, agreement)]
    event = clause.predicate
    if event.modal:
        return [event.modal.present[agreement.form], event.verb.infinitive, *_complements(event, clause)]
    return [*conjugated(event.verb, clause.tense, agreement), *_complements(event, clause)]


def _complements(event: Event, clause: Clause) -> list[str]:
    words: list[str] = []
    if event.object:
        words += _noun_phrase(event.object, is_negated=clause.mood in NEGATIONS)
    for target in (event.recipient, event.destination):
        if target:
            words += ["à", *_subject(target)]
    return words


def _place(clause: Clause) -> list[str]:
    if clause.place is None:
        return []
    preposition, where = clause.place
    return [*preposition.fr.split(), *_noun_phrase(where)]


def _subject(subject: Subject) -> list[str]:
    if isinstance(subject, Pronoun):
        return [subject.fr]
    if isinstance(subject, Name):
        return [subject.text]
    if isinstance(subject, Couple):
        return [subject.first.text, "et", subject.second.text]
    return _noun_phrase(subject)


def _noun_phrase(phrase: NounPhrase, *, is_negated: bool = False) -> list[str]:
    agreement = agreement_of(phrase)
    words = [*_determiner(phrase, is_negated=is_negated).split()]
    if phrase.before:
        words.append(_adjective_before(phrase.before, phrase, agreement))
    words.append(phrase.noun.fr_plural if phrase.is_plural else phrase.noun.fr)
    if phrase.after:
        words.append(adjective_form(phrase.after, agreement))
    if phrase.owner:
        words += ["de", *_subject(phrase.owner)]
    if phrase.relative:
        words += ["qui", *conjugated(phrase.relative.verb, phrase.relative.tense, agreement)]
    return words


def _determiner(phrase: NounPhrase, *, is_negated: bool) -> str:
    """Des turns into de before an adjective: de petits chats. So do un, des, du after a negation: pas de pain."""
    determiner = phrase.determiner
    if is_negated and determiner.becomes_de:
        return "de"
    if phrase.is_plural:
        return "de" if determiner is INDEFINITE and phrase.before else determiner.plural
    return determiner.masculine if phrase.noun.gender == "m" else determiner.feminine


def _adjective_before(adjective: Adjective, phrase: NounPhrase, agreement: Agreement) -> str:
    """Un beau chat, but un bel oiseau; de beaux oiseaux."""
    if phrase.noun.gender == "m" and not phrase.is_plural and sounds_vowel(phrase.noun.fr):
        return adjective.before_vowel
    return adjective_form(adjective, agreement)
