"""Checkpoints of torch.distributed.checkpoint are made of the trainer's, and the other way; none of their pickles is run."""

import io
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from launcher.checkpoint.dcp import DCP_METADATA, read_metadata
from launcher.checkpoint.index import KINDS, read_index
from launcher.core.errors import RefusedError, UnreadableError
from launcher.trainer.checkpoint.foreign.dcp_read import read_dcp
from launcher.trainer.checkpoint.foreign.dcp_write import write_dcp
from launcher.trainer.checkpoint.foreign.progress import Progress
from tests.conftest import file_size_limit

from .conftest import run_program, same_state, written

SHAPES = {"encoder.0.weight": (4, 6), "encoder.0.bias": (5,), "head.weight": (3, 2, 2)}
MOMENTS = ("exp_avg", "exp_avg_sq")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def exported(own, output):
    write_dcp(own, read_index(own), output, Progress())
    return output


def imported(source, *more, **step):
    return written(read_dcp(source), *more, **step)


def empty(dtype=torch.float32):
    return {
        "model": {name: torch.full(shape, torch.nan, dtype=dtype) for name, shape in SHAPES.items()},
        "optimizer": {
            "state": {
                name: {
                    "step": torch.tensor(torch.nan),
                    **{moment: torch.full(shape, torch.nan, dtype=dtype) for moment in MOMENTS},
                }
                for name, shape in SHAPES.items()
            }
        },
        "step": torch.tensor(0),
    }


def test_a_full_disk_is_told(tmp_path, write_own):
    write_own(tmp_path / "own", {"head.weight": (100, 100)})
    with file_size_limit(4096), pytest.raises(OSError, match="File too large") as told:
        exported(tmp_path / "own", tmp_path / "dcp")
    assert told.value.filename == str(tmp_path / "dcp")
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_torch_loads_what_is_exported(tmp_path, write_own, dtype):
    state = write_own(tmp_path / "own", SHAPES, step=7, dtype=dtype)
    found = empty(torch.float32 if dtype == "F32" else torch.float64)
    dcp.load(found, checkpoint_id=exported(tmp_path / "own", tmp_path / "dcp"))
    assert found["step"] == 7
    for name in SHAPES:
        theirs = found["optimizer"]["state"][name]
        assert np.array_equal(found["model"][name], state["weight"][name])
        assert np.array_equal(theirs["exp_avg"], state["first_moment"][name])
        assert np.array_equal(theirs["exp_avg_sq"], state["second_moment"][name])
        assert theirs["step"] == 7


def test_torch_makes_one_file_of_it(tmp_path, write_own):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    state = write_own(tmp_path / "own", SHAPES, step=7)
    dcp_to_torch_save(exported(tmp_path / "own", tmp_path / "dcp"), tmp_path / "all.pt")
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    assert found.keys() == {"model", "optimizer", "step"}
    assert np.array_equal(found["model"]["head.weight"], state["weight"]["head.weight"])
    assert found["optimizer"]["state"].keys() == SHAPES.keys()


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_there_and_back(tmp_path, write_own, dtype, read_own):
    state = write_own(tmp_path / "own", SHAPES, step=7, dtype=dtype)
    exported(tmp_path / "own", tmp_path / "dcp")
    back = imported(tmp_path / "dcp", tmp_path / "own", tmp_path / "step-7")
    assert same_state(state, read_own(back))
    assert read_index(back).step == 7


@pytest.mark.distributed
def test_a_training_with_fsdp_there_and_back(tmp_path, write_own, read_own):
    """On two ranks, though rows are cut unevenly, one rank has none of some, and learning rates are pickles."""
    run_program("dcp_ranks.py", "save", tmp_path)
    weights, state = torch.load(tmp_path / "whole.pt", weights_only=True)
    write_own(tmp_path / "own", {name: tuple(tensor.shape) for name, tensor in weights.items()})
    path = imported(tmp_path / "dcp", tmp_path / "own", tmp_path / "step-3")
    kinds = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
    expected = {kind: {name: state[name][moment] for name in weights} for kind, moment in kinds.items()}
    assert same_state({"weight": weights, **expected}, read_own(path))
    assert (tmp_path / "dcp" / "__1_0.distcp").exists()
    assert any("param_groups" in name for name in read_dcp(tmp_path / "dcp").left_out)
    exported(path, tmp_path / "again")
    run_program("dcp_ranks.py", "load", tmp_path)


def test_weights_alone_by_their_names(tmp_path, write_own, read_own):
    """As `dcp.save(model.state_dict())` writes them."""
    write_own(tmp_path / "own", SHAPES)
    weights = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    dcp.save(dict(weights), checkpoint_id=tmp_path / "dcp")
    found = read_own(imported(tmp_path / "dcp", tmp_path / "own", tmp_path / "new", step=20))
    assert all(np.array_equal(found["weight"][name], weights[name].float()) for name in SHAPES)
    assert not any(tensor.any() for kind in KINDS[1:] for tensor in found[kind].values())


def test_what_belongs_to_nothing_is_told(tmp_path, write_own):
    write_own(tmp_path / "own", {"a": (2,)})
    content = {
        "model": {"a": torch.ones(2), "b": torch.ones(2)},
        "other": {"c": torch.ones(2)},
        "step": torch.tensor(4),
    }
    dcp.save(content, checkpoint_id=tmp_path / "dcp")
    with pytest.raises(RefusedError, match=r"1 have unknown names: b.*1 unknown tensor: other\.c"):
        imported(tmp_path / "dcp", tmp_path / "own", tmp_path / "new")


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def changed_metadata(directory, change):
    """Write what `change` makes of the metadata that torch wrote."""
    metadata = pickle.loads((directory.parent / "written").read_bytes())
    change(metadata)
    (directory / DCP_METADATA).write_bytes(pickle.dumps(metadata))


def moved(metadata, to):
    for info in metadata.storage_data.values():
        info.relative_path = to


def replace_chunks(directory, content):

    def change(metadata):
        for info in metadata.storage_data.values():
            info.offset, info.length = 0, len(content)

    (directory / "__0_0.distcp").write_bytes(content)
    changed_metadata(directory, change)


@pytest.fixture(name="directory")
def _directory(tmp_path, write_own):
    write_own(tmp_path / "own", SHAPES, step=7)
    exported(tmp_path / "own", tmp_path / "dcp")
    shutil.copy(tmp_path / "dcp" / DCP_METADATA, tmp_path / "written")
    return tmp_path / "dcp"


def test_a_hostile_pickle_is_not_run(tmp_path, directory):
    trap = tmp_path / "trapped"
    pickle.loads(pickle.dumps(Hostile(trap)))
    assert trap.exists(), "it does work"
    trap.unlink()

    def in_planner(metadata):
        metadata.planner_data = Hostile(trap)

    def in_tensor(metadata):
        metadata.state_dict_metadata["step"].size = Hostile(trap)

    def as_key(metadata):
        metadata.storage_data[Hostile(trap)] = 1

    for change in (in_planner, in_tensor, as_key):
        changed_metadata(directory, change)
        with pytest.raises(UnreadableError, match="global pathlib"):
            read_dcp(directory)
    for content in (
        pickle.dumps(Hostile(trap)),
        pickle.dumps(Hostile(trap), protocol=0),
        b"cos\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x02\x82\x01.",  # of copyreg's registry
        b"\x80\x02(ios\nsystem\n.",
    ):
        (directory / DCP_METADATA).write_bytes(content)
        with pytest.raises(UnreadableError):
            read_dcp(directory)
    assert not trap.exists()


def test_depth_ends_nothing(tmp_path):
    """Tuples so deep that to look into them, or to hash them, would end the process."""
    deep = b"\x80\x04)" + b"\x85" * 200_000
    for content in (deep + b".", b"\x80\x04}" + deep[2:] + b"Ns."):
        (tmp_path / DCP_METADATA).write_bytes(content)
        with pytest.raises(UnreadableError):
            read_metadata(tmp_path)


def test_a_hostile_tensor_is_not_run(tmp_path, directory, write_own):
    trap = tmp_path / "trapped"
    for bomb in (Hostile(trap), torch.ones(5), bytearray(1000)):
        content = io.BytesIO()
        torch.save(bomb, content)
        replace_chunks(directory, content.getvalue())
        with pytest.raises(UnreadableError, match=r"none of its code was|not belong to a tensor|not a tensor of"):
            imported(directory, tmp_path / "own", tmp_path / "new")
    assert not trap.exists()
    assert not (tmp_path / "new").exists()


def test_a_compressed_chunk_is_refused(tmp_path, directory):
    """It could be of any size when it is read."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"." * 1000)
    replace_chunks(directory, content.getvalue())
    with pytest.raises(UnreadableError, match="compressed"):
        imported(directory, tmp_path / "own", tmp_path / "new")


def test_one_changed_bit_of_a_tensor_is_found(tmp_path, directory):
    """By the CRC that torch wrote; torch.load does not look at it."""
    content = (directory / "__0_0.distcp").read_bytes()
    at = content.index(read_dcp(directory).tensors[0]["encoder.0.bias"].read()[2:].numpy().tobytes())
    (directory / "__0_0.distcp").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(UnreadableError, match="CRC"):
        imported(directory, tmp_path / "own", tmp_path / "new")


@pytest.mark.parametrize("to", ["../secret", "/etc/passwd", "..", "", "a/b", "missing.distcp"])
def test_a_path_beyond_the_directory_is_refused(tmp_path, directory, to):
    changed_metadata(directory, lambda metadata: moved(metadata, to))
    with pytest.raises(UnreadableError):
        imported(directory, tmp_path / "own", tmp_path / "new")


def chunks_of(metadata):
    return metadata.state_dict_metadata["model.encoder.0.weight"].chunks


DAMAGES = {
    "a chunk is lost": lambda metadata: chunks_of(metadata).pop(),
    "a chunk is repeated": lambda metadata: chunks_of(metadata).__setitem__(0, chunks_of(metadata)[-1]),
    "a chunk leaves the shape": lambda metadata: setattr(chunks_of(metadata)[0], "sizes", torch.Size([4, 7])),
    "a place is lost": lambda metadata: metadata.storage_data.popitem(),
    "compressed": lambda metadata: setattr(
        next(iter(metadata.storage_data.values())), "transform_descriptors", ["zstd"]
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_metadata_that_cannot_be_is_refused(tmp_path, directory, damage):
    changed_metadata(directory, damage)
    with pytest.raises(UnreadableError):
        imported(directory, tmp_path / "own", tmp_path / "new")


def test_a_changed_file_is_read_or_refused(tmp_path, directory):
    numbers = random.Random(1)
    for name, rounds in ((DCP_METADATA, 300), ("__0_0.distcp", 100)):
        path = directory / name
        whole = path.read_bytes()
        refused = 0
        for _ in range(rounds):
            content = bytearray(whole)
            for _ in range(numbers.randint(1, 5)):
                content[numbers.randrange(len(content))] = numbers.randrange(256)
            path.write_bytes(content[: numbers.choice([len(content), numbers.randrange(len(content))])])
            try:
                for found in read_dcp(directory).tensors[0].values():
                    found.read()
            except UnreadableError:
                refused += 1
        assert refused > rounds / 4
        path.write_bytes(whole)


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(UnreadableError, match=r"no \.metadata"):
        read_metadata(tmp_path)
    with pytest.raises(UnreadableError):
        read_metadata(tmp_path / "missing")
