"""From two text files in any languages to a translation and its BLEU score, through the real commands."""

import gzip
import json
import random
import re
import sys
from itertools import product

import pytest

from launcher.core.resources import cache_dir

from .conftest import environment, run_to_end, tlaunch

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]

# Subjects, verbs, objects and adverbs, in the same order in each language.
WORDS = {
    "en": (
        "the cat,the dog,a child,my friend,our teacher,the old man,the girl,a bird", "sees,hears,finds,buys,draws,brings",
        "the house,a tree,the red book,my garden,a small boat,the moon,the bread,a map", ",today,often,again",
    ),
    "de": (
        "die Katze,der Hund,ein Kind,mein Freund,unsere Lehrerin,der alte Mann,das Mädchen,ein Vogel",
        "sieht,hört,findet,kauft,zeichnet,bringt",
        "das Haus,einen Baum,das rote Buch,meinen Garten,ein kleines Boot,den Mond,das Brot,eine Karte", ",heute,oft,wieder",
    ),
    "es": (
        "el gato,el perro,un niño,mi amigo,nuestra maestra,el viejo,la niña,un pájaro", "ve,oye,encuentra,compra,dibuja,trae",
        "la casa,un árbol,el libro rojo,mi jardín,un barco pequeño,la luna,el pan,un mapa", ",hoy,a menudo,otra vez",
    ),
    "zh": (
        "猫,狗,一个孩子,我的朋友,我们的老师,老人,女孩,一只鸟", "看见,听见,找到,买,画,带来",
        "房子,一棵树,红色的书,我的花园,一条小船,月亮,面包,一张地图", ",今天,常常,又",
    ),
    "fi": (
        "kissa,koira,lapsi,ystäväni,opettajamme,vanha mies,tyttö,lintu", "näkee,kuulee,löytää,ostaa,piirtää,tuo",
        "talon,puun,punaisen kirjan,puutarhani,pienen veneen,kuun,leivän,kartan", ",tänään,usein,taas",
    ),
}  # fmt: skip
TRAINED, TESTED = 600, 80
SETTINGS = (
    "model.vocabulary_size=400", "model.d_model=64", "model.heads=4", "model.feed_forward_dim=128", "model.dropout=0.0",
    "model.encoder_layers=1", "model.decoder_layers=1", "train.steps=240", "train.warmup_steps=40", "train.learning_rate=0.005",
    "train.translations=0", "train.bleu_sentences=20",
)  # fmt: skip


def sentences(language):
    subjects, verbs, objects, adverbs = (words.split(",") for words in WORDS[language])
    if language == "zh":
        made = [f"{s}{a}{v}{o}。" for s, v, o, a in product(subjects, verbs, objects, adverbs)]
    else:
        made = [" ".join(filter(None, words)) + "." for words in product(subjects, verbs, objects, adverbs)]
    random.Random(1).shuffle(made)  # the same order for each language
    return made[: TRAINED + TESTED]


def lines(texts):
    return "".join(f"{text}\n" for text in texts)


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """Training and test files of all languages; one is packed."""
    for language in WORDS:
        made = sentences(language)
        (tmp_path / f"train.{language}").write_text(lines(made[:TRAINED]), encoding="utf-8")
        (tmp_path / f"test.{language}").write_text(lines(made[TRAINED:]), encoding="utf-8")
    packed = gzip.compress((tmp_path / "train.de").read_bytes())
    (tmp_path / "train.de.gz").write_bytes(packed)
    return tmp_path


def in_columns(folder, source, target):
    both = zip(*((folder / f"train.{language}").read_text().splitlines() for language in (source, target)), strict=True)
    (folder / "pairs").mkdir()
    (folder / "pairs" / f"{source}_{target}.tsv").write_text(lines(map("\t".join, both)))
    return ("--data", folder / "pairs" / f"{source}_{target}.tsv")


def prepared(folder, source, target):
    files = ("--source", folder / f"train.{source}", "--target", folder / f"train.{target}")
    assert tlaunch("data", "preprocess", *files, "--output", folder / "pairs").returncode == 0
    return ("--data", folder / "pairs")


# How the pairs are given, and the options of the run.
WAYS = {
    ("de", "en"): lambda folder: ("--source", folder / "train.de.gz", "--target", folder / "train.en", "--devices", 2),
    ("en", "es"): lambda folder: (*in_columns(folder, "en", "es"), "--devices", 1),
    ("en", "zh"): lambda folder: (*prepared(folder, "en", "zh"), "--devices", 2, "--pp", 2, "--micro-batches", 2),
    ("fi", "de"): lambda folder: (*prepared(folder, "de", "fi"), "--set", "data.source_language=fi", "--devices", 1),
}


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_own_text_is_learned_and_scored_in_any_language(folder, source, target):
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    before = sorted(folder.rglob("*"))
    options = WAYS[source, target](folder)
    done = tlaunch("run", *options, *words, cwd=folder, env=environment({}))
    assert done.returncode == 0, done.stderr[-4000:]
    assert f", {source} to {target}, " in done.stdout
    assert re.search(r"BLEU \d+\.\d+ of 20 greedy translations", done.stdout)
    written = [path for path in sorted(folder.rglob("*")) if path not in before and "runs" not in path.parts]
    assert {path.name for path in written} <= {"pairs", f"{source}_{target}.tsv", f"{source}_{target}.txt", "de_fi.txt"}
    assert list(cache_dir().glob("tokens-*"))

    test = ("--source", folder / f"test.{source}", "--reference", folder / f"test.{target}")
    scored = tlaunch("evaluate", *test, "--json", "--output", "translated", cwd=folder, env=environment({}))
    assert scored.returncode == 0, scored.stderr
    found = json.loads(scored.stdout)["bleu"]
    assert found["score"] > 80
    argv = (
        sys.executable,
        "-m",
        "sacrebleu",
        folder / f"test.{target}",
        "-i",
        "translated",
        "-l",
        f"{source}-{target}",
    )
    theirs = run_to_end((*argv, "-b", "-w", "9"), cwd=folder)
    assert found["score"] == pytest.approx(float(theirs.stdout), abs=1e-9)
    assert ("tok:zh" in found["signature"]) == (target == "zh")


def test_two_files_are_recorded_repeated_and_resumed(folder):
    files = ("--source", "train.de", "--target", "train.en")
    steps = ("train.steps=6", "checkpoint.every_steps=3", "model.vocabulary_size=400", "train.translations=0")
    words = [word for setting in steps for word in ("--set", setting)]
    assert tlaunch("run", "--devices", 1, *files, *words, cwd=folder, env=environment({})).returncode == 0
    first = (folder / "runs" / "latest").resolve()
    again = tlaunch("rerun", "--dry-run", cwd=folder)
    assert "--source=train.de --target=train.en" in again.stdout
    resumed = tlaunch("rerun", "--set", "train.steps=8", "--resume", "auto", cwd=folder, env=environment({}))
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    assert f"resumed: {first / 'checkpoints' / 'step-6'}, after step 6" in resumed.stdout
    turned = ("--source", "train.en", "--target", "train.de", *words, "--resume", "auto")
    begun = tlaunch("run", "--devices", 1, *turned, cwd=folder, env=environment({}))
    assert "--resume auto found no checkpoint" in begun.stderr
