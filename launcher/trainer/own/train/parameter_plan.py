"""Decides which rank holds which parameter of a network of one's own, and makes this rank's part of it.

pipeline          a stage holds the parameters that its part of the network computes with (`graphs.py`)
model parallel    layers are cut as those of the bundled Transformer (`trainer/plan.py`), tables of words by rows unless
                  `vocab_emb_dp`; all else is whole on every rank, which computes the same with it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.core.text import some_of
from launcher.mesh.stages import Stage
from launcher.recipes.transformer.cost import pipeline_stages
from launcher.recipes.transformer.transformer_settings import DataConfig, ModelConfig, TransformerSettings
from launcher.trainer.own.train.layers import Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.own.train.network_settings import NetworkSettings
from launcher.trainer.own.train.parallel_modules import VocabEmbedding
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.styles import BLOCK, VOCABULARY_ROWS, Style, part_bounds
from launcher.trainer.plan import LAYER_PLAN

Names = Sequence[str]
MAX_NAMES = 8  # of parameters in a message


@frozen
class NetworkPlan:
    """The knowledge of a whole network before it is divided."""

    parameters: Mapping[str, nn.Parameter]  # whole, in the network's order, each by the first of its names
    dims: Mapping[str, int]  # along which model-parallel ranks cut a parameter, if they do
    styles: Sequence[tuple[nn.Module, Style]]  # of the modules that are cut, or that communicate for these
    held: Sequence[frozenset[str]]  # the parameters on each pipeline stage
    shared: str | None  # the one that the first and the last stage both compute with; the first owns it

    def owned(self, stage: int) -> list[str]:
        """Return the parameters that a stage holds and no stage before it does."""
        copies = {self.shared} if stage > 0 else set()
        return [name for name in self.parameters if name in self.held[stage] and name not in copies]

    def placements(self, names: Names, model_parallel: Group) -> dict[str, Placement]:
        """Return which part of each of these parameters a model-parallel rank holds."""
        found = {}
        for name in names:
            shape, dim = self.parameters[name].shape, self.dims.get(name)
            if dim is None:
                found[name] = Placement.uncut(shape, model_parallel)
            else:
                found[name] = Placement.cut(shape, dim, *part_bounds(shape[dim], model_parallel))
        return found


def plan_network(
    network: nn.Module, parts: Sequence[nn.Module], stages: Sequence[Stage], mp: int, *, is_traced: bool
) -> NetworkPlan:
    """Return the plan of a network on `mp` model-parallel ranks, of which `parts` are what each pipeline stage computes.

    The parts have the network's own modules. Of one that `is_traced` they have those alone that are used.

    Raises:
        UsageError: a parameter is not used.
        RefusedLayoutError: the network cannot be cut so.
    """
    parameters = dict(network.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    styles = list(_styles(network)) if mp > 1 else []
    owners = Counter(id(each) for module in network.modules() for each in module.parameters(recurse=False))
    dims = {}
    for module, style in styles:
        for own, dim in style.dims.items():
            parameter = module.get_parameter(own)
            name = names[id(parameter)]
            if owners[id(parameter)] > 1:
                raise RefusedLayoutError(
                    f"mp = {mp}, and {name}, which model-parallel ranks cut, is a parameter of another module, too",
                    hint="vocab_emb_dp = True for a table: every rank has the whole one",
                )
            dims[name] = dim
    if mp > 1:
        _check_model_parallel(network, mp)
    held = [frozenset(names[each] for each in _held(part, stage)) for part, stage in zip(parts, stages, strict=True)]
    if is_traced and (unused := [name for name in parameters if not any(name in each for each in held)]):
        raise UsageError(f"{unused[0]} is not used when the network is called", hint="leave it out of the network")
    if not held[0]:
        raise RefusedLayoutError(
            f"pp = {len(held)}, and the first stage has no parameter: its layers are all on later stages, and nothing before them "
            "is trained",
            hint="another lambda_func, or none: cut by cost",
        )
    _check_own_stages(network, held)
    transformers = [module for module in network.modules() if isinstance(module, Transformer)]
    of_layers = {names[id(parameter)] for module in transformers for parameter in module.parameters()}
    return NetworkPlan(parameters, dims, styles, held, _shared(held, parameters, of_layers))


def apply_plan(
    part: nn.Module,
    plan: NetworkPlan,
    stage: Stage,
    model_parallel: Group,
    whole: Callable[[nn.Parameter], Tensor],
    *,
    device: torch.device,
) -> dict[str, nn.Parameter]:
    """Turn what a pipeline stage computes into this rank's part of it; return its parameters, in the network's order.

    `whole` gives the initial value of a parameter; it is asked for each of the network in turn, on every rank.
    """
    modules = list(part.modules())
    for module in modules if stage.count > 1 else ():
        if isinstance(module, Transformer):
            module.keep(stage)
    here = {id(module) for module in modules}
    for module, style in plan.styles:
        if id(module) in here:
            style.rebuild(module, model_parallel)
    held = [name for name in plan.parameters if name in plan.held[stage.index]]
    placed = plan.placements(held, model_parallel)
    found: dict[str, nn.Parameter] = {}
    made: dict[int, nn.Parameter] = {}
    for name, parameter in plan.parameters.items():
        value = whole(parameter)
        if name in placed:
            own = placed[name].part_of(value).to(device).clone(memory_format=torch.contiguous_format)
            found[name] = made[id(parameter)] = nn.Parameter(own)
    for module in part.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, made[id(parameter)])
    return found


def stages_of_network(network: nn.Module, settings: NetworkSettings, pp: int) -> tuple[Stage, ...]:
    """Return the stages of the network's Transformer, as `parallel.stages` has them, else cut by cost.

    Raises:
        RefusedLayoutError: there are fewer parts than stages.
    """
    transformer = next((module for module in network.modules() if isinstance(module, Transformer)), None)
    if pp == 1 or transformer is None:  # which is refused elsewhere, if there are several stages
        none = range(0)
        return tuple(Stage(index, pp, none, none, closes_encoder=False) for index in range(pp))
    within = {id(parameter) for parameter in transformer.parameters()}
    matrices = [each for each in network.parameters() if id(each) not in within and each.dim() > 1]
    config = transformer.encoder.config
    model = ModelConfig(
        # Of the head, as far as the largest matrix beside the Transformer tells.
        vocabulary_size=max([each.numel() // config.d_model for each in matrices], default=1) or 1,
        d_model=config.d_model,
        heads=config.heads,
        feed_forward_dim=config.feed_forward_dim,
        encoder_layers=transformer.encoder_layers,
        decoder_layers=transformer.decoder_layers,
    )
    data = DataConfig(source_length=transformer.src_seq_length, target_length=transformer.tgt_seq_length)
    return pipeline_stages(TransformerSettings(model=model, data=data, parallel=settings.parallel), pp)


def _styles(network: nn.Module) -> Iterator[tuple[nn.Module, Style]]:
    """Yield the modules that are cut, each once with a style, also where several modules share it."""
    seen: set[tuple[int, int]] = set()
    for module, style in _styles_by_use(network):
        if (id(module), id(style)) not in seen:
            seen.add((id(module), id(style)))
            yield module, style


def _styles_by_use(network: nn.Module) -> Iterator[tuple[nn.Module, Style]]:
    for module in network.modules():
        if isinstance(module, VocabEmbedding) and not module.parallel_config.vocab_emb_dp:
            yield module.word, VOCABULARY_ROWS
        if isinstance(module, TransformerDecoder):
            yield module.memory, BLOCK
        if isinstance(module, TransformerEncoder | TransformerDecoder):
            for path, layer in module.blocks.named_modules():
                yield from ((layer, style) for pattern, style in LAYER_PLAN if fnmatchcase(path, pattern))


def _held(part: nn.Module, stage: Stage) -> Iterator[int]:
    """Yield the ids of the parameters of a part: of a Transformer's layers, of those on its stage."""
    elsewhere: set[int] = set()
    for module in part.modules() if stage.count > 1 else ():
        if isinstance(module, Transformer):
            here = {id(parameter) for layer in module.layers_on(stage) for parameter in layer.parameters()}
            elsewhere.update(id(parameter) for parameter in module.parameters() if id(parameter) not in here)
    yield from (id(parameter) for parameter in part.parameters() if id(parameter) not in elsewhere)


def _check_own_stages(network: nn.Module, held: Sequence[frozenset[str]]) -> None:
    """Refuse a module whose `pipeline_stage` is another one than that which computes with its parameters."""
    for path, module in network.named_modules():
        wanted = vars(module).get("pipeline_stage")
        own = {f"{path}.{name}" for name, _ in module.named_parameters()}
        found = [stage for stage, names in enumerate(held) if own & names]
        if isinstance(wanted, int) and found and wanted not in found:
            raise RefusedLayoutError(
                f"{path}.pipeline_stage = {wanted}, but what is before the Transformer is on stage 0, and what is after it on "
                f"stage {len(held) - 1}: {path} is on stage {found[0]}",
                hint=f"pipeline_stage = {found[0]}, or none",
            )


def _shared(
    held: Sequence[frozenset[str]], parameters: Mapping[str, nn.Parameter], of_layers: Collection[str]
) -> str | None:
    """Return the parameter that the first and the last stage compute with; refuse others that several stages need."""
    names = [name for name in parameters if sum(name in each for each in held) > 1]
    for name in names:
        if name in of_layers or name not in held[0] or name not in held[-1] or sum(name in each for each in held) > 2:
            raise RefusedLayoutError(
                f"pp = {len(held)}, and {name} is used by layers on several stages",
                hint="--pp 1, or a parameter for each layer",
            )
    if len(names) > 1:
        raise RefusedLayoutError(
            f"pp = {len(held)}, and {len(names)} parameters are used both before and after the Transformer, or the shape of what "
            f"they give is: {some_of(names, MAX_NAMES)}",
            hint="--pp 1, or one such parameter at most, and shapes of the batch",
        )
    return names[0] if names else None


def check_parameters(network: nn.Module) -> None:
    """Refuse a network whose parameters cannot be trained together.

    Raises:
        UsageError: it has none, or they are frozen, without values, or of several types.
    """
    parameters = dict(network.named_parameters())
    if not parameters:
        raise UsageError("the network has no parameters")
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            raise UsageError(
                f"{name} is frozen, and all parameters are trained", hint="register_buffer for what is not"
            )
        if parameter.is_meta:
            raise UsageError(f"{name} has no values: it is on the meta device", hint="a network on the CPU")
    if len(types := {parameter.dtype for parameter in parameters.values()}) > 1:
        listed = ", ".join(sorted(map(str, types)))
        raise UsageError(f"the parameters are of several types: {listed}", hint="network.to(torch.float32)")


def _check_model_parallel(network: nn.Module, mp: int) -> None:
    for path, module in network.named_modules():
        if isinstance(module, TransformerEncoder | TransformerDecoder):
            sizes = {"num_heads": module.config.heads, "ffn_hidden_size": module.config.feed_forward_dim}
            for name, size in sizes.items():
                if size % mp:
                    fitting = ", ".join(str(ways) for ways in range(1, size + 1) if size % ways == 0)
                    raise RefusedLayoutError(
                        f"{path}: {name} = {size} cannot be divided by mp = {mp}", hint=f"--mp can be {fitting}"
                    )
        if isinstance(module, VocabEmbedding) and not module.parallel_config.vocab_emb_dp and module.vocab_size < mp:
            raise RefusedLayoutError(
                f"{path}: mp = {mp} leaves ranks without a row of vocab_size = {module.vocab_size}",
                hint=f"--mp {module.vocab_size} at most, or vocab_emb_dp = True",
            )
