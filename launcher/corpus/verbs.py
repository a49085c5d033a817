"""The verbs of the sample corpus: who does what to what, how it is conjugated, and what English calls it."""

from __future__ import annotations

from launcher.corpus.words import Modal, verbs

EVENTS = (
    *verbs(
        "person animal",
        "",
        """
    dormir     | sleep slept   | dors dors dort dormons dormez dorment | dormir dormi
    courir     | run ran       | cours cours court courons courez courent | courr couru
    marcher    | walk walked
    nager      | swim swam     | nage nages nage nageons nagez nagent | nager nagé
    jouer      | play played
    """,
    ),
    *verbs(
        "person",
        "",
        """
    chanter    | sing sang
    danser     | dance danced
    travailler | work worked
    pleurer    | cry cried
    rire       | laugh laughed | ris ris rit rions riez rient | rir ri
    """,
    ),
    *verbs(
        "person animal",
        "",
        """
    arriver    | arrive arrived
    tomber     | fall fell
    rester     | stay stayed
    partir     | leave left     | pars pars part partons partez partent | partir parti
    revenir    | return returned | reviens reviens revient revenons revenez reviennent | reviendr revenu
    """,
        takes_place=False,
        takes_etre=True,
    ),
    *verbs(
        "person animal",
        "food",
        """
    manger     | eat ate       | mange manges mange mangeons mangez mangent | manger mangé
    voler      | steal stole
    """,
    ),
    *verbs(
        "person",
        "food",
        """
    préparer   | prepare prepared
    couper     | cut cut
    """,
    ),
    *verbs("person animal", "drink", "boire | drink drank | bois bois boit buvons buvez boivent | boir bu"),
    *verbs(
        "person",
        "text",
        """
    lire       | read read     | lis lis lit lisons lisez lisent | lir lu
    écrire     | write wrote   | écris écris écrit écrivons écrivez écrivent | écrir écrit
    """,
    ),
    *verbs(
        "person",
        "thing food text",
        """
    acheter    | buy bought    | achète achètes achète achetons achetez achètent | achèter acheté
    choisir    | choose chose  | choisis choisis choisit choisissons choisissez choisissent | choisir choisi
    prendre    | take took     | prends prends prend prenons prenez prennent | prendr pris
    oublier    | forget forgot
    chercher   | look looked for
    trouver    | find found
    """,
    ),
    *verbs(
        "person",
        "thing",
        """
    cacher     | hide hid
    casser     | break broke
    perdre     | lose lost     | perds perds perd perdons perdez perdent | perdr perdu
    """,
    ),
    *verbs("person", "machine", "réparer | repair repaired"),
    *verbs("person", "clothes", "porter | wear wore"),
    *verbs(
        "person",
        "opening",
        """
    ouvrir     | open opened   | ouvre ouvres ouvre ouvrons ouvrez ouvrent | ouvrir ouvert
    fermer     | close closed
    """,
    ),
    *verbs("person", "clothes animal machine", "laver | wash washed"),
    *verbs("person", "animal thing", "dessiner | draw drew"),
    *verbs(
        "person animal",
        "person animal",
        """
    voir       | see saw       | vois vois voit voyons voyez voient | verr vu
    regarder   | watch watched
    attendre   | wait waited for | attends attends attend attendons attendez attendent | attendr attendu
    """,
    ),
    *verbs(
        "person",
        "person",
        """
    aider      | help helped
    appeler    | call called   | appelle appelles appelle appelons appelez appellent | appeller appelé
    inviter    | invite invited
    écouter    | listen listened to
    """,
    ),
    *verbs(
        "person",
        "place",
        """
    visiter    | visit visited
    quitter    | leave left
    """,
        takes_place=False,
    ),
)
GIVING = verbs(
    "person",
    "thing food text",
    """
    donner     | give gave
    montrer    | show showed
    apporter   | bring brought
    vendre     | sell sold     | vends vends vend vendons vendez vendent | vendr vendu
    envoyer    | send sent     | envoie envoies envoie envoyons envoyez envoient | enverr envoyé
    offrir     | offer offered | offre offres offre offrons offrez offrent | offrir offert
    """,
    takes_place=False,
)
GOING = verbs(
    "person animal",
    "place",
    "aller     | go went       | vais vas va allons allez vont | ir allé",
    takes_place=False,
    takes_etre=True,
)[0]

ETRE_PRESENT = ("suis", "es", "est", "sommes", "êtes", "sont")
ETRE_IMPERFECT = ("étais", "étais", "était", "étions", "étiez", "étaient")
ETRE_FUTURE_STEM = "ser"
AVOIR_PRESENT = ("ai", "as", "a", "avons", "avez", "ont")
FUTURE_ENDINGS = ("ai", "as", "a", "ons", "ez", "ont")

MODALS = (
    Modal(("veux", "veux", "veut", "voulons", "voulez", "veulent"), "want", "to"),
    Modal(("peux", "peux", "peut", "pouvons", "pouvez", "peuvent"), "can", ""),
    Modal(("dois", "dois", "doit", "devons", "devez", "doivent"), "must", ""),
)
