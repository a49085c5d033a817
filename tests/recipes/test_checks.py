"""Layouts against the Transformer's sizes."""

import gzip

import pytest

from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.records import Layout
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_checks import (
    check_data,
    check_layout,
    check_tables,
    data_notes,
    with_data,
)
from launcher.recipes.transformer.transformer_settings import TransformerSettings


@pytest.mark.parametrize(("settings", "layout", "message", "hint"), [
    ([], Layout(mp=3), "model.heads = 8 is not divisible by mp = 3", "`--dp 3 --mp 1`"),
    (["model.feed_forward_dim=6"], Layout(mp=4), "model.feed_forward_dim = 6 is not divisible by mp = 4",
     "use `--dp 2 --mp 2` or `--dp 4 --mp 1`"),
    (["model.d_model=100"], Layout(), "model.d_model = 100 is not divisible by model.heads = 8", "96 or 104"),
    (["model.heads=3"], Layout(), "model.d_model = 128 is not divisible by model.heads = 3", "model.heads=N` with N = 2 or 4,"),
    ([], Layout(pp=6), "2 encoder + 2 decoder = 4 layers and a head", "at most `--pp 5`"),
    (
        ["parallel.schedule=interleaved", "parallel.interleave=3"],
        Layout(pp=2, micro_batches=2),
        "too few layers for pp = 2 stages of 3 chunks: the model has 2 encoder + 2 decoder = 4 layers and a head",
        "at most `--pp 1`",
    ),
    (["parallel.schedule=interleaved", "parallel.interleave=2", "parallel.stages=[2, 2]"],
        Layout(pp=2, micro_batches=2), "parallel.stages = [2, 2] has 2 stages, but pp = 2 of 2 chunks",
        "give 4 numbers"),
    (["parallel.schedule=interleaved", "parallel.interleave=2"], Layout(pp=2, micro_batches=3),
        "micro_batches = 3 must be divisible by pp = 2", "2 or 4"),
    (["parallel.stages=[3, 1]"], Layout(pp=4), "parallel.stages = [3, 1] has 2 stages, but pp = 4", "--pp 2"),
    (["parallel.stages=[2, 3]"], Layout(pp=2), "has 5 layers, but the model has 2 encoder + 2 decoder = 4 layers", "[]"),
])  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused(settings, layout, message, hint):
    with pytest.raises(RefusedLayoutError) as refusal:
        check_layout(load_settings(TransformerSettings, None, settings), layout)
    assert message in refusal.value.message
    assert hint in refusal.value.hint


@pytest.mark.parametrize(("settings", "message", "hint"), [
    (["train.clip_norm=1e-320"], "reduces every gradient to nothing", "use 0"),
    (["parallel.interleave=2"], "parallel.schedule = 1f1b does not fit parallel.interleave = 2", "interleaved"),
    (["parallel.schedule=interleaved"], "parallel.schedule = interleaved does not fit parallel.interleave = 1",
        "or leave out both"),
    (["parallel.recompute_layers=[0, 4]"], "[0, 4] has 4, but the model has 2 encoder + 2 decoder", "from 0 to 3"),
    (["parallel.recompute_layers=[0]", "parallel.recompute=true"], "recompute recomputes all layers", "recompute=false"),
    (["parallel.gradient_accumulation_shard=true", "parallel.optimizer_shard=false"],
        "without optimizer sharding, every rank needs all gradients", "optimizer_shard=true"),
])  # fmt: skip
def test_switches_that_exclude_each_other_are_refused(settings, message, hint):
    with pytest.raises(UsageError) as refusal:
        check_layout(load_settings(TransformerSettings, None, settings), Layout())
    assert message in refusal.value.message
    assert hint in refusal.value.hint


def test_a_table_that_is_the_head_too_is_not_replicated():
    with pytest.raises(UsageError, match="replicates embedding tables over mp = 2 ranks"):
        check_tables(is_tied=True, vocab_emb_dp=True, mp=2)
    for is_tied, vocab_emb_dp, mp in ((True, True, 1), (True, False, 2), (False, True, 2)):
        assert check_tables(is_tied=is_tied, vocab_emb_dp=vocab_emb_dp, mp=mp) is None


@pytest.mark.parametrize("layout", [Layout(dp=2, mp=2, pp=2, micro_batches=4), Layout(dp=3), Layout(micro_batches=64)])
def test_a_layout_that_fits_is_accepted(layout):
    assert check_layout(load_settings(TransformerSettings, None), layout) is None


@pytest.mark.parametrize(("settings", "message", "hint"), [
    (["train.minimum_rate=0.001"], "train.schedule = inverse_sqrt does not decay to it", "linear or cosine"),
    (["train.minimum_rate=1", "train.schedule=cosine"], "train.minimum_rate = 1 is above",
        "`--set train.minimum_rate=0.003` or a lower rate"),
    (["train.best_metric=bleu"], "train.best_metric = bleu needs translations", "--set train.bleu_sentences=200"),
    (["train.early_stopping=3"], "train.early_stopping = 3 needs validation during", "--set train.validate_every=N"),
])  # fmt: skip
def test_settings_without_effect_are_refused(settings, message, hint):
    with pytest.raises(UsageError) as refusal:
        check_layout(load_settings(TransformerSettings, None, settings), Layout())
    assert message in refusal.value.message
    assert hint in refusal.value.hint


@pytest.mark.parametrize(("batch", "is_refused"), [(3, False), (4, True), (10**9, True)])
def test_pairs_that_fill_no_batch_are_refused_before_ranks_start(tmp_path, batch, is_refused):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\na\t\n" * 3)
    settings = load_settings(TransformerSettings, None, [f"train.batch_size={batch}"])
    if is_refused:
        with pytest.raises(UsageError, match=f"3 training pairs do not fill one batch of {batch}"):
            check_data(settings, [pairs])
    else:
        check_data(settings, [pairs])
    check_data(load_settings(TransformerSettings, None, ["train.batch_size=4", "train.batch_tokens=100"]), [pairs])


@pytest.mark.parametrize(("names", "settings", "told"), [
    (("a.de", "a.en"), [], ""), (("a.de", "a.de"), [], "are the same file"), (("a", "a.de"), ["data.source_language=hsb"], ""),
    (("a", "b.de"), ["data.source_language=de"], "are both de"), (("a", "b"), [], ""),
])  # fmt: skip
def test_a_language_or_a_file_on_both_sides_is_noted(tmp_path, names, settings, told):
    data = [tmp_path / name for name in names]
    for path in data:
        path.touch()
    found = data_notes(with_data(load_settings(TransformerSettings, None, settings), data), data)
    assert told in "".join(found)
    assert bool(found) == bool(told)


@pytest.mark.parametrize(("content", "message"), [
    (b"a b\n", ":1: found 0 tabs"), (b"a\tb\nc\td\te\n", ":2: found 2 tabs"), (b"", "the file is empty"), (b"a\t\n", "no sentence pairs"),
    (gzip.compress(b"a\tb\nc\n", mtime=0), ":2: found 0 tabs"), (b"\xff\xfea\n", ":1: not UTF-8"), (gzip.compress(b"a\tb", mtime=0)[:12] + b"x" * 30, "cannot be read"),
])  # fmt: skip
def test_data_without_pairs_are_refused_before_ranks_start(tmp_path, content, message):
    (tmp_path / "train.de").write_bytes(content)
    with pytest.raises(UnreadableError, match=message):
        check_data(TransformerSettings(), [tmp_path / "train.de"])


@pytest.mark.parametrize("content", [
    b"a\tb\n", b"a\t\na\tb", gzip.compress(b"a\tb\nc", mtime=0) + gzip.compress(b"\td\n", mtime=0), b"a\tb\n" * 600_000 + b"c\n",
], ids=["one", "a filled one", "parts of gzip that end in a line", "many"])  # fmt: skip
def test_of_data_the_beginning_is_looked_at(tmp_path, content):
    (tmp_path / "pairs").write_bytes(content)
    check_data(load_settings(TransformerSettings, None, ["train.batch_size=1"]), [tmp_path / "pairs"])
