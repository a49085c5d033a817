"""Batched beam search, with results independent of the batch. A beam of one is greedy search.

A hypothesis y of n tokens, including END, has the score of fairseq (Ott et al. 2019) and Marian (Junczys-Dowmunt et al.
2018),

    score(y) = log p(y) / n^alpha                    alpha = 0: no normalisation; 1: the mean log-probability of a token

A sentence has at most W hypotheses. As in fairseq, each step considers their 2 W most likely continuations. Among the
first W, continuations with END are finished. The first W of the other continuations stay alive. A sentence is done

    when W hypotheses are finished;
    when no live hypothesis can beat the best score: log p only decreases, so the bound is log p / limit^alpha;
    or when its hypotheses reach the length limit, and END is appended to each.

Finished sentences leave the batch once they are the fraction DONE_SHARE of it.

Shapes: B sentences, Q hypotheses of each (one in the first step, then W), W the beam, C = 2 W continuations, T tokens
of a hypothesis so far, S source tokens, D model width, V vocabulary; N or R hypotheses of any sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.trainer.decode.cache import CachedDecoder
from launcher.trainer.model.transformer import BEGIN, END
from launcher.trainer.telemetry.heartbeat import getting_on

DONE_SHARE = 0.25  # keeping finished sentences for a while costs less than frequent copies of the others
CPU_ROWS = 64  # hypotheses whose logits are computed together on a CPU
BLOCK = 128  # tokens of the vocabulary per block in `largest`


@frozen
class Search:
    beam: int = 5  # hypotheses per sentence
    alpha: float = 1.0  # exponent of the length normalisation


@frozen
class Hypothesis:
    ids: tuple[int, ...]  # without BEGIN and END
    score: float


@torch.inference_mode()
def search(
    decoder: CachedDecoder, source_BS: Tensor, limits: Sequence[int], how: Search, vocabulary: int
) -> list[Hypothesis]:
    """Return the best finished hypothesis (translation) of each sentence.

    `limits` are the maximum tokens of each hypothesis, including END, at least two. `vocabulary` is the number of ids
    in use. END is the only mark that is generated; the ids of other marks are lower.
    """
    decoder.begin(source_BS, slots=how.beam)
    live = _Live(limits, how, source_BS.device)
    found: dict[int, Hypothesis] = {}
    while len(live.sentence_B):
        decoded_BQD = decoder.step(live.last_BQ, live.ancestor_BQT)
        live.go_on(*continuations(decoder, decoded_BQD, min(2 * how.beam, vocabulary - END), vocabulary))
        done = live.done_B.tolist()
        if sum(done) >= DONE_SHARE * len(done):
            found |= live.best_of_done()
            kept_B = (~live.done_B).nonzero()[:, 0]
            live.keep(kept_B)
            if len(kept_B):
                decoder.keep(kept_B)
        getting_on()
    return [found[sentence] for sentence in range(len(limits))]


class _Live:
    def __init__(self, limits: Sequence[int], how: Search, device: torch.device) -> None:
        self._beam, self._alpha = how.beam, how.alpha
        count = len(limits)
        self.sentence_B = torch.arange(count, device=device)  # positions in the full batch
        self.limit_B = torch.tensor(limits, device=device)
        self.ids_BQT = torch.full((count, 1, 1), BEGIN, device=device)
        self.ancestor_BQT = torch.zeros((count, 1, 1), dtype=torch.long, device=device)
        self.log_p_BQ: Tensor | None = None  # created with the dtype of the first logits
        self.done_B = torch.zeros(count, dtype=torch.bool, device=device)
        self.finished_B = torch.zeros(count, dtype=torch.long, device=device)  # number of finished hypotheses
        self.best_B = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)  # their best score
        self.best_BT = torch.full((count, max(limits)), END, device=device)  # the ids of the best one, padded with END

    @property
    def last_BQ(self) -> Tensor:
        return self.ids_BQT[:, :, -1]

    def go_on(self, end_BQ: Tensor, log_p_BQC: Tensor, id_BQC: Tensor) -> None:
        """Advance the search by one step. The arguments are the results of `continuations`."""
        if self.log_p_BQ is None:
            self.log_p_BQ = torch.zeros_like(end_BQ)
        at_limit_B = self.limit_B == self.ids_BQT.shape[2]
        if bool(at_limit_B.any()):
            ending_BQ = self.log_p_BQ + end_BQ
            self._finish(ending_BQ, None, at_limit_B[:, None].expand_as(ending_BQ))
            self.done_B = self.done_B | at_limit_B
        whole_BN = (self.log_p_BQ[..., None] + log_p_BQC).flatten(start_dim=1)
        log_p_BC, place_BC = whole_BN.topk(min(2 * self._beam, whole_BN.shape[1]))
        id_BC = id_BQC.flatten(start_dim=1).gather(1, place_BC)
        parent_BC = place_BC // id_BQC.shape[2]
        ends_BC = id_BC == END
        among_first = slice(None), slice(self._beam)
        self._finish(log_p_BC[among_first], parent_BC[among_first], ends_BC[among_first])
        self._live_on(log_p_BC, id_BC, parent_BC, ends_BC)
        bound_B = self.log_p_BQ[:, 0].double() / self.limit_B.double() ** self._alpha
        self.done_B = self.done_B | (self.finished_B >= self._beam) | (self.best_B >= bound_B)

    def _finish(self, log_p_BW: Tensor, parent_BW: Tensor | None, ends_BW: Tensor) -> None:
        """Finish each hypothesis with True in `ends_BW`. `parent_BW` has the hypotheses' indices (None for all)."""
        length = self.ids_BQT.shape[2]
        ends_BW = ends_BW & ~self.done_B[:, None] & log_p_BW.isfinite()
        score_BW = (log_p_BW.double() / length**self._alpha).where(ends_BW, -torch.inf)
        score_B, place_B = score_BW.max(dim=1)
        if parent_BW is not None:
            place_B = parent_BW.gather(1, place_B[:, None])[:, 0]
        better_B = score_B > self.best_B
        ids_BT = self.ids_BQT[torch.arange(len(place_B), device=place_B.device), place_B, 1:]
        self.best_BT[better_B, : length - 1] = ids_BT[better_B]
        self.best_B = score_B.where(better_B, self.best_B)
        self.finished_B = self.finished_B + ends_BW.sum(dim=1)

    def _live_on(self, log_p_BC: Tensor, id_BC: Tensor, parent_BC: Tensor, ends_BC: Tensor) -> None:
        """Keep at most `beam` hypotheses for the next step: the most likely continuations that do not end."""
        chosen_BW = ends_BC.to(torch.int8).argsort(dim=1, stable=True)[:, : self._beam]
        ended_BW = ends_BC.gather(1, chosen_BW)  # if fewer than W others are left
        self.log_p_BQ = log_p_BC.gather(1, chosen_BW).masked_fill(ended_BW, -torch.inf)
        parent_BW1 = parent_BC.gather(1, chosen_BW)[..., None]
        width = chosen_BW.shape[1]
        slot_BW1 = torch.arange(width, device=chosen_BW.device)[:, None].expand(len(chosen_BW), -1, -1)
        next_BW1 = id_BC.gather(1, chosen_BW)[..., None]
        self.ids_BQT = torch.cat([_of_parents(self.ids_BQT, parent_BW1), next_BW1], dim=2)
        self.ancestor_BQT = torch.cat([_of_parents(self.ancestor_BQT, parent_BW1), slot_BW1], dim=2)

    def best_of_done(self) -> dict[int, Hypothesis]:
        """Return the best hypothesis of each finished sentence, by the sentence's position in the full batch."""
        done_B = self.done_B.nonzero()[:, 0]
        kept = (value[done_B].tolist() for value in (self.sentence_B, self.best_BT, self.best_B))
        return {
            place: Hypothesis(tuple(takewhile(lambda token: token != END, ids)), score)
            for place, ids, score in zip(*kept, strict=True)
        }

    def keep(self, kept_B: Tensor) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[kept_B])


def continuations(
    decoder: CachedDecoder, decoded_BQD: Tensor, count: int, vocabulary: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probability of END (BQ), and the log-probabilities and ids of the C likeliest tokens (BQC).

    On a CPU, logits are computed for a few hypotheses at a time, so that they stay in the cache.
    """
    parts = []
    hidden_ND = decoded_BQD.flatten(0, 1)
    for some_RD in hidden_ND.split(CPU_ROWS if hidden_ND.device.type == "cpu" else len(hidden_ND)):
        logits_RV = decoder.project(some_RD)
        logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        logit_RC, place_RC = largest(logits_RV[:, END:vocabulary], count)
        end_R1 = logits_RV[:, END, None].clone()
        most_R1 = logits_RV.amax(dim=1, keepdim=True)
        whole_R1 = most_R1 + logits_RV.sub_(most_R1).exp_().sum(dim=1, keepdim=True).log_()
        parts.append(((end_R1 - whole_R1)[:, 0], logit_RC - whole_R1, place_RC + END))
    end_N, log_p_NC, id_NC = (torch.cat(each) for each in zip(*parts, strict=True))
    shape = decoded_BQD.shape[:2]
    return end_N.view(shape), log_p_NC.unflatten(0, shape), id_NC.unflatten(0, shape)


def largest(values_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row in descending order, and their positions. Faster than `topk`.

    Only the `count` blocks with the largest maxima, and the rest after the last complete block, can contain them.
    """
    blocks = values_NV.shape[1] // BLOCK
    if blocks < 2 * count:
        return values_NV.topk(count)
    block_NML = values_NV[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    place_NC = block_NML.amax(dim=2).topk(count).indices
    chosen_NCL = block_NML.gather(1, place_NC[..., None].expand(-1, -1, BLOCK))
    some_NI = torch.cat([chosen_NCL.flatten(start_dim=1), values_NV[:, blocks * BLOCK :]], dim=1)
    found_NC, at_NC = some_NI.topk(count)
    of_block_NC = place_NC.gather(1, (at_NC // BLOCK).clamp(max=count - 1)) * BLOCK + at_NC % BLOCK
    return found_NC, of_block_NC.where(at_NC < count * BLOCK, at_NC + (blocks - count) * BLOCK)


def _of_parents(value_BQT: Tensor, parent_BW1: Tensor) -> Tensor:
    return value_BQT.gather(1, parent_BW1.expand(-1, -1, value_BQT.shape[2]))
