"""The words of the sample corpus but its verbs, for a person who reads both languages to check at a glance.

French is written before elision and contraction ("de le", "la année"), which `launcher.corpus.french` applies. Kinds say what goes together: only food is eaten, only openings are opened. `*` marks an aspirated h, before which
French does not elide (le hibou, but l'homme).
"""

from __future__ import annotations

from launcher.corpus.words import Determiner, Name, Phrase, Pronoun, adjectives, aspirated, nouns

NOUN_TABLES = {
    # "ma fille" is a daughter, "ma femme" a wife, "une vieille fille" a spinster: these go unowned, or young.
    "person young unowned": """
    m garçon              boy
    f fille               girl
    """,
    "person young": """
    m enfant              child/children
    """,
    "person grown unowned": """
    m homme               man/men
    f femme               woman/women
    """,
    "person kin": """
    m ami                 friend
    m oncle               uncle
    f tante               aunt
    m frère               brother
    f sœur                sister
    f grand-mère/grands-mères  grandmother
    """,
    "person grown": """
    m médecin             doctor
    m professeur          teacher
    m voisin              neighbor
    m étudiant            student
    f infirmière          nurse
    f reine               queen
    m roi                 king
    m *héros              hero
    f actrice             actress
    m fermier             farmer
    m boulanger           baker
    m avocat              lawyer
    m soldat              soldier
    f chanteuse           singer
    m ingénieur           engineer
    """,
    "animal": """
    m chat                cat
    m chien               dog
    m oiseau              bird
    m cheval              horse
    f souris              mouse/mice
    f vache               cow
    m renard              fox
    m *hibou/hiboux       owl
    m lapin               rabbit
    m éléphant            elephant
    m âne                 donkey
    f tortue              turtle
    m mouton              sheep/sheep
    f poule               hen
    m loup                wolf/wolves
    m ours                bear
    m singe               monkey
    f araignée            spider
    """,
    "food piece": """
    f pomme               apple
    m gâteau              cake
    f orange              orange
    m œuf                 egg
    f fraise              strawberry
    m *haricot            bean
    f poire               pear
    m sandwich            sandwich
    f tomate              tomato
    m biscuit             cookie
    f carotte             carrot
    m oignon              onion
    """,
    "food mass": """
    m pain                bread
    m fromage             cheese
    f soupe               soup
    f viande              meat
    m riz                 rice
    """,
    "drink mass": """
    f eau                 water
    m lait                milk
    m café                coffee
    m thé                 tea
    m vin                 wine
    """,
    "text": """
    m livre               book
    f lettre              letter
    f histoire            story
    m article             article
    m roman               novel
    m poème               poem
    """,
    "thing machine": """
    f voiture             car
    m vélo                bike
    f lampe               lamp
    f horloge             clock
    m ordinateur          computer
    m téléphone           phone
    m bateau              boat
    m avion               plane
    """,
    "thing opening": """
    f porte               door
    f fenêtre             window
    f boîte               box
    m sac                 bag
    m parapluie           umbrella
    """,
    "thing clothes": """
    m chapeau             hat
    m manteau             coat
    f chemise             shirt
    f robe                dress
    m uniforme            uniform
    """,
    "thing": """
    m couteau             knife/knives
    f assiette            plate
    f fleur               flower
    f pierre              stone
    m ballon              ball
    m jouet               toy
    m outil               tool
    m tableau             painting
    f chaise              chair
    f table               table
    f *hache              axe
    f clé                 key
    """,
    "place": """
    m jardin              garden
    m village             village
    m marché              market
    f gare                station
    m musée               museum
    f usine               factory
    f église              church
    f bibliothèque        library
    m restaurant          restaurant
    m hôtel               hotel
    m parc                park
    f école               school
    m hôpital             hospital
    f université          university
    m château             castle
    """,
}
NOUNS = tuple(noun for kinds, table in NOUN_TABLES.items() for noun in nouns(kinds, table))
ASPIRATED = aspirated("".join(NOUN_TABLES.values()))
NAMES = (
    Name("Marie", "f"),
    Name("Paul", "m"),
    Name("Alice", "f"),
    Name("Thomas", "m"),
    Name("Emma", "f"),
    Name("Antoine", "m"),
    Name("Julie", "f"),
    Name("Hugo", "m"),
)

ADJECTIVES_BEFORE = adjectives(
    """
    petit/petite             small        young animal piece thing place
    grand/grande             big          thing place
    beau/belle/bel           beautiful    animal thing place text
    vieux/vieille/vieil      old          grown kin animal thing place text
    nouveau/nouvelle/nouvel  new          grown thing place text
    jeune/jeune              young        person animal
    bon/bonne                good         food drink text
    mauvais/mauvaise         bad          food drink text
    joli/jolie               pretty       animal thing place
    gros/grosse              fat          animal
    excellent/excellente     excellent    food drink text absolute
    """,
    stands_before=True,
)
ADJECTIVES_AFTER = adjectives(
    """
    rouge/rouge              red          thing
    vert/verte               green        thing
    bleu/bleue               blue         thing
    jaune/jaune              yellow       thing
    blanc/blanche            white        thing animal
    noir/noire               black        thing animal
    heureux/heureuse         happy        person
    fatigué/fatiguée         tired        person animal
    malade/malade            sick         person animal
    intelligent/intelligente smart        person animal
    honnête/honnête          honest       person
    italien/italienne        Italian      person food absolute
    célèbre/célèbre          famous       person place text
    étrange/étrange          strange      person animal thing place text
    rapide/rapide            fast         animal machine
    propre/propre            clean        thing
    sale/sale                dirty        thing
    cher/chère               expensive    thing food
    utile/utile              useful       thing text
    froid/froide             cold         food drink
    chaud/chaude             hot          food drink
    tranquille/tranquille    quiet        place
    ennuyeux/ennuyeuse       boring       text
    intéressant/intéressante interesting  text place
    """,
    stands_before=False,
)
# "un grand homme" is a great man, "une tante grande" is odd: said of somebody only
ADJECTIVES_ALONE = adjectives("grand/grande tall person", stands_before=False)
ADJECTIVES = ADJECTIVES_BEFORE + ADJECTIVES_AFTER + ADJECTIVES_ALONE

DEFINITE = Determiner("le", "la", "les", "the", "the")
INDEFINITE = Determiner("un", "une", "des", "a", "some", becomes_de=True)
PARTITIVE = Determiner("de le", "de la", "", "some", "", becomes_de=True)
DEMONSTRATIVE = Determiner("ce", "cette", "ces", "this", "these")
POSSESSIVES = (
    Determiner("mon", "ma", "mes", "my", "my"),
    Determiner("notre", "notre", "nos", "our", "our"),
    Determiner("votre", "votre", "vos", "your", "your"),
    Determiner("leur", "leur", "leurs", "their", "their"),
)
QUANTITIES = (
    Determiner("", "", "deux", "", "two"),
    Determiner("", "", "trois", "", "three"),
    Determiner("", "", "plusieurs", "", "several"),
)

PRONOUNS = (
    Pronoun("je", "I", 1, is_plural=False, gender="m"),
    Pronoun("tu", "you", 2, is_plural=False, gender="m"),
    Pronoun("il", "he", 3, is_plural=False, gender="m"),
    Pronoun("elle", "she", 3, is_plural=False, gender="f"),
    Pronoun("nous", "we", 1, is_plural=True, gender="m"),
    Pronoun("vous", "you", 2, is_plural=True, gender="m"),
    Pronoun("ils", "they", 3, is_plural=True, gender="m"),
    Pronoun("elles", "they", 3, is_plural=True, gender="f"),
)

DEGREES = (Phrase("très", "very"), Phrase("trop", "too"), Phrase("vraiment", "really"))
PREPOSITIONS = (
    Phrase("dans", "in"),
    Phrase("devant", "in front of"),
    Phrase("derrière", "behind"),
    Phrase("près de", "near"),
)
CONJUNCTIONS = (Phrase("et", "and"), Phrase(", mais", ", but"), Phrase("parce que", "because"))
WHERE = Phrase("où", "where")
WHEN = Phrase("quand", "when")
WHY = Phrase("pourquoi", "why")
TIMES = {
    "present": (
        Phrase("chaque matin", "every morning"),
        Phrase("chaque jour", "every day"),
        Phrase("le lundi", "on Mondays"),
        Phrase("le soir", "in the evening"),
        Phrase("en été", "in summer"),
    ),
    "past": (
        Phrase("hier", "yesterday"),
        Phrase("hier soir", "last night"),
        Phrase("ce matin", "this morning"),
        Phrase("la semaine dernière", "last week"),
        Phrase("la année dernière", "last year"),
    ),
    "future": (
        Phrase("demain", "tomorrow"),
        Phrase("demain matin", "tomorrow morning"),
        Phrase("ce soir", "tonight"),
        Phrase("la semaine prochaine", "next week"),
        Phrase("la année prochaine", "next year"),
    ),
}
