"""Run `tlaunch data` as a user does."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from launcher.cli.commands.data import data
from launcher.core.errors import TlaunchError, UsageError
from launcher.corpus import preprocess


def tlaunch_data(*arguments):
    result = CliRunner().invoke(data, [str(argument) for argument in arguments])
    if isinstance(result.exception, TlaunchError):
        raise result.exception
    return result


@pytest.fixture
def texts(tmp_path):
    fr, en = tmp_path / "in.fr", tmp_path / "in.en"
    fr.write_text("un\nun\ndeux\n")
    en.write_text("one\none\ntwo\n")
    return ("--source", fr, "--target", en)


def test_preprocess_prints_the_path_and_tells_counts(tmp_path, texts):
    output = tmp_path / "not" / "there"
    result = tlaunch_data("preprocess", *texts, "-o", output)
    assert result.exit_code == 0
    assert result.stdout == f"{output / 'fr_en.txt'}\n"
    assert [path.name for path in output.iterdir()] == ["fr_en.txt"]
    assert result.stderr == "kept 2 of 3 pairs; dropped: 1 duplicate\n"


def test_preprocess_tells_warnings_and_missing_partners(tmp_path):
    fr, en = tmp_path / "in.fr.sgm", tmp_path / "in.en.sgm"
    segments = "".join(f"<seg id={number}>mot</seg>\n" for number in range(9))
    fr.write_text(f"<refset trglang='de'><doc docid=d>\n{segments}</doc>")
    en.write_text("<doc docid=d><seg id=0>word</seg></doc><doc docid=e><seg id=0>alone</seg></doc>")
    result = tlaunch_data("preprocess", "--source", fr, "--target", en, "--split", "test", "--output", tmp_path)
    lines = result.stderr.splitlines()
    assert lines[0].startswith("warning: ")
    assert "states the language de, but it is used as fr" in lines[0]
    assert [line.startswith("dropped: doc d seg ") for line in lines[1:6]] == [True] * 5
    assert f"({fr}:3) has no partner in {en}" in lines[1]
    assert lines[6:] == ["dropped: ... and 4 more without a partner", "kept 1 of 10 pairs; dropped: 9 missing partner"]


def test_sample_prints_the_paths_that_it_wrote(tmp_path):
    result = tlaunch_data("sample", "--output", tmp_path)
    assert result.stderr == "wrote 12,000 train, 500 valid, 500 test pairs\n"
    assert sorted(result.stdout.splitlines()) == sorted(str(path) for path in tmp_path.iterdir())


def test_images_are_written_for_the_recipe_that_reads_them(tmp_path):
    arguments = ("sample", "--recipe", "resnet50", "--output", tmp_path)
    result = tlaunch_data(*arguments)
    assert result.stderr == "wrote 2,000 train, 500 test images\n"
    assert sorted(result.stdout.splitlines()) == sorted(str(path) for path in tmp_path.iterdir())
    with pytest.raises(UsageError, match="already exists"):
        tlaunch_data(*arguments)


def test_nothing_is_overwritten_unless_forced(tmp_path):
    arguments = ("sample", "--output", tmp_path / "out")
    tlaunch_data(*arguments)
    kept = tmp_path / "out" / "fr_en.txt"
    kept.write_text("mine\tmien\n")
    with pytest.raises(UsageError, match="already exists"):
        tlaunch_data(*arguments)
    assert kept.read_text() == "mine\tmien\n"
    assert tlaunch_data(*arguments, "--force").exit_code == 0
    assert kept.read_text() != "mine\tmien\n"


@pytest.mark.parametrize("wrong", [("--split", "dev"), ("--max-words", "0"), ()])
def test_wrong_options_end_with_2(tmp_path, texts, wrong):
    output = ("--output", tmp_path) if wrong else ()
    assert tlaunch_data("preprocess", *texts, *output, *wrong).exit_code == 2


def test_options_of_earlier_versions_are_answered_with_the_line_to_type(tmp_path, texts):
    with pytest.raises(UsageError, match="no option --fr and --en") as refused:
        tlaunch_data("preprocess", "--fr", "a b.fr", "--en=b.en", "-o", tmp_path)
    assert f"use `data preprocess --source 'a b.fr' --target=b.en -o {tmp_path}`" in refused.value.hint


@pytest.mark.parametrize("command", ["preprocess", "sample"])
def test_help_has_an_example_whose_lines_are_kept(command):
    shown = tlaunch_data(command, "--help").stdout
    assert f"Example:\n    tlaunch data {command} " in shown


def test_the_default_limit_is_that_of_the_library():
    limit = next(option for option in data.commands["preprocess"].params if option.name == "max_words")
    assert limit.default == preprocess.DEFAULT_MAX_WORDS
