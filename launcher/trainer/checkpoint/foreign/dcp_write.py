"""Export checkpoints to torch.distributed.checkpoint (DCP), named as in torch.distributed.checkpoint.state_dict.

The result is equal to the output of `dcp.save` for

    {
        "model": {name: weight},
        "optimizer": {"state": {name: {"step": ..., "exp_avg": ..., "exp_avg_sq": ...}}},
        "step": torch.tensor(120),
    }

with tensors for all values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save

from launcher.checkpoint.index import Index, NamedBox, PartFile
from launcher.checkpoint.tensors import verified_files
from launcher.core.atomic import new_directory
from launcher.mesh.boxes import Box, full_box
from launcher.trainer.checkpoint.checkpoint_files import StoredTensors
from launcher.trainer.checkpoint.foreign.progress import Progress, report
from launcher.trainer.checkpoint.foreign.state import dtype_of

MODEL, OPTIMIZER, STATE, STEP = "model", "optimizer", "state", "step"
MOMENTS = ("exp_avg", "exp_avg_sq")


def write_dcp(path: Path, index: Index, output: Path, progress: Progress) -> None:
    """Atomically write a checkpoint directory that `torch.distributed.checkpoint.load` can read.

    Raises:
        DamagedError: a file is damaged, and no other file contains its data.
        OSError: `output` exists, or for example the disk is full.
    """
    files = verified_files(path, index, progress.add, report)
    with new_directory(output) as aside, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is ")  # "disabled": one process is intended
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is only read
        try:
            save({}, storage_writer=_Writer(aside), planner=_BoxPlanner(path, index, files, progress))
        except CheckpointException as error:
            raise _reason_of(error) from None


def _reason_of(error: CheckpointException) -> BaseException:
    """Return the OSError or SystemExit that caused torch's `error`. If there is none, return `error`."""
    for reason, _ in error.failures.values():
        found: BaseException | None = reason
        while found is not None:
            if isinstance(found, OSError | SystemExit):
                return found
            found = found.__context__
    return error


class _Writer(FileSystemWriter):
    def storage_meta(self) -> StorageMeta:
        """Return metadata without the path of the directory, because the directory is renamed afterwards."""
        return StorageMeta()


class _BoxPlanner(DefaultSavePlanner):
    """Plans one chunk per box. A box is read only when it is written, so full tensors need not fit into memory."""

    def __init__(self, path: Path, index: Index, files: Mapping[str, PartFile], progress: Progress) -> None:
        super().__init__()
        self._stored, self._progress = StoredTensors(path, files, index.dtype), progress
        self._items: list[WriteItem] = []
        self._paths: dict[str, tuple[str, ...]] = {}  # paths in the nested dictionaries, by flat name
        self._sources: dict[MetadataIndex, Callable[[], Tensor]] = {}
        dtype = dtype_of(index)
        distinct = {each: None for file in files.values() for each in file.boxes}
        for kind, moment in enumerate(("", *MOMENTS)):
            for each in distinct:
                place = (OPTIMIZER, STATE, each.name, moment) if moment else (MODEL, each.name)
                self._add(place, dtype, index.shapes[each.name], each.box, partial(self._values, each, kind))
        for name in index.shapes:  # as in torch.optim.AdamW
            self._add_number((OPTIMIZER, STATE, name, STEP), torch.tensor(float(index.step)))
        self._add_number((STEP,), torch.tensor(index.step))

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan(self._items, planner_data=self._paths)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        found = self._sources[write_item.index]()
        self._progress.add(found.nbytes)
        return found

    def _values(self, each: NamedBox, kind: int) -> Tensor:
        [(_, found)] = self._stored.pieces(each.name, each.box)
        return torch.from_numpy(found[kind])

    def _add_number(self, path: tuple[str, ...], number: Tensor) -> None:
        self._add(path, number.dtype, (), full_box(()), lambda: number)

    def _add(
        self, path: tuple[str, ...], dtype: torch.dtype, shape: tuple[int, ...], box: Box, read: Callable[[], Tensor]
    ) -> None:
        name = ".".join(path)
        offsets = torch.Size(box.start)
        data = TensorWriteData(
            ChunkStorageMetadata(offsets, torch.Size(box.size)), TensorProperties(dtype=dtype), torch.Size(shape)
        )
        index = MetadataIndex(name, offsets)
        self._items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        self._paths[name] = path
        self._sources[index] = read
