"""Say a tree in English: do-support, "any" for "some", possessives, and "an" before a vowel."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.corpus.lexicon import INDEFINITE, PARTITIVE
from launcher.corpus.trees import (
    Agreement,
    Clause,
    Compound,
    Couple,
    Event,
    NounPhrase,
    Owner,
    Relative,
    Sentence,
    State,
    Subject,
    Tense,
    agreement_of,
)
from launcher.corpus.words import Name, Pronoun, english_s

CONSONANT_SOUND = ("uni", "use")  # a university, a useful tool
SILENT_H = ("honest", "hour")  # an honest man


@frozen
class VerbGroup:
    """One verb in the three ways a sentence needs it: "(does) eat", "eats"; "(will) eat", "will eat"; "(is)", "is"."""

    operator: str  # changes places with the subject in a question, and takes "not"
    bare: tuple[str, ...]  # what follows the operator
    plain: tuple[str, ...]  # the statement without "not"; the same two words unless the operator is "do"

    def never(self) -> tuple[str, ...]:
        """Never eats; will never eat."""
        if self.plain[0] == self.operator:
            return (self.operator, "never", *self.bare)
        return ("never", *self.plain)


def english(sentence: Sentence) -> str:
    """The English sentence of a tree, with its capital and its stop."""
    if isinstance(sentence, Compound):
        words = [*_clause(sentence.first), *sentence.conjunction.en.split(), *_clause(sentence.second)]
        return f"{spelled(words)}."
    return spelled(_clause(sentence)) + ("?" if sentence.mood == "question" else ".")


def spelled(words: list[str]) -> str:
    """The words as one text, with a capital.

    >>> spelled("she can not see a owl or a university".split())
    'She cannot see an owl or a university'
    """
    row = [
        _article(following) if word == "a" else word for word, following in zip(words, [*words[1:], ""], strict=True)
    ]
    text = " ".join(row).replace(" ,", ",").replace("can not", "cannot")
    return text[:1].upper() + text[1:]


def third_person(base: str, agreement: Agreement) -> str:
    """The present of a full verb."""
    return english_s(base) if agreement.person == 3 and not agreement.is_plural else base


def _article(following: str) -> str:
    vowel = following.lower().startswith((*"aeiou", *SILENT_H)) and not following.startswith(CONSONANT_SOUND)
    return "an" if vowel else "a"


def _clause(clause: Clause) -> list[str]:
    group = _verb_group(clause)
    subject = _subject(clause.subject)
    if clause.mood == "question":
        asks = [clause.asks.en] if clause.asks else []
        words = [*asks, group.operator, *subject, *group.bare]
    elif clause.mood == "not":
        words = [*subject, group.operator, "not", *group.bare]
    else:
        words = [*subject, *(group.never() if clause.mood == "never" else group.plain)]
    words += [*_complements(clause), *_place(clause)]
    if clause.time is None:
        return words
    time = clause.time.en.split()
    return [*time, ",", *words] if clause.time_comes_first else [*words, *time]


def _verb_group(clause: Clause) -> VerbGroup:
    agreement = agreement_of(clause.subject)
    if isinstance(clause.predicate, State):
        return _be(clause.tense, agreement)
    event = clause.predicate
    particle = (event.verb.en_particle,) if event.verb.en_particle else ()
    if event.modal and not event.modal.en_link:
        return _after_operator(event.modal.en, (event.verb.en, *particle))
    if event.modal:
        tail = (event.modal.en_link, event.verb.en, *particle)
        return _with_do("do", event.modal.en, third_person(event.modal.en, agreement), tail, agreement)
    if clause.tense == "future":
        return _after_operator("will", (event.verb.en, *particle))
    if clause.tense == "past":
        return _with_do("did", event.verb.en, event.verb.en_past, particle, agreement)
    return _with_do("do", event.verb.en, third_person(event.verb.en, agreement), particle, agreement)


def _be(tense: Tense, agreement: Agreement) -> VerbGroup:
    if tense == "future":
        return _after_operator("will", ("be",))
    many = agreement.is_plural or agreement.person == 2
    if tense == "past":
        return _after_operator("were" if many else "was", ())
    return _after_operator("are" if many else "am" if agreement.person == 1 else "is", ())


def _after_operator(operator: str, bare: tuple[str, ...]) -> VerbGroup:
    return VerbGroup(operator, bare, (operator, *bare))


def _with_do(do: str, base: str, finite: str, tail: tuple[str, ...], agreement: Agreement) -> VerbGroup:
    operator = do if do == "did" else third_person(do, agreement)
    return VerbGroup(operator, (base, *tail), (finite, *tail))


def _complements(clause: Clause) -> list[str]:
    if isinstance(clause.predicate, State):
        degree = [clause.predicate.degree.en] if clause.predicate.degree else []
        return [*degree, clause.predicate.adjective.en]
    event: Event = clause.predicate
    words = _noun_phrase(event.object, weakens_some=clause.weakens_some) if event.object else []
    for target in (event.recipient, event.destination):
        if target:
            words += ["to", *_subject(target)]
    return words


def _place(clause: Clause) -> list[str]:
    if clause.place is None:
        return []
    preposition, where = clause.place
    return [*preposition.en.split(), *_noun_phrase(where)]


def _subject(subject: Subject) -> list[str]:
    if isinstance(subject, Pronoun):
        return [subject.en]
    if isinstance(subject, Name):
        return [subject.text]
    if isinstance(subject, Couple):
        return [subject.first.text, "and", subject.second.text]
    return _noun_phrase(subject)


def _noun_phrase(phrase: NounPhrase, *, weakens_some: bool = False) -> list[str]:
    words = _possessive(phrase.owner) if phrase.owner else [_determiner(phrase, weakens_some=weakens_some)]
    words += [adjective.en for adjective in (phrase.before, phrase.after) if adjective]
    words.append(phrase.noun.en_plural if phrase.is_plural else phrase.noun.en)
    if phrase.relative:
        words += _relative(phrase, phrase.relative)
    return words


def _relative(phrase: NounPhrase, relative: Relative) -> list[str]:
    pronoun = "who" if "person" in phrase.noun.kinds else "that"
    verb = relative.verb
    if relative.tense == "future":
        return [pronoun, "will", verb.en]
    return [pronoun, verb.en_past if relative.tense == "past" else third_person(verb.en, agreement_of(phrase))]


def _determiner(phrase: NounPhrase, *, weakens_some: bool) -> str:
    determiner = phrase.determiner
    word = determiner.en_plural if phrase.is_plural else determiner.en
    return "any" if weakens_some and word == "some" and determiner in {INDEFINITE, PARTITIVE} else word


def _possessive(owner: Owner) -> list[str]:
    *words, last = _subject(owner)
    is_regular_plural = isinstance(owner, NounPhrase) and owner.is_plural and last.endswith("s")
    return [*words, f"{last}'" if is_regular_plural else f"{last}'s"]
