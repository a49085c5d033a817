"""What `tlaunch render kubernetes` is told of containers: their image, a volume that outlives them, and Secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import click

from launcher.cli.launch.options import user_environment
from launcher.cli.options.command_types import together
from launcher.core.errors import UsageError
from launcher.engines.render.job import Claim, SecretVariable

MAX_NAME_CHARS = 253  # of an object of Kubernetes, and of a key of a Secret
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_KEY = re.compile(r"(?!\.\.)(?!\.$)[-._A-Za-z0-9]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TAKEN = ("/etc/tlaunch", "/dev/shm")  # noqa: S108 - what is mounted there already


# Those that only a job file for Kubernetes makes use of.
kubernetes_options = together(
    click.option("--image", metavar="NAME", help="kubernetes: image of the containers."),
    click.option(
        "--pvc", metavar="NAME[:MOUNT]",
        help="kubernetes: keep run directories in a PersistentVolumeClaim; without it they end with the pods.  [default MOUNT: "
        "/mnt/NAME]",
    ),
    click.option(
        "--env-from-secret", multiple=True, metavar="VAR=NAME:KEY",
        help="kubernetes: set a variable to KEY of the Secret NAME; the value is not in the file.",
    ),
)  # fmt: skip


def claim_of(text: str | None) -> Claim | None:
    """Return the claim that NAME or NAME:MOUNT stands for.

    Raises:
        UsageError: no claim can have that name, or no volume be there.
    """
    if text is None:
        return None
    name, separator, mount = text.partition(":")
    _check_object(name, "--pvc", "claim")
    place = PurePosixPath(mount if separator else f"/mnt/{name}")
    if not place.is_absolute() or ".." in place.parts or ":" in mount or not mount.isprintable() or place.name == "":
        raise UsageError(f"--pvc: nothing can be mounted at {mount!r}", hint="an absolute path: --pvc data:/data")
    if any(place.is_relative_to(taken) or PurePosixPath(taken).is_relative_to(place) for taken in _TAKEN):
        raise UsageError(
            f"--pvc: {place} would hide, or be hidden by, {' or '.join(_TAKEN)}", hint="mount it elsewhere"
        )
    return Claim(name, str(place))


def secret_variables(texts: Sequence[str], env: tuple[str, ...]) -> tuple[SecretVariable, ...]:
    """Return the variables of texts VAR=NAME:KEY; the last one of a name counts. `env`: the variables of --env.

    Raises:
        UsageError: another form, a name that none can have, or a variable that is decided otherwise.
    """
    found = {}
    given = user_environment(env)
    for text in texts:
        variable, is_pair, source = text.partition("=")
        secret, has_key, key = source.partition(":")
        if not is_pair or not has_key:
            # What stands after the = may be the secret itself: it is not shown.
            raise UsageError(
                "--env-from-secret: this is not VAR=NAME:KEY", hint="for instance --env-from-secret HF_TOKEN=hub:token"
            )
        if not _VARIABLE.fullmatch(variable):
            raise UsageError(f"--env-from-secret {variable!r}: no name of a variable", hint="letters, digits and _")
        user_environment((f"{variable}=",), "--env-from-secret")  # what tlaunch decides is refused
        if variable in given:
            raise UsageError(f"--env and --env-from-secret both say what {variable} is", hint="give one of them")
        _check_object(secret, f"--env-from-secret {variable}", "Secret")
        if not _KEY.fullmatch(key) or len(key) > MAX_NAME_CHARS:
            raise UsageError(
                f"--env-from-secret {variable}: a Secret has no such key", hint="letters, digits, dots, dashes and _"
            )
        found[variable] = SecretVariable(variable, secret, key)
    return tuple(found.values())


def _check_object(name: str, option: str, what: str) -> None:
    if not _OBJECT.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise UsageError(
            f"{option}: {name!r} cannot be the name of a {what} of Kubernetes",
            hint="small letters, digits, dots and dashes, a letter or digit first and last",
        )
