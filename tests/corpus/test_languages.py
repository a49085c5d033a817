"""Single sentences whose French and English a person can check."""

from __future__ import annotations

import pytest

from launcher.corpus import lexicon, verbs
from launcher.corpus.english import english
from launcher.corpus.french import conjugated, french, sounds_vowel
from launcher.corpus.trees import Agreement, Clause, Compound, Couple, Event, NounPhrase, Relative, State
from launcher.corpus.words import Phrase, english_s, french_plural

NOUNS = {noun.fr: noun for noun in lexicon.NOUNS}
ADJECTIVES = {adjective.masculine: adjective for adjective in lexicon.ADJECTIVES}
VERBS = {verb.infinitive: verb for verb in (*verbs.EVENTS, *verbs.GIVING, verbs.GOING)}
PRONOUNS = {pronoun.fr: pronoun for pronoun in lexicon.PRONOUNS}
NAMES = {name.text: name for name in lexicon.NAMES}
WANT, CAN, _ = verbs.MODALS
TWO = lexicon.QUANTITIES[0]
MY = lexicon.POSSESSIVES[0]


def a(noun, determiner=lexicon.INDEFINITE, **parts):
    return NounPhrase(determiner, NOUNS[noun], **parts)


def the(noun, **parts):
    return a(noun, lexicon.DEFINITE, **parts)


def plural(noun, determiner=lexicon.INDEFINITE, **parts):
    return a(noun, determiner, is_plural=True, **parts)


def does(subject, verb, tense="present", mood="statement", modal=None, **rest):
    parts = {name: rest.pop(name) for name in ("object", "recipient", "destination") if name in rest}
    return Clause(PRONOUNS.get(subject, subject), Event(VERBS[verb], modal, **parts), tense, mood, **rest)


def be(subject, adjective, tense="present", mood="statement", **rest):
    return Clause(PRONOUNS.get(subject, subject), State(ADJECTIVES[adjective]), tense, mood, **rest)


OLD, FINE, GOOD = ADJECTIVES["vieux"], ADJECTIVES["beau"], ADJECTIVES["excellent"]
SMALL, BLACK, HONEST = ADJECTIVES["petit"], ADJECTIVES["noir"], ADJECTIVES["honnête"]

SENTENCES = [
    # elision, h silent and aspirated, contraction
    (does("je", "acheter", object=the("orange")), "J'achète l'orange.", "I buy the orange."),
    (does(the("homme"), "voir", object=the("hibou")), "L'homme voit le hibou.", "The man sees the owl."),
    (does("elle", "aller", destination=the("marché")), "Elle va au marché.", "She goes to the market."),
    (
        does("nous", "aller", "past", destination=the("hôpital")),
        "Nous sommes allés à l'hôpital.",
        "We went to the hospital.",
    ),
    (
        does("tu", "dormir", place=(Phrase("près de", "near"), the("jardin"))),
        "Tu dors près du jardin.",
        "You sleep near the garden.",
    ),
    # agreement of adjectives, participles and their special forms
    (be(plural("fille", lexicon.DEFINITE), "heureux"), "Les filles sont heureuses.", "The girls are happy."),
    (be("elle", "fatigué", "past"), "Elle était fatiguée.", "She was tired."),
    (be("elles", "grand", "future"), "Elles seront grandes.", "They will be tall."),
    (does("elles", "partir", "past"), "Elles sont parties.", "They left."),
    (
        does(Couple(NAMES["Emma"], NAMES["Alice"]), "tomber", "past"),
        "Emma et Alice sont tombées.",
        "Emma and Alice fell.",
    ),
    (does(Couple(NAMES["Emma"], NAMES["Paul"]), "tomber", "past"), "Emma et Paul sont tombés.", "Emma and Paul fell."),
    (does("il", "voir", object=a("oiseau", before=FINE)), "Il voit un bel oiseau.", "He sees a beautiful bird."),
    (does("il", "voir", object=the("ami", before=OLD)), "Il voit le vieil ami.", "He sees the old friend."),
    (
        does("il", "aider", object=plural("ami", TWO, before=OLD, after=HONEST)),
        "Il aide deux vieux amis honnêtes.",
        "He helps two old honest friends.",
    ),
    (
        does("je", "laver", object=plural("cheval", before=SMALL)),
        "Je lave de petits chevaux.",
        "I wash some small horses.",
    ),
    (
        does("vous", "lire", object=plural("roman", before=GOOD)),
        "Vous lisez d'excellents romans.",
        "You read some excellent novels.",
    ),
    (
        does("je", "manger", object=a("soupe", MY, before=GOOD)),
        "Je mange mon excellente soupe.",
        "I eat my excellent soup.",
    ),
    (does("je", "chercher", object=a("hache", MY)), "Je cherche ma hache.", "I look for my axe."),
    (does("je", "dessiner", object=a("âne", lexicon.DEMONSTRATIVE)), "Je dessine cet âne.", "I draw this donkey."),
    (does("tu", "manger", object=a("haricot", lexicon.DEMONSTRATIVE)), "Tu manges ce haricot.", "You eat this bean."),
    # a and an
    (does("il", "voir", object=a("homme", after=HONEST)), "Il voit un homme honnête.", "He sees an honest man."),
    (does("il", "porter", object=a("uniforme")), "Il porte un uniforme.", "He wears a uniform."),
    # negation turns "a" and "some" into "de"; English needs "do" and "any"
    (does("je", "manger", mood="not", object=a("pomme")), "Je ne mange pas de pomme.", "I do not eat an apple."),
    (
        does("elle", "manger", mood="not", object=plural("pomme")),
        "Elle ne mange pas de pommes.",
        "She does not eat any apples.",
    ),
    (
        does("ils", "boire", "past", "not", object=a("eau", lexicon.PARTITIVE)),
        "Ils n'ont pas bu d'eau.",
        "They did not drink any water.",
    ),
    (does("ils", "boire", object=a("eau", lexicon.PARTITIVE)), "Ils boivent de l'eau.", "They drink some water."),
    (does("il", "boire", object=a("café", lexicon.PARTITIVE)), "Il boit du café.", "He drinks some coffee."),
    (
        does("il", "manger", "future", "not", object=the("pain")),
        "Il ne mangera pas le pain.",
        "He will not eat the bread.",
    ),
    (does("il", "chanter", mood="never"), "Il ne chante jamais.", "He never sings."),
    (does("il", "chanter", "future", "never"), "Il ne chantera jamais.", "He will never sing."),
    (be(the("porte"), "propre", "past", "not"), "La porte n'était pas propre.", "The door was not clean."),
    (be("je", "malade", mood="never"), "Je ne suis jamais malade.", "I am never sick."),
    # modals
    (does("elle", "danser", modal=WANT), "Elle veut danser.", "She wants to dance."),
    (does("elle", "danser", mood="not", modal=WANT), "Elle ne veut pas danser.", "She does not want to dance."),
    (does("nous", "nager", mood="not", modal=CAN), "Nous ne pouvons pas nager.", "We cannot swim."),
    (does("tu", "nager", mood="question", modal=CAN), "Est-ce que tu peux nager ?", "Can you swim?"),
    # questions
    (does("il", "dormir", mood="question", asks=lexicon.WHERE), "Où est-ce qu'il dort ?", "Where does he sleep?"),
    (does("elles", "manger", "past", "question"), "Est-ce qu'elles ont mangé ?", "Did they eat?"),
    (be(the("porte"), "vert", mood="question"), "Est-ce que la porte est verte ?", "Is the door green?"),
    (
        does("tu", "vendre", mood="question", asks=lexicon.WHY, object=plural("clé")),
        "Pourquoi est-ce que tu vends des clés ?",
        "Why do you sell some keys?",
    ),
    # owners, relatives, recipients, times, compounds
    (
        does("il", "perdre", object=the("clé", owner=plural("voisin", lexicon.DEFINITE))),
        "Il perd la clé des voisins.",
        "He loses the neighbors' key.",
    ),
    (does("il", "perdre", object=the("clé", owner=NAMES["Alice"])), "Il perd la clé d'Alice.", "He loses Alice's key."),
    (
        does(the("chat", after=BLACK, relative=Relative(VERBS["partir"], "past")), "revenir", "past"),
        "Le chat noir qui est parti est revenu.",
        "The black cat that left returned.",
    ),
    (
        does(plural("reine", lexicon.DEFINITE, relative=Relative(VERBS["nager"], "present")), "rire"),
        "Les reines qui nagent rient.",
        "The queens who swim laugh.",
    ),
    (
        does("vous", "donner", "future", object=the("livre"), recipient=the("homme")),
        "Vous donnerez le livre à l'homme.",
        "You will give the book to the man.",
    ),
    (
        does("je", "arriver", "past", time=lexicon.TIMES["past"][4], time_comes_first=True),
        "L'année dernière, je suis arrivé.",
        "Last year, I arrived.",
    ),
    (
        Compound(does("je", "pleurer"), lexicon.CONJUNCTIONS[1], does("il", "rire")),
        "Je pleure, mais il rit.",
        "I cry, but he laughs.",
    ),
    (
        Compound(does("il", "rester"), lexicon.CONJUNCTIONS[2], does("elle", "travailler")),
        "Il reste parce qu'elle travaille.",
        "He stays because she works.",
    ),
]


@pytest.mark.parametrize(("tree", "fr", "en"), SENTENCES, ids=[fr for _, fr, _ in SENTENCES])
def test_one_tree_is_right_in_both_languages(tree, fr, en):
    """A tree becomes exactly this French and this English sentence."""
    assert (french(tree), english(tree)) == (fr, en)


# What every French verb has in common, whatever its group: the endings of a conjugation.
PRESENT_ENDINGS = (("e", "s", "x"), ("s", "x"), ("e", "t", "d", "a"), ("ons",), ("ez",), ("nt",))
FUTURE_ENDINGS = ("rai", "ras", "ra", "rons", "rez", "ront")


@pytest.mark.parametrize("infinitive", VERBS)
def test_conjugations_have_the_endings_of_their_persons(infinitive):
    """All six persons in present and future end as French demands; the past has the right auxiliary and agreement."""
    verb = VERBS[infinitive]
    persons = [Agreement(person, plural, "f") for plural in (False, True) for person in (1, 2, 3)]
    for agreement, endings, future in zip(persons, PRESENT_ENDINGS, FUTURE_ENDINGS, strict=True):
        assert conjugated(verb, "present", agreement)[0].endswith(endings)
        assert conjugated(verb, "future", agreement)[0].endswith(future)
    assert conjugated(verb, "past", persons[5]) == (
        ("sont", f"{verb.participle}es") if verb.takes_etre else ("ont", verb.participle)
    )
    assert len(set(verb.present)) >= 4


def test_plurals():
    """Regular endings in both languages."""
    assert [french_plural(word) for word in ("chat", "souris", "gâteau", "cheval", "beau", "heureux")] == [
        "chats", "souris", "gâteaux", "chevaux", "beaux", "heureux",
    ]  # fmt: skip
    assert [english_s(word) for word in ("cat", "fox", "factory", "key", "church", "go", "dress")] == [
        "cats", "foxes", "factories", "keys", "churches", "goes", "dresses",
    ]  # fmt: skip


def test_vowels_to_the_ear():
    """Accents and ligatures are vowels, a silent h is none, an aspirated one is a consonant."""
    assert all(sounds_vowel(word) for word in ("eau", "œuf", "église", "âne", "homme", "hôtel", "Alice", "Hugo"))
    assert not any(sounds_vowel(word) for word in ("chat", "héros", "hiboux", "hache", "yaourt", ""))


def test_the_lexicon_fits_its_kinds():
    """Every kind that a verb or an adjective speaks of has nouns, and no two nouns share a form in one language."""
    kinds = {kind for noun in lexicon.NOUNS for kind in noun.kinds}
    spoken_of = {kind for verb in VERBS.values() for kind in verb.subjects | verb.objects}
    spoken_of |= {kind for adjective in lexicon.ADJECTIVES for kind in adjective.kinds} - {"absolute"}
    assert spoken_of <= kinds
    assert len(NOUNS) == len({noun.en for noun in lexicon.NOUNS}) == len(lexicon.NOUNS)
