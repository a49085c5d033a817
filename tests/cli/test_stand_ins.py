"""A packaged file never stands in for a missing one without a word."""

import shutil

import pytest

SAMPLE = "rank_tables/rank_table_2pcs.json"
RECIPE = "recipes/transformer/tutorial.toml"
WITH_TABLE = [
    f"run --rank-table {SAMPLE} --dry-run -- true",
    f"run --rank-table {SAMPLE} --dry-run --json -- true",
    f"explain --rank-table {SAMPLE} -- true",
    f"render bash --rank-table {SAMPLE} -- true",
    f"doctor --rank-table {SAMPLE} --no-links",
    f"validate {SAMPLE}",
    f"validate -q --json {SAMPLE}",
    f"table show {SAMPLE}",
    f"table fix {SAMPLE}",
    f"table merge {SAMPLE}",
    f"table convert {SAMPLE} --to v1.2",
]


@pytest.mark.parametrize("typed", WITH_TABLE)
def test_a_sample_that_stands_in_for_a_missing_table_is_told(launcher, sample_tables, typed):
    note = f"note: {SAMPLE} is not here; the packaged sample {sample_tables / 'rank_table_2pcs.json'} is used\n"
    call = launcher.run if typed.startswith("doctor") else launcher.call
    done = call(*typed.split())
    assert done.returncode == 0, done.stderr
    assert (done.stderr.count(note), done.stderr.count("note: rank_tables")) == (1, 1)
    assert "is not here" not in done.stdout
    shutil.copytree(sample_tables, launcher.directory / "rank_tables")
    assert "is not here" not in call(*typed.split()).stderr


def test_both_of_two_samples_are_told(launcher):
    done = launcher.call("table", "diff", SAMPLE, "rank_tables/rank_table_4pcs.json")
    assert (done.returncode, done.stderr.count("is not here; the packaged sample ")) == (1, 2)


def test_a_packaged_recipe_that_stands_in_for_a_missing_one_is_told(launcher):
    run = ["run", "--devices", "1", "--dry-run", "--config", RECIPE]
    done = launcher.call(*run)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"note: {RECIPE} is not here; the packaged recipe ") == 1
    (launcher.directory / RECIPE).parent.mkdir(parents=True)
    (launcher.directory / RECIPE).touch()
    assert "is not here" not in launcher.call(*run).stderr
