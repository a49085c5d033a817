"""`tlaunch translate` and `evaluate`: real processes of the trainer, with a small model of random weights."""

import dataclasses
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from array import array
from math import prod
from pathlib import Path

import pytest

from launcher.checkpoint.index import KINDS, NamedBox
from launcher.cli.text.saved_text import translates
from launcher.core.records import Layout
from launcher.core.run_dir import RunDir
from launcher.mesh.boxes import Box, full_box
from launcher.trainer.decode.stdin_lines import MAX_LINE_BYTES
from tests import checkpoints

SENTENCES = ["le chat noir dort", "un homme court", "", "la femme à l'arrière-plan", "  ", "dort un chat noir"]
SETTINGS = (
    "model.vocabulary_size=300",
    "model.d_model=16",
    "data.source_length=24",
    "data.target_length=12",
    "data.target_language=en",
)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(name="trained", scope="module")
def _trained(tmp_path_factory):
    """The directory of a model, its translations of SENTENCES, and a checkpoint of two ranks that has the same weights."""
    import torch

    from launcher.recipes.load import load_settings
    from launcher.recipes.transformer.transformer_settings import TransformerSettings
    from launcher.trainer.data.tokenizer import Tokenizer, train_tokenizer
    from launcher.trainer.decode.beam import Search
    from launcher.trainer.decode.translator import Translator
    from launcher.trainer.model.initial import initial_weight
    from launcher.trainer.saved import load_model, save_model
    from launcher.trainer.session import model_shapes

    directory = tmp_path_factory.mktemp("trained")
    settings = load_settings(TransformerSettings, None, SETTINGS)
    shapes = model_shapes(settings)
    weights = {name: initial_weight(name, torch.Size(shape), 2) for name, shape in shapes.items()}
    weights["head.weight"] *= 60
    tokenizer = train_tokenizer(SENTENCES, 300)
    save_model(directory / "model", "transformer", weights, settings, tokenizer, {})
    model, _, read_tokenizer = load_model(directory / "model")
    found = Translator(model, Tokenizer(read_tokenizer.serialized), settings.data).translate(SENTENCES, Search())
    assert [each.text for each, source in zip(found, SENTENCES, strict=True) if not source.strip()] == ["", ""]
    texts = [each.text for each in found]
    values = {
        name: [array("f", weights[name].flatten().tolist()), *(array("f", [0.0] * prod(shape)) for _ in KINDS[1:])]
        for name, shape in shapes.items()
    }
    halves = [
        [NamedBox(name, box) for name, shape in shapes.items() if (box := _half(shape, number)) is not None]
        for number in range(2)
    ]
    files = {f"rank{number}.safetensors": boxes for number, boxes in enumerate(halves)}
    checkpoints.write(
        directory / "step-7", shapes, values, files, step=7, layout=Layout(dp=1, mp=2, pp=1),
        settings=dataclasses.asdict(settings), tokens=tokenizer,
    )  # fmt: skip
    in_one_file = {"model.safetensors": [NamedBox(name, full_box(shape)) for name, shape in shapes.items()]}
    checkpoints.write(
        directory / "step-8", shapes, values, in_one_file, step=8, layout=Layout(),
        settings=dataclasses.asdict(settings), tokens=tokenizer,
    )  # fmt: skip
    assert len(set(texts)) > 3, "translations must tell sentences apart"
    (directory / "scored").write_text("".join(f"{each.score:.4f}\t{each.text}\n" for each in found))
    return directory, texts


def _half(shape, number):
    """Half of the rows of a matrix; vectors are whole in the first file."""
    if len(shape) == 1:
        return full_box(shape) if number == 0 else None
    rows = shape[0] // 2
    return Box((number * rows, 0), (rows if number == 0 else shape[0] - rows, shape[1]))


def translating(launcher, directory):
    argv, pipes = (
        launcher.argv("translate", directory / "model"),
        dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
    )
    return subprocess.Popen(argv, cwd=launcher.directory, env=launcher.environment(ONE_THREAD), **pipes)


def test_lines_keep_their_order(launcher, trained):
    directory, texts = trained
    given = "".join(f"{line}\n" for line in SENTENCES)
    expected = "".join(f"{text}\n" for text in texts)
    of_model = launcher.run("translate", directory / "model", input=given, env=ONE_THREAD, code=0)
    assert (of_model.stdout, of_model.stderr) == (expected, "")
    scored = launcher.run("translate", directory / "model", "--scores", input=given, env=ONE_THREAD, code=0)
    assert scored.stdout == (directory / "scored").read_text()
    many = given.replace("\n", "\r\n") * 40
    of_two_ranks = launcher.run("translate", directory / "step-7", input=many, env=ONE_THREAD, code=0)
    assert of_two_ranks.stdout == expected * 40
    assert launcher.run("translate", directory / "step-8", input=given, env=ONE_THREAD, code=0).stdout == expected
    assert not list(launcher.directory.iterdir())


def test_without_a_name_the_newest_run_with_a_translation_model_is_used(launcher, trained):
    directory, texts = trained
    for number, name in enumerate(("merged", "model", "resnet", "failed")):
        launcher.write(f"runs/{name}/run.json", "{}")
        os.utime(launcher.runs / name / "run.json", (number, number))
    shutil.copytree(directory / "step-7", launcher.runs / "merged" / "checkpoints" / "step-7")
    shutil.copytree(directory / "model", launcher.runs / "model" / "model")
    launcher.write("runs/resnet/model/config.json", '{"program": "resnet50"}')
    for name, part in (("model", "model"), ("merged", "checkpoints")):
        done = launcher.run("translate", input=f"{SENTENCES[0]}\n", env=ONE_THREAD, code=0)
        assert f"runs/{name}, the newest run with a translation model" in done.stderr
        assert done.stdout == f"{texts[0]}\n"
        (launcher.runs / name / part).rename(launcher.directory / part)
    assert "no run in runs has a translation model" in launcher.call("translate", code=2).stderr


def test_a_line_is_answered_at_once(launcher, trained, wait_until):
    directory, texts = trained
    with translating(launcher, directory) as process:
        for source, text in list(zip(SENTENCES, texts, strict=True))[:2]:
            process.stdin.write(f"{source}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{text}\n"
        out, err = process.communicate(b"chat " * 5000 + b"\nun \xe9t\xe9\nun homme court\n")
    assert (process.returncode, out.count(b"\n")) == (2, 1)
    assert b"stdin:3: cut to 24 tokens" in err
    assert b"stdin:4: not UTF-8: byte 0xe9 at position 4 of the line" in err


def test_it_ends_with_its_reader_and_when_interrupted(launcher, trained):
    directory, texts = trained
    given = "".join(f"{line}\n" for line in SENTENCES) * 100
    script = '"$@" | head -n 1; echo "${PIPESTATUS[0]}"'
    done = launcher.shell(script, "translate", directory / "model", input=given, env=ONE_THREAD, code=0)
    assert (done.stdout, done.stderr) == (f"{texts[0]}\n0\n", "")
    with translating(launcher, directory) as process:
        process.stdin.write(f"{SENTENCES[0]}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err.strip()) == (130, b"")


def test_scores_are_those_of_sacrebleu(launcher, trained):
    directory, texts = trained
    references = ["le chat noir court", "un homme dort", "l'homme", "La femme à l'arrière-plan.", "x", "un chat noir"]
    (launcher.directory / "source").write_text("".join(f"{line}\n" for line in SENTENCES))
    with gzip.open(launcher.directory / "reference.gz", "wt") as file:
        file.writelines(f"{line}\n" for line in references)
    words = ("evaluate", directory / "model", "--source", "source", "--reference", "reference.gz")
    done = launcher.run(*words, "--json", "--output", "translated", env=ONE_THREAD, code=0)
    from launcher.trainer.decode.score import all_scores

    found, expected = json.loads(done.stdout), dataclasses.asdict(all_scores(texts, references, "en"))
    del expected["notes"]
    assert {name: found[name] for name in expected} == expected
    assert (found["sentences"], found["beam"], found["alpha"]) == (len(SENTENCES), 5, 1.0)
    assert (launcher.directory / "translated").read_text() == "".join(f"{text}\n" for text in texts)
    (launcher.directory / "source").write_text("un chat\n")
    refused = launcher.call(*words, code=2)
    assert refused.stderr.startswith("error: source has 1 line, and reference.gz has 6\nhint: ")


def test_translations_replace_no_file_that_is_read(launcher):
    for name in ("source", "reference"):
        launcher.write(name, "un chat\n")
    words = "evaluate --source source --reference reference --output"
    launcher.refused(2, f"{words} ./source", f"{words} reference")
    assert (launcher.directory / "source").read_text() == "un chat\n"


@pytest.mark.parametrize(("language", "tokens"), [("en", "13a"), ("fi", "13a"), ("zh-TW", "zh")])
def test_bleu_is_that_of_the_command_of_sacrebleu(launcher, trained, language, tokens):
    """The tokenization follows the target language. Moses scores are only for languages that it knows."""
    directory, texts = trained
    references = [f"{text} \u732b\u732b, x." for text in texts]
    launcher.write("source", "".join(f"{line}\n" for line in SENTENCES))
    launcher.write("reference", "".join(f"{line}\n" for line in references))
    words = (
        "evaluate",
        directory / "model",
        "--source",
        "source",
        "--reference",
        "reference",
        "--output",
        "translated",
    )
    done = launcher.run(*words, "--json", "--target-language", language, env=ONE_THREAD, code=0)
    found = json.loads(done.stdout)
    argv = [
        sys.executable,
        "-m",
        "sacrebleu",
        "reference",
        "-i",
        "translated",
        "-l",
        f"fr-{language[:2]}",
        "-b",
        "-w",
        "9",
    ]
    theirs = subprocess.run(argv, cwd=launcher.directory, capture_output=True, text=True, check=True)
    assert found["bleu"]["score"] == pytest.approx(float(theirs.stdout), abs=1e-9) != 0
    assert f"tok:{tokens}|" in found["bleu"]["signature"]
    assert (found["bleu_tokenized"] is None) == (tokens == "zh")


def test_without_mecab_japanese_and_korean_are_compared_by_characters(monkeypatch):
    from launcher.trainer.decode import score

    there = {"MeCab"}
    monkeypatch.setattr(score, "find_spec", lambda name: name in there or None)
    assert score.tokenization("ja-JP") == ("ja-mecab", None)
    there.clear()
    tokenize, note = score.tokenization("ko")
    assert (tokenize, "pip install 'sacrebleu[ko]'" in note) == ("char", True)


def test_papers_scores_are_of_moses_tokens():
    """Apostrophes are cut off and case does not count, which sacrebleu's default does not do."""
    from launcher.trainer.decode.score import all_scores

    scores = all_scores(["L\u2019homme dit qu'il dort ."], ["l'homme dit qu'il dort."], "fr")
    assert scores.bleu_tokenized.score == pytest.approx(100)
    assert scores.bleu.score < 90
    assert "case:lc" in scores.bleu_tokenized.signature
    assert "tok:none" in scores.bleu_tokenized.signature
    assert "tok:13a" in scores.bleu.signature


def test_what_is_no_model_is_refused(launcher, trained):
    directory, _ = trained
    assert "no run in runs has this name" in launcher.call("translate", "absent", code=2).stderr
    for alpha in ("nan", "-1", "much"):
        assert "--alpha" in launcher.call("translate", directory / "model", "--alpha", alpha, code=2).stderr
    other = launcher.directory / "other"
    other.mkdir()
    (other / "model.safetensors").touch()
    assert "config.json" in launcher.call("translate", other, code=2).stderr
    (other / "config.json").write_text('{"program": "resnet50", "recipe": {}}')
    assert "belongs to the program resnet50" in launcher.call("translate", other, code=2).stderr
    config = json.loads((directory / "model" / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config))
    lacking = launcher.run("translate", other, input="un chat\n", env=ONE_THREAD, code=2)
    assert "tokenizer.model: the model directory does not contain this file" in lacking.stderr


def test_a_process_that_is_killed_is_told(launcher, trained):
    directory, _ = trained
    with translating(launcher, directory) as process:
        process.stdin.write(f"{SENTENCES[0]}\n".encode())
        process.stdin.flush()
        process.stdout.readline()
        [child] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        err = process.stderr.read()  # while stdin is open
    assert process.returncode == 137
    assert b"the translation process was killed by SIGKILL" in err


@pytest.mark.parametrize(("given", "told"), [
    ("\ufeffa\r\n\n\u2028b", "['a', '', '\\u2028b']"),
    ("a\n" + "x" * MAX_LINE_BYTES, "['a', 'x"),
    (b"\x1f\x8b\x08\x00\n", "stdin is compressed with gzip"),
    ("a\n" + "x" * (MAX_LINE_BYTES + 1), "stdin:2: a line of more than 1,048,576 bytes"),
    ("a\n" + "x" * (MAX_LINE_BYTES + 1) + "\n", "stdin:2: a line of more than 1,048,576 bytes"),
], ids=["marks", "long", "gzip", "without end", "too long"])  # fmt: skip
def test_lines_of_stdin(launcher, given, told):
    code = "from launcher.trainer.decode.stdin_lines import *\ntry: print([line for lines in stdin_lines() for line in lines])\nexcept Exception as e: print(e)"
    given = given if isinstance(given, bytes) else given.encode()
    assert launcher.python(code, input=given, encoding=None).stdout.startswith(told.encode())


def test_a_run_with_a_model_that_translates_is_known(tmp_path):
    run = RunDir(tmp_path)
    found = []
    for content in (None, '{"program": "resnet50", "recipe": {}}', '{"program": "transformer", "recipe": {}}'):
        if content is not None:
            run.model.mkdir(exist_ok=True)
            (run.model / "config.json").write_text(content)
        found.append(translates(run))
    assert found == [False, False, True]


def test_a_terminal_gets_no_control_characters():
    from launcher.trainer.decode.__main__ import line_of
    from launcher.trainer.decode.translator import Translation

    translation = Translation((5,), "o\x1bo", -0.25, 0)
    assert line_of(translation, scored=True, shown=True) == "-0.2500\to^[o\n"
    assert line_of(translation, scored=False, shown=False) == "o\x1bo\n"
