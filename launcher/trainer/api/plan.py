"""Who holds which parameter of a network of one's own, and this rank's part of it.

pipeline          a stage holds the parameters that its part of the network computes with (`graphs.py`)
model parallel    layers are cut as those of the bundled Transformer (`trainer/plan.py`), tables of words by rows unless
                  `vocab_emb_dp`; all else is whole on every rank, which computes the same with it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.stages import Stage
from launcher.trainer.api.modules import Transformer, TransformerDecoder, TransformerEncoder, VocabEmbedding
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.styles import BLOCK, VOCABULARY_ROWS, Style, part_bounds
from launcher.trainer.plan import LAYER_PLAN

Names = Sequence[str]


@frozen
class NetworkPlan:
    """What is known of a whole network before it is divided."""

    shapes: Mapping[str, tuple[int, ...]]  # of each parameter, in the network's order, by the first of its names
    aliases: Mapping[str, Names]  # all names of each
    dims: Mapping[str, int]  # along which model-parallel ranks cut a parameter, if they do
    styles: Mapping[str, Style]  # of modules, by their paths
    held: Sequence[frozenset[str]]  # the parameters on each pipeline stage
    shared: str | None  # the one that the first and the last stage both compute with; the first owns it

    def owned(self, stage: int) -> list[str]:
        """Return the parameters that a stage holds and no stage before it does."""
        copies = {self.shared} if stage > 0 else set()
        return [name for name in self.shapes if name in self.held[stage] and name not in copies]

    def placements(self, names: Names, model_parallel: Group) -> dict[str, Placement]:
        found = {}
        for name in names:
            shape, dim = torch.Size(self.shapes[name]), self.dims.get(name)
            if dim is None or model_parallel.size == 1:
                found[name] = Placement.uncut(shape, model_parallel)
            else:
                found[name] = Placement.cut(shape, dim, *part_bounds(shape[dim], model_parallel))
        return found


def plan_network(network: nn.Module, parts: Sequence[nn.Module], stages: Sequence[Stage], mp: int) -> NetworkPlan:
    """Return the plan of a network on model-parallel ranks, of which `parts` are what each pipeline stage computes.

    Raises:
        UsageError: parameters are frozen, of several types, or not used.
        RefusedLayoutError: the network cannot be cut so.
    """
    aliases: dict[str, list[str]] = {}
    first_name: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        aliases.setdefault(first_name.setdefault(id(parameter), name), []).append(name)
    parameters = dict(network.named_parameters())
    _check_parameters(parameters)
    styles = dict(_styles(network))
    dims = {}
    for path, style in styles.items():
        for own, dim in style.dims.items():
            name = f"{path}.{own}"
            if len(aliases.get(name, [name])) > 1 or name not in aliases:
                raise RefusedLayoutError(
                    f"mp = {mp}, and {name}, which model-parallel ranks cut, is a parameter of another module, too",
                    hint="vocab_emb_dp = True: every rank has the whole table"
                    if style is VOCABULARY_ROWS
                    else "--mp 1",
                )
            dims[name] = dim
    if mp > 1:
        _check_model_parallel(network, mp)
    held = [
        frozenset(first_name[id(parameter)] for name, parameter in part.named_parameters() if _is_on(name, part, stage))
        for part, stage in zip(parts, stages, strict=True)
    ]
    if unused := [name for name in parameters if not any(name in each for each in held)]:
        raise UsageError(f"{unused[0]} is not used when the network is called", hint="leave it out of the network")
    _check_own_stages(network, held)
    return NetworkPlan(
        shapes={name: tuple(parameter.shape) for name, parameter in parameters.items()},
        aliases=aliases,
        dims=dims if mp > 1 else {},
        styles=styles if mp > 1 else {},
        held=held,
        shared=_shared(held, parameters),
    )


def apply_plan(
    part: nn.Module,
    plan: NetworkPlan,
    stage: Stage,
    model_parallel: Group,
    whole: Callable[[str], Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, nn.Parameter]:
    """Turn what a pipeline stage computes into this rank's part of it; return its parameters, in the network's order.

    `whole` gives the initial value of a parameter; it is asked for each of the network in turn, on every rank.
    """
    for module in part.modules() if stage.count > 1 else ():
        if isinstance(module, Transformer):
            module.keep(stage)
    modules = dict(part.named_modules())
    for path, style in plan.styles.items():
        if path in modules:
            style.rebuild(modules[path], model_parallel)
    here = [name for name in plan.shapes if name in plan.held[stage.index]]
    placed, found = plan.placements(here, model_parallel), {}
    for name in plan.shapes:
        full = whole(name)
        if name in placed:
            own = placed[name].part_of(full).to(device=device, dtype=dtype).clone(memory_format=torch.contiguous_format)
            found[name] = nn.Parameter(own)
            _put(found[name], plan.aliases[name], modules)
    for module in modules.values():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device, dtype if buffer.is_floating_point() else None)  # noqa: SLF001 - torch has no other way
    return found


def _put(parameter: nn.Parameter, names: Names, modules: Mapping[str, nn.Module]) -> None:
    """Make it the parameter of these names, as far as their modules are there."""
    for name in names:
        path, _, own = name.rpartition(".")
        if path in modules and own in modules[path]._parameters:  # noqa: SLF001 - torch has no other way to ask
            setattr(modules[path], own, parameter)


def _styles(network: nn.Module) -> Iterator[tuple[str, Style]]:
    for path, module in network.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, VocabEmbedding) and not module.parallel_config.vocab_emb_dp:
            yield f"{prefix}word", VOCABULARY_ROWS
        if isinstance(module, TransformerDecoder):
            yield f"{prefix}memory", BLOCK
        if isinstance(module, TransformerEncoder | TransformerDecoder):
            for own, _ in module.blocks.named_modules():
                for pattern, style in LAYER_PLAN:
                    if fnmatchcase(own, pattern):
                        yield f"{prefix}blocks.{own}", style


def _is_on(name: str, part: nn.Module, stage: Stage) -> bool:
    """Return whether a parameter of a part is on its stage: of a Transformer's layers, those of the stage are."""
    if stage.count == 1:
        return True
    path = name.split(".")
    for depth in range(len(path)):
        if isinstance(part.get_submodule(".".join(path[:depth])), Transformer):
            kept = stage.encoder_layers if path[depth] == "encoder" else stage.decoder_layers
            return int(path[depth + 2]) in kept  # encoder.blocks.0...
    return True


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


def _shared(held: Sequence[frozenset[str]], parameters: Mapping[str, nn.Parameter]) -> str | None:
    """Return the parameter that several stages compute with."""
    if len(held) == 1:
        return None
    names = [name for name in parameters if sum(name in each for each in held) > 1]
    if len(names) > 1:
        raise RefusedLayoutError(
            f"pp = {len(held)}, and {len(names)} parameters are used both before and after the Transformer: {', '.join(names)}",
            hint="--pp 1, or one such parameter at most",
        )
    return names[0] if names else None


def _check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
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
        told = ", ".join(sorted(map(str, types)))
        raise UsageError(f"the parameters are of several types: {told}", hint="network.to(torch.float32)")


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


def check_layout(layout: Layout, batch_size: int) -> None:
    """Refuse batches that cannot be cut into parts of equally many rows.

    Raises:
        RefusedLayoutError: with the nearest sizes that can.
    """
    parts = layout.dp * layout.micro_batches
    if batch_size % parts:
        below = batch_size - batch_size % parts
        near = " or ".join(str(size) for size in (below, below + parts) if size)
        raise RefusedLayoutError(
            f"batch_size = {batch_size} cannot be divided by dp * micro batches = {layout.dp} * {layout.micro_batches}",
            hint=f"batch_size = {near}",
        )
