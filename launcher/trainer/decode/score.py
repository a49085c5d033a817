"""BLEU and chrF with sacrebleu (Post 2018, arXiv:1804.08771), including signatures."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen

PACKAGES = ("sacrebleu", "sacremoses")
# As `sacrebleu --language-pair` chooses them. MeCab needs the package in the second column; without it, `char` is used.
TOKENIZATIONS = {"zh": ("zh", "sacrebleu"), "ja": ("ja-mecab", "MeCab"), "ko": ("ko-mecab", "mecab_ko")}


@frozen
class Score:
    score: float
    signature: str  # sacrebleu's description of how it was computed


@frozen
class Scores:
    bleu: Score
    bleu_tokenized: Score | None  # None if Moses has no rules for the language
    chrf: Score
    notes: tuple[str, ...] = ()


def check_installed(packages: Sequence[str] = PACKAGES) -> None:
    """Raise an UnreadableError if a package for scoring is not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UnreadableError(
            f"{', '.join(missing)} must be installed to compute scores",
            hint="run `pip install '.[train]'` in the checkout of tlaunch",
        )


def tokenization(language: str) -> tuple[str, str | None]:
    """Return sacrebleu's tokenization for a target language, and a note if a missing package changes it."""
    primary = language.partition("-")[0].lower()
    name, package = TOKENIZATIONS.get(primary, ("13a", "sacrebleu"))
    if find_spec(package) is not None:
        return name, None
    return "char", f"BLEU compares characters: sacrebleu's {name} needs `pip install 'sacrebleu[{primary}]'`"


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", **options: Any) -> Score:
    """Compute BLEU on detokenized text with a tokenization of sacrebleu. It is case-sensitive by default."""
    return _score("BLEU", hypotheses, references, tokenize=tokenize, **options)


def _score(metric_name: str, hypotheses: Sequence[str], references: Sequence[str], **options: Any) -> Score:
    from sacrebleu import metrics  # noqa: PLC0415 - slow to import

    metric = getattr(metrics, metric_name)(**options)
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(found.score, str(metric.get_signature()))


def all_scores(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Scores:
    """Return the scores of translations into `language`, a code such as "fr". It may be empty."""
    tokenize, note = tokenization(language)
    if not language:
        note = "the model's target language is unknown; to choose BLEU's tokenization, add --target-language CODE"
    return Scores(
        bleu=bleu(hypotheses, references, tokenize=tokenize),
        bleu_tokenized=_moses_bleu(hypotheses, references, language) if tokenize == "13a" else None,
        chrf=_score("CHRF", hypotheses, references),
        notes=() if note is None else (note,),
    )


def _moses_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score | None:
    """Return BLEU as in papers that prepare text with Moses scripts and use multi-bleu.perl -lc.

    Both sides pass through sacremoses' normalize-punctuation and tokenizer, without escapes, and are lower-cased. BLEU
    is computed without smoothing. Return None if Moses has no rules for the language.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # noqa: PLC0415 - as above
    from sacremoses.corpus import NonbreakingPrefixes  # noqa: PLC0415 - as above

    language = language.partition("-")[0].lower()
    if language not in NonbreakingPrefixes().available_langs:
        return None
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    prepared = [
        [tokenizer.tokenize(normalizer.normalize(line), escape=False, return_str=True) for line in lines]
        for lines in (hypotheses, references)
    ]
    tokenized = bleu(*prepared, tokenize="none", lowercase=True, smooth_method="none", force=True)
    how = f"sacremoses {version('sacremoses')}: normalized punctuation, tokenized as {language}, not escaped"
    return Score(tokenized.score, f"{tokenized.signature} ({how})")
