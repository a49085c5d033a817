"""Fill a template: the user's own directory first, then those that ship with tlaunch."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError

from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.resources import data_dir
from launcher.engines.render.job import Job
from launcher.engines.render.words import FILTERS


def built_in() -> Path:
    return data_dir("templates") / "render"


def fill(template: str, job: Job, own: Path | None = None) -> str:
    """Return the text of `template` for `job`. A template of the same name in `own` is taken instead.

    Raises:
        UnreadableError: `own` is no directory, or holds what cannot be read.
        UsageError: a template is wrong (with file and line), or a value cannot be expressed in its format.
    """
    if own is not None and not own.is_dir():
        raise UnreadableError(f"--templates {own}: there is no such directory")
    environment = Environment(  # noqa: S701 - no HTML; each value is written by a filter of its format
        loader=ChoiceLoader([FileSystemLoader(directory) for directory in (own, built_in()) if directory]),
        undefined=StrictUndefined,
        comment_start_string="<#",  # {# is in every shell script that counts words
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    with _told_with_place():
        return environment.get_template(template).render(job.as_variables())


@contextmanager
def _told_with_place() -> Iterator[None]:
    try:
        yield
    except TlaunchError:
        raise
    except TemplateSyntaxError as error:
        raise UsageError(f"{error.filename or error.name}:{error.lineno}: {error.message}") from None
    except TemplateNotFound as error:
        place = _place(error)
        hint = f"templates are looked for in --templates and {built_in()}"
        raise UsageError(f"{f'{place}: ' if place else ''}there is no template {error.name}", hint=hint) from None
    except OSError as error:
        raise UnreadableError(f"{error.filename}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UnreadableError(f"a template is no UTF-8 text: {error.reason}") from None
    except Exception as error:  # whatever an expression of a template may raise
        place = _place(error)
        if place is None:
            raise
        said = f"{error}" if type(error).__module__.startswith("jinja2") else f"{type(error).__name__}: {error}"
        hint = "`tlaunch render --list` shows the variables of templates"
        raise UsageError(f"{place}: {said}", hint=hint) from None


def _place(error: BaseException) -> str | None:
    """File and line of the innermost template: jinja2 puts them into the traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.endswith(".py")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
