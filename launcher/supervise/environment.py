"""The whole environment of a rank, and how env.log shows it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.core.env import masked

# What Python reads at its start, and torch, numpy and the libraries beneath them when they are loaded. Seen by watching
# getenv while torch, torch.distributed and torch._dynamo are imported.
_READ_ONCE = re.compile(
    r"(PYTHON|_PYTHON|LD_|MALLOC_|GLIBC_|LC_|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|GOTO_|NUMEXPR_|BLIS_|VECLIB_|I_MPI_|MPI_"
    r"|DNNL_|ONEDNN_|MKLDNN_|NPY_|NUMPY_|GFORTRAN_|ACC_|OPENSSL_|SYMPY_|MPMATH_|KINETO_|TORCH(?!ELASTIC_)|PYTORCH_"
    r"|AOT_|AOTINDUCTOR_|INDUCTOR_|TRITON_|CUTLASS_|CUTEDSL_).*|LANG|LANGUAGE|HOME|PATH|TMPDIR|TEMP|TMP"
)


def overlaid(inherited: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """`inherited` with `changes` laid over it; None takes a variable away."""
    merged = {name: value for name, value in inherited.items() if name not in changes}
    return merged | {name: value for name, value in changes.items() if value is not None}


def common(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that have the same value in all `environments`."""
    first = environments[0] if environments else {}
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in environments)}


def read_at_import(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Variables that have not the same value in all of them, though Python or what it imports reads them only once."""
    shared = common(environments)
    names = {name for environment in environments for name in environment if name not in shared}
    return sorted(name for name in names if _READ_ONCE.fullmatch(name))


def render_environment(environment: Mapping[str, str]) -> str:
    r"""One NAME=VALUE a line, sorted, secrets masked; a newline in a value is shown as \n, a backslash as \\."""
    lines = []
    for name in sorted(environment):
        value = masked(name, environment[name]).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{name}={value}\n")
    return "".join(lines)


def write_environment(path: Path, environment: Mapping[str, str]) -> None:
    """Write env.log, readable by its owner only.

    Raises:
        OSError: the directory is gone, the disk is full, ...
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a descriptor
        file.write(render_environment(environment))
