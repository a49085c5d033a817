"""Open a corpus: from text on disk to token ids on every rank, with one shared tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.resources import at_home, cache_dir
from launcher.core.text import counted
from launcher.corpus.corpus_files import direction_of
from launcher.corpus.dataset import PairText, Splits, find_splits, is_empty, no_filled_pairs
from launcher.corpus.sample import cached_sample
from launcher.corpus.text_digest import Text, read_text
from launcher.recipes.transformer.tokenizer_file import check_tokenizer
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.token_cache import find_tokens, tokens_name, write_tokens
from launcher.trainer.data.tokenizer import Tokenizer, obtain_tokenizer
from launcher.trainer.data.tokens import Integers, StoredTokens, TokenizedPairs
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import getting_on

HELD_OUT = 20  # without a validation split, one in this many training pairs is held out ...
HELD_OUT_AT_MOST = 1000  # ... up to this number
MAX_TOKENIZER_PAIRS = 500_000  # used to train the tokenizer; more cost memory and minutes, and change little
PAIRS_BETWEEN_SIGNS = 10_000  # between heartbeats

Pair = tuple[str, str]
GivenTokenizer = Callable[[], Path | None]  # None: use `data.tokenizer`, or train one


@frozen
class Corpus:
    train: TokenizedPairs
    valid: TokenizedPairs
    target_counts: Integers  # occurrences of each id in the full targets of `train`
    showcase: list[Pair]  # sentences whose translations are shown, with references
    tokenizer: Tokenizer
    digest: str  # of the training text
    origin: str  # description of the source of the data, one line
    remarks: list[str]  # lines about left-out pairs, truncated pairs, and a vocabulary that is far too large


def open_corpus(
    settings: TransformerSettings,
    world: World,
    data: Sequence[Path],
    given_tokenizer: GivenTokenizer = lambda: None,
    *,
    keeps_vocabulary: bool = False,
) -> Corpus:
    """Open the corpus at `data` (see `find_splits`), or the built-in sample if it is empty. All ranks must call it.

    One rank per server creates missing files. On rank 0, `given_tokenizer` returns the file of a tokenizer to use.
    `keeps_vocabulary`: the model exists already, so its vocabulary size cannot change.

    Raises:
        UnreadableError: files are missing or malformed.
        UsageError: there are too few pairs for a batch, or no tokenizer fits the vocabulary size.
    """
    if not data:
        world.while_others_wait(cached_sample if _makes_files(world) else None)
    splits = find_splits(data or [cached_sample()], settings.data.languages)
    pair_texts = [text for text in (splits.train, splits.valid) if text is not None]
    stored, tokenizer, kept_at, digest = _obtain(settings, world, splits, pair_texts, given_tokenizer)
    pairs, target_counts = stored[0].pairs(settings.data), np.array(stored[0].index.target_counts)
    if splits.valid is not None:
        train, valid = pairs, stored[1].pairs(settings.data).in_memory()
    else:
        train_count = len(pairs) - held_out(len(pairs))
        train, valid = pairs[:train_count], pairs[train_count:].in_memory()
        target_counts -= valid.uncut().target_counts(len(target_counts))
    batch_size = settings.train.batch_size
    if not settings.train.batch_tokens and len(train) < batch_size:
        raise UsageError(
            f"{splits.train}: {len(train)} training pairs do not fill one batch of {batch_size}",
            hint=f"use `--set train.batch_size={len(train)}`, or more pairs",
        )
    remarks = _remarks(pair_texts, stored, train, tokenizer, settings, keeps_vocabulary=keeps_vocabulary)
    return Corpus(
        train=train,
        valid=valid,
        target_counts=target_counts,
        showcase=_showcase(splits.test, valid, tokenizer, settings),
        tokenizer=tokenizer,
        digest=digest,
        origin=f"{splits.train}, {direction_of(splits.languages)}, "
        f"{len(train)} training and {len(valid)} validation pairs, tokenizer {kept_at}",
        remarks=list(remarks) if world.is_first else [],
    )


def _makes_files(world: World) -> bool:
    """Return True if this rank creates missing files for its server."""
    return world.place.local_rank == 0 or world.is_first


def _obtain(
    settings: TransformerSettings,
    world: World,
    splits: Splits,
    pair_texts: list[PairText],
    given_tokenizer: GivenTokenizer,
) -> tuple[list[StoredTokens], Tokenizer, Path, str]:
    """Return the token ids of the texts, the tokenizer with its path, and the digest of the first text."""
    makes_files, normalise = _makes_files(world), settings.data.normalise

    # 1. All servers must have the same text. One rank per server reads it.
    texts: list[Text] = []
    world.while_others_wait((lambda: texts.extend(map(read_text, pair_texts))) if makes_files else None)
    found = " ".join(text.digest for text in texts).encode() if makes_files else None
    digests = world.check_equal(found, f"the text of {splits.train}").decode().split()

    # 2. The tokenizer, from rank 0.
    tokenizer, kept_at = shared_tokenizer(settings, world, splits, digests[0], given_tokenizer)

    # 3. Token ids, once per server.
    def write() -> None:
        for text in texts:
            write_tokens(text, tokenizer, normalise=normalise)

    world.while_others_wait(write if makes_files else None)
    stored = []
    for name in (tokens_name(digest, tokenizer, normalise=normalise) for digest in digests):
        if (found_tokens := find_tokens(name)) is None:
            raise UnreadableError(
                f"{cache_dir() / name}: this rank cannot find the token ids from the server's first rank",
                hint="give all ranks of a server the same TLAUNCH_CACHE_DIR",
            )
        stored.append(found_tokens)
    return stored, tokenizer, kept_at, digests[0]


def held_out(pair_count: int) -> int:
    """Return the number of pairs to hold out for validation, from the end of a corpus without a validation split."""
    return min(max(1, pair_count // HELD_OUT), HELD_OUT_AT_MOST)


def training_sentences(text: PairText, *, holds_out: bool, normalise: bool = True) -> Iterator[str]:
    """Return the sentences to train the tokenizer on: both sides of all pairs, or of a sample if the corpus is large.

    Reads the text twice, the first time immediately.

    Raises:
        UnreadableError: it is malformed or has no pairs.
        UsageError: its only pair is held out for validation.
    """
    pair_count = sum(1 for _ in _filled_pairs(text, normalise=normalise))
    if not pair_count:
        raise no_filled_pairs(text)
    pair_count -= held_out(pair_count) if holds_out else 0
    if not pair_count:
        raise UsageError(
            f"{text}: the only sentence pair is held out for validation, so no training data is left",
            hint="add pairs, or create a validation file with `tlaunch data preprocess --split valid`",
        )
    step = -(-pair_count // MAX_TOKENIZER_PAIRS)
    if step > 1:
        print(f"the tokenizer is trained on one pair in {step} of the {pair_count:,} of {text}", flush=True)
    pairs = _filled_pairs(text, normalise=normalise)
    return (sentence for pair in islice(pairs, 0, pair_count, step) for sentence in pair)


def _filled_pairs(text: PairText, *, normalise: bool) -> Iterator[Pair]:
    """Yield the sentence pairs of a text, except pairs with an empty side."""
    with closing(text.read(normalise=normalise)) as pairs:
        for number, pair in enumerate(pairs):
            if number % PAIRS_BETWEEN_SIGNS == 0:
                getting_on()
            if not is_empty(pair):
                yield pair


def shared_tokenizer(
    settings: TransformerSettings,
    world: World,
    splits: Splits,
    digest: str,
    given_tokenizer: GivenTokenizer = lambda: None,
) -> tuple[Tokenizer, Path]:
    """Read or train the tokenizer on rank 0, and return it on all ranks. The returned path is valid only on rank 0."""
    holds_out, normalise = splits.valid is None, settings.data.normalise
    serialized, kept_at = b"", Path()

    def obtain() -> None:
        nonlocal serialized, kept_at
        given = given_tokenizer()
        if given is None and settings.data.tokenizer:
            given = Path(at_home(settings.data.tokenizer))
        if given is not None:
            check_tokenizer(given, settings.model.vocabulary_size)
            serialized, kept_at = given.read_bytes(), given
            return
        serialized, kept_at = obtain_tokenizer(
            lambda: training_sentences(splits.train, holds_out=holds_out, normalise=normalise),
            digest=f"{digest}/{holds_out}/{MAX_TOKENIZER_PAIRS}" + "/normalised" * normalise,
            vocabulary_size=settings.model.vocabulary_size,
        )

    world.while_others_wait(obtain if world.is_first else None)
    return Tokenizer(world.from_rank_0(lambda: serialized)), kept_at


def _showcase(
    test: PairText | None, valid: TokenizedPairs, tokenizer: Tokenizer, settings: TransformerSettings
) -> list[Pair]:
    count = settings.train.translations
    if test is not None:
        return list(islice(_filled_pairs(test, normalise=settings.data.normalise), count))
    return [(tokenizer.decode(pair.source), tokenizer.decode(pair.target)) for pair in valid[:count].uncut()]


def _remarks(
    pair_texts: list[PairText],
    stored: list[StoredTokens],
    train: TokenizedPairs,
    tokenizer: Tokenizer,
    settings: TransformerSettings,
    *,
    keeps_vocabulary: bool,
) -> Iterator[str]:
    for text, tokens in zip(pair_texts, stored, strict=True):
        if empty := tokens.index.empty_count:
            line = tokens.index.first_empty_line
            are = "is" if empty == 1 else "are"
            yield f"{text}: {counted(empty, 'pair')} {are} left out because one side is empty; the first is in line {line}"
    if cut := sum(chunk.cut_count() for chunk in train.in_chunks()):
        yield (
            f"{cut} of {len(train)} training pairs {'is' if cut == 1 else 'are'} cut to data.source_length = {settings.data.source_length} and "
            f"data.target_length = {settings.data.target_length} tokens"
        )
    is_given = keeps_vocabulary or settings.data.tokenizer
    if not is_given and 2 * tokenizer.size <= (rows := settings.model.vocabulary_size):
        yield (
            f"warning: model.vocabulary_size = {rows}, but the text has only {tokenizer.size} different tokens, so the other "
            f"rows are never trained; use --set model.vocabulary_size={tokenizer.size}"
        )
