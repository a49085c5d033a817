"""`python -m launcher.trainer.decode.marian`: the process behind `tlaunch ckpt export|import --format transformers`.

It converts a trained model to the directory of a MarianMTModel of Hugging Face's transformers, and back:

    config.json              sizes; entry `tlaunch`: the recipe, which MarianMTModel has no fields for
    model.safetensors        the same tensors under Marian's names
    generation_config.json   the search of `tlaunch translate`, with its defaults
    source.spm, target.spm   the tokenizer, twice: Marian has one for each language
    vocab.json               names of all ids
    tokenizer_config.json    names of the marks

Token ids stay the same. For the converter of CTranslate2, the layout differs. That converter drops the last token, and
starts each translation from a zero vector instead of an embedding. So the last token is a new `<pad>` of zeros, with
which transformers starts, too. The vector of BEGIN is in the first row of the decoder's position table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from launcher.core.atomic import new_directory
from launcher.core.codec import read_json
from launcher.core.errors import RefusedError
from launcher.core.text import some_of
from launcher.recipes.load import recorded_settings
from launcher.recipes.transformer.transformer_settings import ModelConfig, TransformerSettings
from launcher.trainer.checkpoint.foreign.process import run_converter
from launcher.trainer.checkpoint.foreign.progress import Progress
from launcher.trainer.data.tokenizer import Tokenizer, load_tokenizer
from launcher.trainer.decode.beam import Search
from launcher.trainer.model.transformer import BEGIN, END, PAD, SHARED_WEIGHT, UNKNOWN, Transformer, sinusoids
from launcher.trainer.saved import CONFIG, WEIGHTS, load_model, reading, save_model
from launcher.trainer.session import model_shapes

RECORD = "tlaunch"  # entry of config.json; transformers keeps it when it saves a model again
GENERATION, SOURCE, TARGET = "generation_config.json", "source.spm", "target.spm"
VOCABULARY, TOKENIZER_CONFIG = "vocab.json", "tokenizer_config.json"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu_pytorch_tanh"}
LOGITS_BIAS, POSITIONS = "final_logits_bias", "model.decoder.embed_positions.weight"
NAMES = {
    SHARED_WEIGHT: "model.shared.weight", "source_embedding.word.weight": "model.encoder.embed_tokens.weight",
    "target_embedding.word.weight": "model.decoder.embed_tokens.weight", "head.weight": "lm_head.weight",
    "attention": "self_attn", "attention_norm": "self_attn_layer_norm",
    "cross_attention": "encoder_attn", "cross_attention_norm": "encoder_attn_layer_norm",
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj",
    "feed_forward_norm": "final_layer_norm", "expand": "fc1", "contract": "fc2",
}  # fmt: skip
CTRANSLATE2_POSITIONS = 1024  # its default limit of a source; that of a translation is 256
SHOWN = 5  # faults in a message


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer.decode.marian", description=__doc__)
    commands = parser.add_subparsers(required=True)
    to_marian = commands.add_parser("export", help="convert a model directory to a MarianMTModel")
    to_marian.add_argument(
        "--for-ctranslate2", action="store_true", help="write the layout for CTranslate2's converter"
    )
    to_own = commands.add_parser("import", help="convert a MarianMTModel to a model directory")
    return run_converter(parser, (to_marian, _export), (to_own, _import))


def _export(options: argparse.Namespace) -> None:
    write_marian(options.path, options.output, Progress(), for_ctranslate2=options.for_ctranslate2)


def _import(options: argparse.Namespace) -> None:
    read_marian(options.path, options.output, Progress())


@torch.no_grad()
def write_marian(path: Path, output: Path, progress: Progress, *, for_ctranslate2: bool = False) -> None:
    """Atomically convert the model directory `path` to a MarianMTModel. Its settings must have counterparts.

    Raises UnreadableError if a file is missing or damaged, UsageError if the settings are of another version, and
    OSError if `output` exists, or for example the disk is full.
    """
    model, settings, tokenizer = load_model(path)
    tokens, fields = token_names(tokenizer, settings.model.vocabulary_size), architecture(settings)
    weights: dict[str, Tensor] = {marian_name(name, settings.model): value for name, value in model.named_parameters()}
    if for_ctranslate2:
        fields["max_position_embeddings"] = max(fields["max_position_embeddings"], CTRANSLATE2_POSITIONS)
        weights = _with_zero_start(weights, model, fields["max_position_embeddings"])
        tokens = [unused_name(PAD), *tokens[1:], tokens[PAD]]
        fields |= dict.fromkeys(("vocab_size", "decoder_vocab_size"), len(tokens))
        fields |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), len(tokens) - 1)
    contents = {
        CONFIG: {
            **fields,
            **{name: getattr(settings.model, name) for name in ("dropout", "attention_dropout", "activation_dropout")},
            "architectures": ["MarianMTModel"],
            "dtype": str(next(iter(weights.values())).dtype).removeprefix("torch."),
            RECORD: read_json(path / CONFIG),
        },
        GENERATION: {
            **{name: number for name, number in fields.items() if name.endswith("token_id")},
            **_search(settings, [*range(END), *range(tokenizer.size, len(tokens))]),
        },
        VOCABULARY: {name: number for number, name in enumerate(tokens)},
        TOKENIZER_CONFIG: {
            "tokenizer_class": "MarianTokenizer",
            "model_max_length": settings.data.source_length,
            "pad_token": tokens[fields["pad_token_id"]],
            "unk_token": tokens[UNKNOWN],
            "eos_token": tokens[END],
            "clean_up_tokenization_spaces": False,
        },
    }
    with new_directory(output) as aside:
        for name, content in contents.items():
            (aside / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for name in (SOURCE, TARGET):
            (aside / name).write_bytes(tokenizer.serialized)
        # Not `save_file`, which lets only the owner read the file.
        (aside / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
        progress.add(sum(value.nbytes for value in weights.values()))


def _search(settings: TransformerSettings, unused: list[int]) -> dict[str, Any]:
    """Return the options of `generate` for the search of `tlaunch translate`. `unused` ids are never generated."""
    how = Search()
    return {
        "num_beams": how.beam,
        "length_penalty": how.alpha,
        "early_stopping": True,
        "max_length": settings.data.target_length + 1,  # with the start token
        "forced_eos_token_id": END,
        "suppress_tokens": unused,
    }


def _with_zero_start(weights: Mapping[str, Tensor], model: Transformer, length: int) -> dict[str, Tensor]:
    """Return the weights with a last token of zeros, and with the vector of BEGIN in a table of `length` positions."""
    tables = {NAMES[name] for name in NAMES if name.endswith(".weight")} & weights.keys()
    padded = {name: torch.cat([weights[name], weights[name].new_zeros(1, weights[name].shape[1])]) for name in tables}
    start_1D = model.target_embedding(torch.tensor([[BEGIN]]))[0]
    others_TD = sinusoids(length, start_1D.shape[1], start_1D.device)[1:].to(start_1D.dtype)
    # The last token has no probability, so those of other tokens stay the same.
    bias_1V = start_1D.new_zeros(1, len(next(iter(padded.values()))))
    bias_1V[0, -1] = -torch.inf
    return {**weights, **padded, POSITIONS: torch.cat([start_1D, others_TD]), LOGITS_BIAS: bias_1V}


def read_marian(path: Path, output: Path, progress: Progress) -> None:
    """Atomically convert a MarianMTModel that `write_marian` wrote, possibly trained further, to a model directory.

    Raises UnreadableError if a file is missing or damaged, RefusedError if the model was changed otherwise, UsageError
    if its settings are of another version, and OSError if `output` exists, or for example the disk is full.
    """
    with reading(path / CONFIG):
        config = dict(read_json(path / CONFIG))
        if RECORD not in config:
            raise RefusedError(
                f"{path / CONFIG} has no entry `{RECORD}`, so tlaunch did not export this model",
                hint="import a directory that `tlaunch ckpt export --format transformers` wrote",
            )
        recipe, facts = dict(config[RECORD]["recipe"]), dict(config[RECORD]["training"])
    settings = recorded_settings(TransformerSettings, recipe, where=str(path / CONFIG))
    with reading(path / SOURCE):
        tokenizer = load_tokenizer((path / SOURCE).read_bytes())
    with reading(path / VOCABULARY):
        ids = dict(read_json(path / VOCABULARY))
    with reading(path / WEIGHTS):
        stored = load_file(path / WEIGHTS)
    faults = [*_faults_of_config(config, settings), *_faults_of_weights(stored, settings)]
    if ids != {name: number for number, name in enumerate(token_names(tokenizer, settings.model.vocabulary_size))}:
        faults.append(f"{VOCABULARY} does not match {SOURCE}")
    if faults:
        raise RefusedError(
            f"{path} does not have the sizes and tokens that tlaunch exported: {some_of(faults, SHOWN)}",
            hint="export the model again without `--for-ctranslate2`, and change only its weights",
        )
    weights = {name: stored[marian_name(name, settings.model)] for name in model_shapes(settings)}
    save_model(output, "transformer", weights, settings, tokenizer.serialized, facts)
    progress.add(sum(value.nbytes for value in weights.values()))


def _faults_of_config(config: Mapping[str, Any], settings: TransformerSettings) -> Iterator[str]:
    for name, value in architecture(settings).items():
        if config.get(name, value) != value:  # transformers leaves out some defaults
            yield f"{name} is {config[name]} instead of {value}"


def _faults_of_weights(stored: Mapping[str, Tensor], settings: TransformerSettings) -> Iterator[str]:
    shapes = {marian_name(name, settings.model): shape for name, shape in model_shapes(settings).items()}
    for name, shape in shapes.items():
        if name not in stored:
            yield f"{name} is missing"
        elif tuple(stored[name].shape) != shape:
            yield f"{name} has the shape {list(stored[name].shape)} instead of {list(shape)}"
    for name in stored.keys() - shapes.keys() - {LOGITS_BIAS}:
        yield f"{name} is unknown"
    if LOGITS_BIAS in stored and stored[LOGITS_BIAS].any():
        yield f"{LOGITS_BIAS} is not zero"


def architecture(settings: TransformerSettings) -> dict[str, Any]:
    """Return the fields of MarianConfig that determine what a model computes."""
    model = settings.model
    sizes = {
        f"{side}_{name}": value
        for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers))
        for name, value in (
            ("layers", layers), ("ffn_dim", model.feed_forward_dim), ("attention_heads", model.heads)
        )
    }  # fmt: skip
    return {
        "model_type": "marian",
        "d_model": model.d_model,
        **sizes,
        "activation_function": ACTIVATIONS[model.activation],
        "scale_embedding": model.scale_embedding,
        "share_encoder_decoder_embeddings": model.share == "all",
        "tie_word_embeddings": model.share != "none",
        "vocab_size": model.vocabulary_size,
        "decoder_vocab_size": model.vocabulary_size,
        "max_position_embeddings": max(settings.data.source_length, settings.data.target_length),
        "pad_token_id": PAD,
        "decoder_start_token_id": BEGIN,
        "eos_token_id": END,
    }


def marian_name(name: str, model: ModelConfig) -> str:
    """Return the name of a parameter in MarianMTModel.

    >>> marian_name("decoder.0.cross_attention.query.weight", ModelConfig())
    'model.decoder.layers.0.encoder_attn.q_proj.weight'
    """
    if name == SHARED_WEIGHT and model.share == "decoder":
        return NAMES["target_embedding.word.weight"]
    if name in NAMES:
        return NAMES[name]
    side, layer, *parts = name.split(".")
    return ".".join(
        ("model", side, "layers", layer, *(NAMES.get(part, part) for part in parts if part != "feed_forward"))
    )


def token_names(tokenizer: Tokenizer, count: int) -> list[str]:
    """Return the names of `count` token ids. Ids that the tokenizer does not use have invented names."""
    return [*tokenizer.pieces, *map(unused_name, range(tokenizer.size, count))]


def unused_name(number: int) -> str:
    return f"<unused-token-id-{number}>"  # longer than any piece of the tokenizer


if __name__ == "__main__":
    sys.exit(main())
