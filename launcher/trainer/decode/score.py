"""BLEU and chrF with sacrebleu (Post 2018, arXiv:1804.08771), including signatures."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen

PACKAGES = ("sacrebleu", "sacremoses")


@frozen
class Score:
    score: float
    signature: str  # sacrebleu's description of how it was computed


@frozen
class Scores:
    bleu: Score
    bleu_tokenized: Score
    chrf: Score


def check_installed(packages: Sequence[str] = PACKAGES) -> None:
    """Raise an UnreadableError if a package for scoring is not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UnreadableError(
            f"{', '.join(missing)} must be installed to compute scores",
            hint="run `pip install '.[train]'` in the checkout of tlaunch",
        )


def bleu(hypotheses: Sequence[str], references: Sequence[str], **options: Any) -> Score:
    """Compute BLEU on detokenized text with sacrebleu's mteval-v13a tokenization. It is case-sensitive by default."""
    return _score("BLEU", hypotheses, references, **options)


def _score(metric_name: str, hypotheses: Sequence[str], references: Sequence[str], **options: Any) -> Score:
    from sacrebleu import metrics  # noqa: PLC0415 - slow to import

    metric = getattr(metrics, metric_name)(**options)
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(found.score, str(metric.get_signature()))


def all_scores(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Scores:
    """Return the scores of translations into `language`, a code such as "fr".

    `bleu_tokenized` is BLEU as in papers that prepare text with Moses scripts and use multi-bleu.perl -lc. Both sides
    pass through sacremoses' normalize-punctuation and tokenizer, without escapes, and are lower-cased. BLEU is computed
    without smoothing.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # noqa: PLC0415 - as above

    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    prepared = [
        [tokenizer.tokenize(normalizer.normalize(line), escape=False, return_str=True) for line in lines]
        for lines in (hypotheses, references)
    ]
    tokenized = bleu(*prepared, tokenize="none", lowercase=True, smooth_method="none", force=True)
    how = f"sacremoses {version('sacremoses')}: normalized punctuation, tokenized as {language}, not escaped"
    return Scores(
        bleu=bleu(hypotheses, references),
        bleu_tokenized=Score(tokenized.score, f"{tokenized.signature} ({how})"),
        chrf=_score("CHRF", hypotheses, references),
    )
