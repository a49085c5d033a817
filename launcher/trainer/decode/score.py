"""BLEU and chrF by sacrebleu (Post 2018, arXiv:1804.08771), whose signatures say how they were computed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen

PACKAGES = ("sacrebleu", "sacremoses")


@frozen
class Score:
    score: float
    signature: str  # how it was computed


@frozen
class Scores:
    bleu: Score
    bleu_tokenized: Score
    chrf: Score


def check_installed(packages: Sequence[str] = PACKAGES) -> None:
    """Find out before much is translated whether it can be scored.

    Raises:
        UnreadableError: a package is not installed.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UnreadableError(
            f"{', '.join(missing)}: not installed, but scores are computed by it",
            hint="pip install '.[train]' in the checkout of tlaunch",
        )


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Return the BLEU that sacrebleu computes by default: of text as people write it, cased, tokenized as mteval-v13a does."""
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 - slow to import

    metric = BLEU()
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(found.score, str(metric.get_signature()))


def all_scores(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Scores:
    """Return the scores of translations into `language`, a code such as "fr"."""
    from sacrebleu.metrics.chrf import CHRF  # noqa: PLC0415 - as above

    chrf = CHRF()
    of_characters = chrf.corpus_score(list(hypotheses), [list(references)]).score
    return Scores(
        bleu=bleu(hypotheses, references),
        bleu_tokenized=_bleu_tokenized(hypotheses, references, language),
        chrf=Score(of_characters, str(chrf.get_signature())),
    )


def _bleu_tokenized(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Return BLEU as papers compute it that prepare their text by Moses's scripts and score it by multi-bleu.perl -lc.

    Both sides go through normalize-punctuation, tokenizer and lower-casing as sacremoses has them, without escapes; BLEU is that
    of their words, without smoothing.
    """
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 - as above
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # noqa: PLC0415 - as above

    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    def prepared(lines: Sequence[str]) -> list[str]:
        return [tokenizer.tokenize(normalizer.normalize(line), escape=False, return_str=True) for line in lines]

    metric = BLEU(tokenize="none", lowercase=True, smooth_method="none", force=True)
    found = metric.corpus_score(prepared(hypotheses), [prepared(references)])
    how = f"sacremoses {version('sacremoses')}: normalized punctuation, tokenized as {language}, not escaped"
    return Score(found.score, f"{metric.get_signature()} ({how})")
