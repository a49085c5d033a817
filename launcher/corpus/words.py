"""What the sample corpus knows about a word, and how tables of words are read.

Only what a rule cannot give is written out in a table: "cheval horse" needs nothing more, since -al gives -aux,
"hibou/hiboux owl" states the French plural and "homme man/men" the English one.
"""

from __future__ import annotations

import re
from typing import Literal

from launcher.core.frozen import frozen

Gender = Literal["m", "f"]
ER_ENDINGS = ("e", "es", "e", "ons", "ez", "ent")


@frozen
class Noun:
    kinds: frozenset[str]  # what it can be eater, food, owner, ... of
    gender: Gender
    fr: str
    fr_plural: str
    en: str
    en_plural: str

    @property
    def is_mass(self) -> bool:
        """Taken by quantity: du pain, some bread; never counted."""
        return "mass" in self.kinds

    @property
    def can_be_owned(self) -> bool:
        """Whether "my" and "Paul's" leave its meaning as it is in both languages."""
        return "unowned" not in self.kinds


@frozen
class Adjective:
    kinds: frozenset[str]  # of the nouns that it suits
    stands_before: bool  # the noun, in French
    masculine: str
    feminine: str
    before_vowel: str  # masculine singular: un bel oiseau
    en: str

    @property
    def is_gradable(self) -> bool:
        """Whether "very" goes with it: not with excellent."""
        return "absolute" not in self.kinds


@frozen
class Verb:
    subjects: frozenset[str]
    objects: frozenset[str]  # empty: takes none
    takes_place: bool  # "dans le jardin" can follow without turning into a destination
    present: tuple[str, ...]  # six forms: je tu il nous vous ils
    future_stem: str
    infinitive: str
    participle: str
    takes_etre: bool  # in the past; its participle then agrees with the subject
    en: str
    en_past: str
    en_particle: str = ""  # "for" of "look for"


@frozen
class Determiner:
    masculine: str  # "" where it has no singular
    feminine: str
    plural: str  # "" where it has no plural
    en: str
    en_plural: str
    becomes_de: bool = False  # before the object of a negation: pas de pain, not any bread


@frozen
class Name:
    text: str  # the same in both languages
    gender: Gender


@frozen
class Pronoun:
    fr: str
    en: str
    person: int  # 1, 2, 3
    is_plural: bool
    gender: Gender


@frozen
class Phrase:
    """Words that never change."""

    fr: str
    en: str


@frozen
class Modal:
    """A verb that another one follows in the infinitive."""

    present: tuple[str, ...]  # six forms, as in Verb
    en: str  # "can", "must"; or "want", conjugated like any verb
    en_link: str  # "to" of "want to"


def french_plural(singular: str) -> str:
    """The regular plural of a noun or of a masculine adjective."""
    if singular.endswith(("s", "x", "z")):
        return singular
    if singular.endswith(("eau", "eu")):
        return f"{singular}x"
    return f"{singular[:-1]}ux" if singular.endswith("al") else f"{singular}s"


def english_s(word: str) -> str:
    """The regular plural of a noun, which is also the third person of a verb."""
    if word.endswith(("s", "x", "z", "ch", "sh", "o")):
        return f"{word}es"
    return f"{word[:-1]}ies" if re.search("[^aeiou]y$", word) else f"{word}s"


def nouns(kinds: str, table: str) -> tuple[Noun, ...]:
    """Lines "gender French[/plural] English[/plural]"; a `*` marks an aspirated h (see `aspirated`)."""
    lines = (line.replace("*", "").split() for line in table.strip().splitlines())
    return tuple(_noun(frozenset(kinds.split()), *line) for line in lines)


def _noun(kinds: frozenset[str], gender: str, french: str, english: str) -> Noun:
    fr, _, fr_plural = french.partition("/")
    en, _, en_plural = english.partition("/")
    return Noun(
        kinds, "m" if gender == "m" else "f", fr, fr_plural or french_plural(fr), en, en_plural or english_s(en)
    )


def aspirated(table: str) -> frozenset[str]:
    """Both forms of every noun that the table marks with `*`."""
    marked = re.findall(r"\*(\w+)(?:/(\w+))?", table)
    return frozenset(form for singular, plural in marked for form in (singular, plural or french_plural(singular)))


def adjectives(table: str, *, stands_before: bool) -> tuple[Adjective, ...]:
    """Lines "masculine/feminine[/before a vowel] English kinds"."""
    found = []
    for forms, en, *kinds in (line.split() for line in table.strip().splitlines()):
        masculine, feminine, *before_vowel = forms.split("/")
        found.append(
            Adjective(frozenset(kinds), stands_before, masculine, feminine, (before_vowel or [masculine])[0], en)
        )
    return tuple(found)


def verbs(
    subjects: str, objects: str, table: str, *, takes_place: bool = True, takes_etre: bool = False
) -> tuple[Verb, ...]:
    """Lines "infinitive | English past [particle]", and for irregular verbs "| present x 6 | future-stem participle"."""
    found = []
    for line in table.strip().splitlines():
        (infinitive,), english, *irregular = (column.split() for column in line.split("|"))
        stem = infinitive.removesuffix("er")
        present, (future_stem, participle) = irregular or (
            [stem + ending for ending in ER_ENDINGS],
            (infinitive, f"{stem}é"),
        )
        found.append(
            Verb(
                frozenset(subjects.split()),
                frozenset(objects.split()),
                takes_place,
                tuple(present),
                future_stem,
                infinitive,
                participle,
                takes_etre,
                *english,
            )
        )
    return tuple(found)
