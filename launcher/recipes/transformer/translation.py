"""The protocol between the launcher and a process that translates: questions and answers, an object of JSON a line.

The first line of the process is a `Ready`, once the model is loaded. Then each line that it gets has one in answer: of `Sentences`
it is `Translations`, of a `Scoring` it is `Scores`. Lines without ANSWER_MARK are those of some package that it imports.
"""

from __future__ import annotations

from launcher.core.frozen import frozen

PROGRAM = "transformer"  # the recipe whose models translate
MODULE = "launcher.trainer.decode"
ANSWER_MARK = "answer: "
MAX_SENTENCES = 512  # of a request: some hundred that are sorted by length fill batches without much padding


@frozen
class Ready:
    direction: str
    device: str
    source_length: int  # tokens that the model reads of a sentence, END included


@frozen
class Sentences:
    sentences: tuple[str, ...]


@frozen
class Translations:
    translations: tuple[str, ...]
    cut_tokens: tuple[int, ...]  # of each sentence, beyond what the model reads


@frozen
class Scoring:
    hypotheses: tuple[str, ...]
    references: tuple[str, ...]


@frozen
class Score:
    score: float
    signature: str  # how it was computed


@frozen
class Scores:
    bleu: Score
    bleu_tokenized: Score
    chrf: Score


Request = Sentences | Scoring
Answer = Ready | Translations | Scores
