"""Checkpoints of torch.distributed.checkpoint (DCP), with the names and moments of torch.distributed.checkpoint.state_dict.

What is written is what `dcp.save` would make of

    {
        "model": {name: weight},
        "optimizer": {"state": {name: {"step": ..., "exp_avg": ..., "exp_avg_sq": ...}}},
        "step": torch.tensor(120),
    }

in which everything is a tensor.
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
from launcher.checkpoint.tensors import whole_files
from launcher.core.atomic import new_directory
from launcher.mesh.boxes import Box, full_box
from launcher.trainer.checkpoint.checkpoint_files import StoredTensors
from launcher.trainer.checkpoint.foreign.progress import Progress, tell
from launcher.trainer.checkpoint.foreign.state import dtype_of

MODEL, OPTIMIZER, STATE, STEP = "model", "optimizer", "state", "step"
MOMENTS = ("exp_avg", "exp_avg_sq")


def write_dcp(path: Path, index: Index, output: Path, progress: Progress) -> None:
    """Make a directory of a checkpoint that `torch.distributed.checkpoint.load` reads. It is whole or it is not there.

    Raises:
        DamagedError: a file of the checkpoint is damaged, and what it held is in no other.
        OSError: the directory exists already, the disk is full, ...
    """
    files = whole_files(path, index, progress.add, tell)
    with new_directory(output) as aside, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is ")  # disabled: one process is what is wanted
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor does anybody write to it
        try:
            save({}, storage_writer=_Writer(aside), planner=_BoxPlanner(path, index, files, progress))
        except CheckpointException as error:
            raise _reason_of(error) from None


def _reason_of(error: CheckpointException) -> BaseException:
    """Return the error of a system call, or the wish to end, behind what torch tells: after a full disk it fails once more by itself."""
    for reason, _ in error.failures.values():
        found: BaseException | None = reason
        while found is not None:
            if isinstance(found, OSError | SystemExit):
                return found
            found = found.__context__
    return error


class _Writer(FileSystemWriter):
    def storage_meta(self) -> StorageMeta:
        """Return no path: the one it is written to is not the one it gets."""
        return StorageMeta()


class _BoxPlanner(DefaultSavePlanner):
    """Plans a chunk for each box, and reads it when it is to be written, so that no tensor has to fit into memory."""

    def __init__(self, path: Path, index: Index, files: Mapping[str, PartFile], progress: Progress) -> None:
        super().__init__()
        self._stored, self._progress = StoredTensors(path, files, index.dtype), progress
        self._items: list[WriteItem] = []
        self._paths: dict[str, tuple[str, ...]] = {}  # in the nested mappings, by their flat names
        self._sources: dict[MetadataIndex, Callable[[], Tensor]] = {}
        dtype = dtype_of(index)
        distinct = {each: None for file in files.values() for each in file.boxes}
        for kind, moment in enumerate(("", *MOMENTS)):
            for each in distinct:
                place = (OPTIMIZER, STATE, each.name, moment) if moment else (MODEL, each.name)
                self._add(place, dtype, index.shapes[each.name], each.box, partial(self._values, each, kind))
        for name in index.shapes:  # as torch.optim.AdamW keeps it
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
