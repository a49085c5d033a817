"""Assigns a custom network's parameters to ranks, and reduces the network to this rank's part.

pipeline          a stage holds the parameters that its part of the network uses (`pipeline_parts.py`)
model parallel    layers are sharded like the bundled Transformer's (`trainer/plan.py`), embedding tables by rows
                  unless `vocab_emb_dp` is set; all other parameters are replicated
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
from launcher.trainer.own.train.configs import NetworkSettings
from launcher.trainer.own.train.layers import Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.own.train.parallel_modules import VocabEmbedding
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.styles import BLOCK, VOCABULARY_ROWS, Style
from launcher.trainer.plan import LAYER_PLAN, placement_of

Names = Sequence[str]
MAX_NAMES = 8  # parameters that a message lists


@frozen
class NetworkPlan:
    """The sharding of a network's parameters over pipeline stages and model-parallel ranks."""

    parameters: Mapping[str, nn.Parameter]  # full parameters in the network's order, each by its first name
    dims: Mapping[str, int]  # the dim that model-parallel ranks shard, for each sharded parameter
    styles: Sequence[tuple[nn.Module, Style]]  # modules that are sharded or that communicate, and how
    held: Sequence[frozenset[str]]  # the parameters on each pipeline stage
    shared: str | None  # a parameter that the first and the last stage both use; the first owns it

    def owned(self, stage: int) -> list[str]:
        """Return the names of the parameters that a stage owns. The first stage owns a shared parameter."""
        copies = {self.shared} if stage > 0 else set()
        return [name for name in self.parameters if name in self.held[stage] and name not in copies]

    def placements(self, names: Names, model_parallel: Group) -> dict[str, Placement]:
        """Return this model-parallel rank's shard of each named parameter."""
        return {name: placement_of(self.parameters[name], self.dims.get(name), model_parallel) for name in names}


def plan_network(
    network: nn.Module, parts: Sequence[nn.Module], stages: Sequence[Stage], mp: int, *, is_traced: bool
) -> NetworkPlan:
    """Plan how to divide a network's parameters over pipeline stages and model-parallel ranks.

    `parts` has the module that each stage computes, built from the network's own modules. If `is_traced`, it contains
    only modules that are used.

    Raises:
        UsageError: a parameter is not used.
        RefusedLayoutError: the network cannot be divided over these stages and ranks.
    """
    parameters = dict(network.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    by_use = _styles(network) if mp > 1 else ()
    styles = list({(id(module), id(style)): (module, style) for module, style in by_use}.values())
    owners = Counter(id(each) for module in network.modules() for each in module.parameters(recurse=False))
    dims = {}
    for module, style in styles:
        for own, dim in style.dims.items():
            parameter = module.get_parameter(own)
            name = names[id(parameter)]
            if owners[id(parameter)] > 1:
                raise RefusedLayoutError(
                    f"mp = {mp}, but several modules use the sharded parameter {name}",
                    hint="for an embedding table, set vocab_emb_dp = True so that every rank holds the full table",
                )
            dims[name] = dim
    if mp > 1:
        _check_model_parallel(network, mp)
    held = [frozenset(names[each] for each in _held(part, stage)) for part, stage in zip(parts, stages, strict=True)]
    if is_traced and (unused := [name for name in parameters if not any(name in each for each in held)]):
        raise UsageError(f"{unused[0]} is not used when the network is called", hint=f"remove {unused[0]}")
    if not held[0]:
        raise RefusedLayoutError(
            f"pp = {len(held)}, but the first stage has no parameters, because all layers are on later stages",
            hint="set a lambda_func that assigns a layer to stage 0, or omit lambda_func to assign stages by cost",
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
    """Reduce the module of a pipeline stage to this rank's part, and return the parameters of that part.

    `whole` returns a parameter's full initial value. It is called for every parameter of the network, in the same
    order on every rank.
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
    for name, parameter in plan.parameters.items():
        value = whole(parameter)
        if name in placed:
            own = placed[name].part_of(value).to(device).clone(memory_format=torch.contiguous_format)
            found[name] = nn.Parameter(own)
    names = {id(parameter): name for name, parameter in plan.parameters.items()}
    for module in part.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, found[names[id(parameter)]])
    return found


def stages_of_network(network: nn.Module, settings: NetworkSettings, pp: int) -> tuple[Stage, ...]:
    """Divide the Transformer's layers into pipeline stages as in `parallel.stages`, or by cost if it is not set.

    Raises:
        RefusedLayoutError: there are fewer layers than stages.
    """
    transformer = next((module for module in network.modules() if isinstance(module, Transformer)), None)
    if pp == 1 or transformer is None:  # several stages without a Transformer are refused later
        none = range(0)
        return tuple(Stage(index, pp, none, none, closes_encoder=False) for index in range(pp))
    within = {id(parameter) for parameter in transformer.parameters()}
    matrices = [each for each in network.parameters() if id(each) not in within and each.dim() > 1]
    config = transformer.encoder.config
    model = ModelConfig(
        # Estimated from the largest matrix outside the Transformer, which is usually the output layer.
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
    """Yield each module to shard, with its tensor-parallel style. A shared module may be yielded several times."""
    for module in network.modules():
        if isinstance(module, VocabEmbedding) and not module.parallel_config.vocab_emb_dp:
            yield module.word, VOCABULARY_ROWS
        if isinstance(module, TransformerDecoder):
            yield module.memory, BLOCK
        if isinstance(module, TransformerEncoder | TransformerDecoder):
            for path, layer in module.blocks.named_modules():
                yield from ((layer, style) for pattern, style in LAYER_PLAN if fnmatchcase(path, pattern))


def _held(part: nn.Module, stage: Stage) -> Iterator[int]:
    """Yield the id of each parameter in `part`. Skip the Transformer layers of other stages."""
    elsewhere: set[int] = set()
    for module in part.modules() if stage.count > 1 else ():
        if isinstance(module, Transformer):
            here = {id(parameter) for layer in module.layers_on(stage) for parameter in layer.parameters()}
            elsewhere.update(id(parameter) for parameter in module.parameters() if id(parameter) not in here)
    yield from (id(parameter) for parameter in part.parameters() if id(parameter) not in elsewhere)


def _check_own_stages(network: nn.Module, held: Sequence[frozenset[str]]) -> None:
    """Raise if a module's `pipeline_stage` attribute differs from the stage that uses the module's parameters."""
    for path, module in network.named_modules():
        wanted = vars(module).get("pipeline_stage")
        own = {f"{path}.{name}" for name, _ in module.named_parameters()}
        found = [stage for stage, names in enumerate(held) if own & names]
        if isinstance(wanted, int) and found and wanted not in found:
            raise RefusedLayoutError(
                f"{path}.pipeline_stage = {wanted}, but {path} is on stage {found[0]}: modules before the Transformer "
                f"are on stage 0, and modules after the Transformer are on stage {len(held) - 1}",
                hint=f"set pipeline_stage = {found[0]}, or leave it out",
            )


def _shared(
    held: Sequence[frozenset[str]], parameters: Mapping[str, nn.Parameter], of_layers: Collection[str]
) -> str | None:
    """Return the parameter that the first and last stage share, or None. Raise if stages share another parameter."""
    names = [name for name in parameters if sum(name in each for each in held) > 1]
    for name in names:
        if name in of_layers or name not in held[0] or name not in held[-1] or sum(name in each for each in held) > 2:
            raise RefusedLayoutError(
                f"pp = {len(held)}, but layers on several stages use {name}",
                hint="use `--pp 1`, or create a separate parameter for each layer",
            )
    if len(names) > 1:
        raise RefusedLayoutError(
            f"pp = {len(held)}, but {len(names)} parameters are used both before and after the Transformer, and only 1 "
            f"is supported: {some_of(names, MAX_NAMES)}",
            hint="use `--pp 1`, or share only one parameter; compute shapes from the batch instead of the parameters",
        )
    return names[0] if names else None


def check_parameters(network: nn.Module) -> None:
    """Check that all parameters of the network can be trained.

    Raises:
        UsageError: there are no parameters, or a parameter is frozen or on the meta device, or their dtypes differ.
    """
    parameters = dict(network.named_parameters())
    if not parameters:
        raise UsageError("the network has no parameters")
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            hint = "use register_buffer for frozen tensors"
            raise UsageError(f"{name} is frozen, but training updates all parameters", hint=hint)
        if parameter.is_meta:
            raise UsageError(f"{name} is on the meta device and has no values", hint="create the network on the CPU")
    if len(types := {parameter.dtype for parameter in parameters.values()}) > 1:
        told = f"the parameters have several dtypes: {', '.join(sorted(map(str, types)))}"
        raise UsageError(told, hint="convert all parameters to one dtype, for example with network.to(torch.float32)")


def _check_model_parallel(network: nn.Module, mp: int) -> None:
    for path, module in network.named_modules():
        if isinstance(module, TransformerEncoder | TransformerDecoder):
            sizes = {"num_heads": module.config.heads, "ffn_hidden_size": module.config.feed_forward_dim}
            for name, size in sizes.items():
                if size % mp:
                    fitting = ", ".join(str(ways) for ways in range(1, size + 1) if size % ways == 0)
                    raise RefusedLayoutError(
                        f"{path}: {name} = {size} is not divisible by mp = {mp}",
                        hint=f"use `--mp` with one of {fitting}",
                    )
        if isinstance(module, VocabEmbedding) and not module.parallel_config.vocab_emb_dp and module.vocab_size < mp:
            raise RefusedLayoutError(
                f"{path}: vocab_size = {module.vocab_size} is less than mp = {mp}, so some ranks would hold no embeddings",
                hint=f"use at most `--mp {module.vocab_size}`, or set vocab_emb_dp = True",
            )
