"""A trained model as files."""

import json
from functools import partial

import pytest
import torch

from launcher.core.errors import UnreadableError, UsageError
from launcher.trainer.data.tokenizer import Tokenizer, train_tokenizer
from launcher.trainer.model.transformer import Batch
from launcher.trainer.saved import check_can_save, gather, load_model, save_model
from launcher.trainer.session import placements_at

from .transformers import session_of, transformer_settings

SENTENCES = ["le chat noir dort", "the black cat sleeps"]
SIZES = ["model.vocabulary_size=300", "model.d_model=16", "train.seed=5"]
SETTINGS = transformer_settings(*SIZES)


@pytest.fixture(scope="module", name="session")
def _session():
    return session_of(*SIZES)


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return Tokenizer(train_tokenizer(SENTENCES, 300))


def saved(session, tokenizer, directory):
    at = partial(placements_at, session.settings, session.world.place.layout)
    weights = gather(session.world, dict(session.model.named_parameters()), at)
    save_model(directory / "model", "transformer", weights, session.settings, tokenizer.serialized, {})


@pytest.mark.parametrize("share", ["none", "decoder", "all"])
def test_a_model_read_back_computes_the_same(share, tokenizer, tmp_path):
    """Weights, recipe and tokenizer survive, and nothing else is left beside them."""
    session = session_of(*SIZES, f"model.share={share}")
    saved(session, tokenizer, tmp_path)
    model, settings, read_tokenizer = load_model(tmp_path / "model")
    ids = torch.tensor([read_tokenizer.encode(SENTENCES)[0]])
    one = torch.arange(1)
    batch = Batch(source_BS=ids, target_BT=ids, labels_BT=ids, row_B=one, labelled_N=one, source_tokens=ids.numel())
    assert settings == session.settings
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    torch.testing.assert_close(model(batch), session.model.eval()(batch), rtol=0, atol=0)
    torch.testing.assert_close(model.head.weight, session.model.head.weight, rtol=0, atol=0)


def test_a_model_is_never_overwritten(tokenizer, tmp_path):
    """An earlier model stays whole, and no half of the new one is left."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious").touch()
    with pytest.raises(UsageError, match="does not overwrite"):
        check_can_save(tmp_path / "model")
    with pytest.raises(FileExistsError):
        save_model(tmp_path / "model", "transformer", {}, SETTINGS, tokenizer.serialized, {})
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "precious"]


def test_a_place_that_cannot_be_written_is_found_out_early(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        check_can_save(tmp_path / "file" / "model")
    check_can_save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_model_that_does_not_record_how_text_was_normalised_gets_it_as_it_is(session, tokenizer, tmp_path):
    """Versions that recorded nothing did not normalise."""
    saved(session, tokenizer, tmp_path)
    assert load_model(tmp_path / "model")[1].data.normalise
    config = tmp_path / "model" / "config.json"
    content = json.loads(config.read_text())
    del content["recipe"]["data"]["normalise"]
    config.write_text(json.dumps(content))
    assert not load_model(tmp_path / "model")[1].data.normalise


def test_a_model_that_records_a_direction_gets_its_languages(session, tokenizer, tmp_path):
    """As tlaunch 0.2 recorded them."""
    saved(session, tokenizer, tmp_path)
    config = tmp_path / "model" / "config.json"
    content = json.loads(config.read_text())
    del content["recipe"]["data"]["source_language"], content["recipe"]["data"]["target_language"]
    content["recipe"]["data"]["direction"] = "en_fr"
    config.write_text(json.dumps(content))
    assert load_model(tmp_path / "model")[1].data.languages == ("en", "fr")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UnreadableError, match=r"model\.safetensors") as missing:
        load_model(tmp_path)
    (tmp_path / "step-5").mkdir()
    with pytest.raises(UnreadableError) as checkpoint:
        load_model(tmp_path / "step-5")
    assert (missing.value.hint, "ckpt merge" in checkpoint.value.hint) == (None, True)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model"])
@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 100])
def test_a_damaged_file_is_named(name, content, session, tokenizer, tmp_path):
    saved(session, tokenizer, tmp_path)
    (tmp_path / "model" / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=name):
        load_model(tmp_path / "model")
