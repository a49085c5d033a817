"""Models as MarianMTModel: back without a changed bit, and with the tokens of transformers and CTranslate2."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from launcher.core.errors import RefusedError
from launcher.corpus.dataset import PairText, read_pairs
from launcher.corpus.sample import PACKED
from launcher.trainer.checkpoint.foreign.progress import Progress
from launcher.trainer.data.tokenizer import Tokenizer, train_tokenizer
from launcher.trainer.data.tokens import Example
from launcher.trainer.decode.beam import Search
from launcher.trainer.decode.marian import read_marian, write_marian
from launcher.trainer.decode.translator import Translator
from launcher.trainer.model.initial import initial_weight
from launcher.trainer.model.transformer import END
from launcher.trainer.saved import load_model, save_model
from launcher.trainer.session import model_shapes

from .transformers import session_of, transformer_settings

VOCABULARY = 640
SETTINGS = (
    *(f"model.vocabulary_size={VOCABULARY}", "model.norm=post", "model.positions=sinusoidal"),
    *("model.d_model=48", "model.heads=4", "model.feed_forward_dim=96", "model.encoder_layers=1", "model.dropout=0"),
    *("data.source_length=40", "data.target_length=36"),
)
SHARED = ("model.share=all", "model.scale_embedding=true", "model.activation=gelu")
STEPS, PAIRS = 120, 32
FACTS = {"step": 3, "layout": {"dp": 2, "mp": 1, "pp": 1}}


@pytest.fixture(name="pairs", scope="module")
def _pairs():
    return [pair for pair in read_pairs(PairText(PACKED)) if max(map(len, pair)) < 40]


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer(pairs):
    """It has fewer tokens than the model has rows."""
    return Tokenizer(train_tokenizer((text for pair in pairs[:2000] for text in pair), 600))


@pytest.fixture(name="model", scope="module", params=[SHARED, ("model.share=decoder",), ("model.share=none",)])
def _model(request, pairs, tokenizer, tmp_path_factory):
    """The directory of a model that has learned enough to end its sentences. Only other tools need it."""
    pytest.importorskip("transformers")
    session = session_of(*SETTINGS, *request.param)
    for step in range(STEPS):
        ids = map(tokenizer.encode, pairs[step * PAIRS :][:PAIRS])
        session.train_step([Example([*fr[:30], END], [*en[:30], END]) for fr, en in ids], 4e-3, step=step + 1)
    directory = tmp_path_factory.mktemp("trained") / "model"
    weights = {name: value.detach() for name, value in session.model.named_parameters()}
    save_model(directory, "transformer", weights, session.settings, tokenizer.serialized, FACTS)
    return directory


@pytest.fixture(name="sentences", scope="module")
def _sentences(pairs):
    return [french for french, _ in pairs[-200:]]


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def new_model(directory, tokenizer, *settings, dtype=torch.float32):
    """Write a model of random weights."""
    chosen = transformer_settings(*SETTINGS, *settings)
    shapes = model_shapes(chosen)
    weights = {name: initial_weight(name, torch.Size(shape), 1).to(dtype) for name, shape in shapes.items()}
    save_model(directory, "transformer", weights, chosen, tokenizer.serialized, FACTS)
    return directory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("share", ["none", "decoder", "all"])
def test_exported_and_imported_all_files_are_equal(tokenizer, tmp_path, share, dtype):
    model = new_model(tmp_path / "model", tokenizer, f"model.share={share}", dtype=dtype)
    write_marian(model, tmp_path / "marian", Progress())
    read_marian(tmp_path / "marian", tmp_path / "again", Progress())
    assert files_of(tmp_path / "again") == files_of(model)
    assert (
        len({path.stat().st_mode for name in ("model", "marian", "again") for path in (tmp_path / name).iterdir()}) == 1
    )


def changed(path, **entries):
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def with_tensors(directory, **tensors):
    path = directory / "model.safetensors"
    save_file({**load_file(path), **tensors}, path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda at: changed(at / "config.json", tlaunch={}), "config.json is damaged"),
        (lambda at: (at / "config.json").write_text('{"model_type": "marian"}'), "no entry `tlaunch`"),
        (lambda at: changed(at / "config.json", activation_function="swish"), "activation_function is swish"),
        (lambda at: changed(at / "vocab.json", more=VOCABULARY), "vocab.json does not match source.spm"),
        (lambda at: with_tensors(at, final_logits_bias=torch.ones(1, 3)), "final_logits_bias is not zero"),
        (lambda at: with_tensors(at, **{"model.shared.weight": torch.ones(3)}), "model.shared.weight has the shape"),
        (lambda at: with_tensors(at, extra=torch.ones(3)), "extra is unknown"),
        (lambda at: (at / "source.spm").unlink(), "source.spm: No such file"),
    ],
)
def test_a_changed_model_is_not_imported(tokenizer, tmp_path, change, fault):
    model = new_model(tmp_path / "model", tokenizer, "model.share=all")
    write_marian(model, tmp_path / "marian", Progress())
    change(tmp_path / "marian")
    with pytest.raises(Exception, match=fault) as raised:
        read_marian(tmp_path / "marian", tmp_path / "again", Progress())
    assert raised.value.exit_code in {2, 3}
    assert not (tmp_path / "again").exists()


def test_the_layout_for_ctranslate2_is_not_imported(tokenizer, tmp_path):
    model = new_model(tmp_path / "model", tokenizer, "model.share=all")
    write_marian(model, tmp_path / "marian", Progress(), for_ctranslate2=True)
    with pytest.raises(RefusedError, match=f"vocab_size is {VOCABULARY + 1} instead of {VOCABULARY}"):
        read_marian(tmp_path / "marian", tmp_path / "again", Progress())


def ckpt(directory, *words):
    argv = [sys.executable, "-m", "launcher", "ckpt", *map(str, words)]
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_commands(tokenizer, tmp_path):
    model = new_model(tmp_path / "model", tokenizer)
    form = ("--format", "transformers", "--output")
    assert ckpt(tmp_path, "export", "model", *form, "marian") == (0, "marian\n", "")
    assert ckpt(tmp_path, "import", "marian", *form, "again") == (0, "again\n", "")
    assert files_of(tmp_path / "again") == files_of(model)
    assert ckpt(tmp_path, "import", "model", *form, "no")[:2] == (3, "")
    assert not (tmp_path / "no").exists()


def test_a_setting_without_a_counterpart_is_refused(tokenizer, tmp_path):
    new_model(tmp_path / "model", tokenizer, "model.norm=pre", "model.positions=learned")
    code, _, said = ckpt(tmp_path, "export", "model", "--format", "transformers", "--output", "marian")
    assert code == 3
    assert "model.norm = pre and model.positions = learned" in said
    assert "--set model.norm=post --set model.positions=sinusoidal" in said


def translations(directory, sentences, beam):
    """The ids of the translations, each with END."""
    model, settings, tokenizer = load_model(directory)
    found = Translator(model, tokenizer, settings.data).translate(sentences, Search(beam))
    return [[*each.ids, END] for each in found], [each.text for each in found]


@pytest.mark.parametrize("for_ctranslate2", [False, True])
@pytest.mark.parametrize("beam", [1, 5])
def test_transformers_generates_the_same_tokens(model, sentences, tmp_path, beam, for_ctranslate2):
    """Beam search by the exported defaults."""
    import transformers

    write_marian(model, tmp_path / "marian", Progress(), for_ctranslate2=for_ctranslate2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "marian")
    marian = transformers.MarianMTModel.from_pretrained(tmp_path / "marian")
    batch = tokenizer(sentences, return_tensors="pt", padding=True, truncation=True)
    generated = marian.generate(**batch, **({} if beam == 5 else {"num_beams": beam}))
    texts = tokenizer.batch_decode(generated, skip_special_tokens=True)
    ids = [[*row[: row.index(END)], END] for row in generated[:, 1:].tolist()]
    assert (ids, texts) == translations(model, sentences, beam)


def test_a_model_that_transformers_saved_again_is_imported(model, tmp_path):
    """The entries of config.json come back sorted."""
    import transformers

    write_marian(model, tmp_path / "marian", Progress())
    for loader in (transformers.MarianMTModel, transformers.AutoTokenizer):
        loader.from_pretrained(tmp_path / "marian").save_pretrained(tmp_path / "saved")
    read_marian(tmp_path / "saved", tmp_path / "again", Progress())
    again, before = files_of(tmp_path / "again"), files_of(model)
    assert json.loads(again.pop("config.json")) == json.loads(before.pop("config.json"))
    assert again == before


@pytest.mark.parametrize("beam", [1, 5])
def test_ctranslate2_converts_and_translates(model, sentences, tmp_path, beam):
    import transformers

    ctranslate2 = pytest.importorskip("ctranslate2")
    write_marian(model, tmp_path / "marian", Progress(), for_ctranslate2=True)
    ctranslate2.converters.TransformersConverter(str(tmp_path / "marian")).convert(str(tmp_path / "ct2"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "marian")
    sources = [tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) for text in sentences]
    found = ctranslate2.Translator(str(tmp_path / "ct2")).translate_batch(sources, beam_size=beam)
    ids = [[*tokenizer.convert_tokens_to_ids(each.hypotheses[0]), END] for each in found]
    assert ids == translations(model, sentences, beam)[0]
