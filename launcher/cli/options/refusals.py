"""Convert click's usage errors to UsageError, and add hints."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, takewhile

import click

from launcher.cli.launch.external.command_lines import names_program
from launcher.cli.launch.external.launchers import PROGRAMS
from launcher.cli.launch.external.options import counterpart
from launcher.cli.options.command_suggestions import as_of_run, as_other_launcher, as_without_run, options_of
from launcher.cli.options.command_types import HELP, HELP_ALL, TakesCommand, UnknownCommand
from launcher.cli.options.types import NEEDS_VALUE, choices_of, refused_value, typed_name
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.text import UNITS_S, did_you_mean, near, shell_words
from launcher.preload.masking import MASK, masked_argv
from launcher.program.program_command import is_python

# Command names of other tools: tlaunch's command.
COMMANDS_CALLED_HERE = {
    "kill": "stop", "cancel": "stop", "rm": "prune", "clean": "prune", "ls": "ps", "list": "ps", "tail": "logs -f", "attach": "top",
    "watch": "top", "start": "run", "launch": "run", "train": "run", "fit": "run", "eval": "evaluate", "predict": "translate",
    "check": "validate",
    "show": "status", "debug": "stacks", "checkpoints": "ckpt ls", "export": "ckpt export", "convert": "ckpt export",
    "generate": "translate", "interactive": "translate", "decode": "translate", "infer": "translate",
    "score": "evaluate", "bleu": "evaluate", "test": "evaluate", "sacrebleu": "evaluate",
    "preprocess": "data preprocess", "prepare": "data preprocess", "finetune": "run --init-from MODEL",
    "hccl_tools": "table generate", "hccl_tools.py": "table generate", "merge_hccl": "table merge", "merge_hccl.py": "table merge",
    "ckpt average": "ckpt merge --average N", "ckpt list": "ckpt ls", "ckpt convert": "ckpt export", "ckpt rm": "ckpt prune",
}  # fmt: skip
_RESUMES = frozenset(("resume", "continue"))
_SHELLS = frozenset(("bash", "sh"))
_MODEL = "write the model without an option: `tlaunch {command} {value}`"
_EVERY_STEP = "leave it out: the log and metrics.jsonl in the run directory have every step"
_METRICS = "leave it out: the run directory has metrics.jsonl and TensorBoard files"
# Options that are not options here: the hint, for each command ("": for all). `launcher.recipes.synonyms` has options that
# only have another name, and `launcher.cli.launch.external.options` has the options of other launchers.
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(("-w", "--watch"), "use `tlaunch top` to watch a run"),
        "--color": "set NO_COLOR=1 or FORCE_COLOR=1 in the environment",
    },
    "run": {
        "--servers": "write a rank table with `tlaunch table generate --servers {value} --devices N --output table.json`, and "
        "use --rank-table table.json",
        "--distribute": "leave it out: --devices sets the number of ranks",
        **dict.fromkeys(("--strategy", "--strategies"), "use `--recipe quickstart --set strategies.OPERATOR={value}`"),
        **dict.fromkeys(
            ("--valid-source", "--valid-target", "--validpref", "--valid-file", "--validation-file", "--valid-src"),
            "prepare the text with `tlaunch data preprocess --split valid`, and use --data",
        ),
        **dict.fromkeys(("--log-interval", "--log-every-n-steps", "--logging-steps", "--log-every"), _EVERY_STEP),
        **dict.fromkeys(("--report-to", "--tensorboard-logdir", "--tensorboard-dir", "--logger"), _METRICS),
        **dict.fromkeys(("--wandb-project", "--use-wandb", "--wandb"), _METRICS),
    },
    "translate": {
        **dict.fromkeys(
            ("--input", "-i", "--source", "--src", "--file", "--text"),
            "redirect the file to stdin: `tlaunch translate < {value}`",
        ),
        **dict.fromkeys(("--output", "-o", "--out"), "redirect stdout to the file: `tlaunch translate > {value}`"),
        **dict.fromkeys(("--model", "-m", "--ckpt", "--checkpoint", "--path", "--run"), _MODEL),
        **dict.fromkeys(("--nbest", "--n-best", "--num-return-sequences"), "leave it out: each sentence gets one translation"),
    },
    "evaluate": {
        **dict.fromkeys(("--model", "-m", "--ckpt", "--checkpoint", "--path", "--run"), _MODEL),
        **dict.fromkeys(
            ("--hyp", "--hypothesis", "--hypotheses", "--sys"),
            "leave it out: `tlaunch evaluate` translates --source itself; to score a file, use `sacrebleu REFERENCE -i {value}`",
        ),
    },
    "validate": dict.fromkeys(
        ("--rank-table-file", "--rank-table", "-t"), "write the file without an option: `tlaunch validate {value}`"
    ),
}  # fmt: skip
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)
RANK, MAX_RANK_DIGITS = "--rank", 6  # runs have longer names
DURATION = "TIME"  # metavar of options that take a duration
_UNITS = {
    **{unit: unit for unit in UNITS_S},
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}


def refusal(error: TlaunchError | click.ClickException, words: Sequence[str], group: click.Group) -> TlaunchError:
    """Convert click's error to a TlaunchError, with a hint for an option without a value, a duration in two words, a rank as RUN."""
    refused = error if isinstance(error, TlaunchError) else as_usage_error(error, words)
    command, own = _command_called(words, group), list(takewhile("--".__ne__, words))
    hint = _hint_of_duration(refused, own, command) or _hint_of_rank(refused, own, command)
    refused.hint = hint or _whole_line(refused, words) or refused.hint
    if refused.hint is None and refused.message.endswith(NEEDS_VALUE):
        option = refused.message.split()[0].rstrip(":")
        refused.hint = next((_wanted(param) for param in command.params if option in param.opts), None)
    return refused


def _whole_line(error: TlaunchError, words: Sequence[str]) -> str | None:
    """Return a hint with the whole command line if another COMMAND should replace the one that ends it, else None."""
    if error.instead is None or error.hint is None:
        return None
    typed, instead = error.instead
    before = list(words[: -len(typed)])
    if tuple(words[len(before) :]) != typed:  # a rerun
        return None
    if before[-1:] == ["--"]:
        del before[-1]
    line = shell_words(("tlaunch", *masked_argv(before), "--", *masked_argv(instead)))
    return f"{error.hint.partition(': ')[0]}: `{line}`{' (fill in the masked values)' if MASK in line else ''}"


def _command_called(words: Sequence[str], group: click.Group) -> click.Command:
    """Return the command that the words before `--` call."""
    command: click.Command = group
    for word in takewhile("--".__ne__, words):
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    return command


def as_usage_error(error: click.ClickException, words: Sequence[str] = ()) -> UsageError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    match error:
        case UnknownCommand(ctx=click.Context() as group):
            return _no_such_command(error.words, group)
        case click.NoSuchOption():
            return _no_such_option(error.option_name, context, words)
        case click.BadOptionUsage():
            needs = NEEDS_VALUE if "requires" in error.message else "takes no value"
            return UsageError(f"{error.option_name} {needs}")
        case click.MissingParameter(param=click.Parameter() as param):
            return UsageError(f"{typed_name(param)} is missing", hint=_wanted(param) or _usage(context))
        case click.BadParameter(param=click.Parameter() as param):
            return refused_value(error, param)
    message, hint = error.message, _usage(context)
    if context is not None and (extra := _EXTRA.search(message)):
        message = f"{context.command_path} got unexpected arguments: {extra[1]}"
        if context.info_name == "translate":
            hint = f"redirect the file to stdin: `tlaunch translate MODEL < {shell_words([extra[1]])}`"
    else:
        message = f"{message[:1].lower()}{message[1:]}".rstrip(".")
    return UsageError(message, hint=hint)


def _no_such_command(words: Sequence[str], context: click.Context) -> UsageError:
    if is_python(words[0]) and words[1:] and os.path.basename(words[1]) in COMMANDS_CALLED_HERE:  # noqa: PTH119 - any word
        words = (os.path.basename(words[1]), *words[2:])  # noqa: PTH119
    name, group, path = words[0], context.command, context.command_path
    is_called_here = " ".join((*path.split()[1:], name)) in COMMANDS_CALLED_HERE
    whole = as_other_launcher(words) if context.parent is None else None
    is_program = "/" in name and os.path.isfile(name) and os.access(name, os.X_OK)  # noqa: PTH113 - a Path raises for some
    if whole is None and not is_called_here and (names_program(name) or name in _SHELLS or is_program):
        whole = as_without_run(context, words)
    if whole is not None:
        return whole
    known = group.list_commands(context) if isinstance(group, click.Group) else ()
    hint = did_you_mean(near(name, known))
    if is_called_here:
        hint = _hint_of_alias(words, context)
    elif context.parent is None and name in _RESUMES:
        options = list(masked_argv(words[1:]))
        run = options.pop(0) if options and not options[0].startswith("-") else "RUN"
        hint = f"use `{shell_words((path, 'rerun', run, '--resume', run, *options))}`"
    elif context.parent is None and name in PROGRAMS:
        hint = f"use `{path} run` to start ranks; see `{path} run --help`"
    return UsageError(f"{path} has no command {name}", hint=hint or f"list the commands with `{path} --help`")


def _hint_of_alias(words: Sequence[str], context: click.Context) -> str:
    """Return a hint with the command for a line that starts with another tool's command name."""
    name, *rest = words
    root, *before = context.command_path.split()
    line = (root, *COMMANDS_CALLED_HERE[" ".join((*before, name))].split())
    called, fixed = context.find_root(), list(line[1:])
    while isinstance(called.command, click.Group) and fixed and not fixed[0].startswith("-"):
        word = fixed.pop(0)
        command = called.command.get_command(called, word)
        assert command is not None
        called = click.Context(command, parent=called, info_name=word, **command.context_settings)
    try:
        left_over = called.command.make_parser(called).parse_args(list(rest))[1]
        advice = f"see `{called.command_path} {HELP}`" if left_over else None
    except click.UsageError as error:
        advice = as_usage_error(error, words).hint
    return f"use `{shell_words(line)}`; {advice}" if advice else f"use `{shell_words((*line, *masked_argv(rest)))}`"


def _no_such_option(option: str, context: click.Context | None, words: Sequence[str]) -> UsageError:
    if context is None:
        return UsageError(f"no such option: {option}")
    if (whole := as_of_run(context, words) or as_without_run(context, words)) is not None:
        return whole
    command = context.command
    is_like_run = isinstance(command, TakesCommand) and command.is_like_run
    known = [
        name
        for param in context.command.get_params(context)
        if isinstance(param, click.Option) and not param.hidden
        for name in (*param.opts, *param.secondary_opts)
    ]
    has_program = any(word == "--" or names_program(word) for word in words)
    of_other = counterpart(option)
    hint = None if is_like_run and has_program else _hint_of_options(option, context, words)
    if option == "--no-config":  # an option of `tlaunch` itself
        hint = f"write it before the command: `{context.find_root().command_path} --no-config ...`"
    if hint is None and of_other is not None and (of_other.here in known or is_like_run):
        hint = of_other.advice
    hint = hint or did_you_mean(near(option, known))
    if hint is None and is_like_run and not has_program:
        hint = _hint_of_settings(option, words, known)
        if hint is not None and context.info_name == "rerun":
            hint += "; put options of the program after `--`"
    listed = f"list the options with `{context.command_path} {HELP_ALL if HELP_ALL in known else HELP}`"
    if isinstance(command, TakesCommand):
        listed += "; put options of the program after `--`"
    return UsageError(f"{context.command_path} has no option {option}", hint=hint or listed)


def _given(words: Sequence[str]) -> dict[str, str | None]:
    """Return the options in `words`, each with its value, or None for an option without a value."""
    given: dict[str, str | None] = {}
    for word, following in pairwise((*masked_argv(words), "-")):
        name, is_joined, value = word.partition("=")
        if name.startswith("-") and name.strip("-"):
            given[name] = value if is_joined else None if following.startswith("-") else following
    return given


def _range(value: str) -> str:
    """Return a range of hccl_tools.py, such as [0,4), as tlaunch writes it, and other values unchanged."""
    found = re.fullmatch(r"\[(\d{1,5}),\s*(\d{1,5})\)", value)
    return f"{found[1]}-{int(found[2]) - 1}" if found else value


def _hint_of_options(option: str, context: click.Context, words: Sequence[str]) -> str | None:
    """Return a hint for `option` and the other options in `words` that this command calls otherwise, or does not need."""
    from launcher.recipes.synonyms import options_called  # only for mistyped lines

    own = options_of(context.command)
    is_like_run = isinstance(context.command, TakesCommand) and context.command.is_like_run
    of_command = {**INSTEAD[""], **INSTEAD.get("run" if is_like_run else context.info_name or "", {})}
    options: list[str] = []
    hints: list[str] = []
    given = {name: value for name, value in _given(words).items() if name not in own}
    for name, value in {option: None, **given}.items():
        key = name if name in of_command else name.replace("_", "-")
        if key in of_command:
            shown = "FILE" if value is None else shell_words([value])
            hints.append(of_command[key].format(command=context.info_name, value=shown))
        elif not is_like_run and (called := options_called(name, own)):
            options += [called[0], *([_range(value)] if own[called[0]] and value is not None else [])]
        elif name == option:
            return None
    return "; ".join((*([f"use `{shell_words(options)}`"] if options else []), *hints))


def _hint_of_settings(option: str, words: Sequence[str], own: Collection[str]) -> str | None:
    """Return a hint for `option` and the other options in `words` that belong to other trainers, such as `--epochs 3`."""
    from launcher.recipes.catalog import hint_of_recipes, recipe_named  # only for mistyped lines
    from launcher.recipes.settings import all_settings, hint_for

    given = _given(words)
    try:
        settings = all_settings(recipe_named(given.get("--recipe")).settings)
    except UsageError:  # reported once the options are right
        return None
    given = {name: value for name, value in given.items() if name not in own}
    if hint_for({option: None}, settings) is not None:
        return hint_for(given, settings)
    return hint_of_recipes(option.lstrip("-"))


def _wanted(param: click.Parameter) -> str | None:
    if choices := choices_of(param):
        return f"choose from {', '.join(choices)}"
    if isinstance(param, click.Option) and param.metavar and param.help:
        return f"{typed_name(param)} {param.metavar}: {param.help[:1].lower()}{param.help[1:].rstrip('.')}"
    return None


def _usage(context: click.Context | None) -> str | None:
    if context is None:
        return None
    return " ".join(("usage:", context.command_path, *context.command.collect_usage_pieces(context)))


def _hint_of_rank(error: TlaunchError, words: Sequence[str], command: click.Command) -> str | None:
    """Return a hint for a rank that was written as an argument, such as `tlaunch logs 2` or `tlaunch logs rank 2`.

    Return None if the command has no --rank, or `error` is not about this argument.
    """
    if not any(RANK in param.opts for param in command.params) or RANK in words:
        return None
    ranks = (word for word in words if word.isdecimal() and len(word) <= MAX_RANK_DIGITS)
    about = re.compile(r"(?:^|start with |arguments: (?:\w+ )*)(\d+)(?!\S*\w)")
    found = about.search(error.message)
    return f"to choose rank {found[1]}, use `{RANK} {found[1]}`" if found is not None and found[1] in ranks else None


def _hint_of_duration(error: TlaunchError, words: Sequence[str], command: click.Command) -> str | None:
    """Return a hint for a duration that was written as two words, such as `--hang-timeout 10 m`.

    `run` reads that as 10 seconds and a program `m`. Return None if `error` is not about the unit. `words` is the command
    line up to `--`.
    """
    takers = {name for param in command.params if param.metavar == DURATION for name in param.opts}
    for (option, second), (_, third) in pairwise(pairwise((*words, ""))):
        name, is_joined, value = option.partition("=")
        number, unit = (value, second) if is_joined else (second, third)
        is_split = name in takers and number.replace(".", "", 1).isdecimal() and unit in _UNITS
        if is_split and (error.message.startswith((f"{unit}:", f"{name}:")) or error.message.endswith(f": {unit}")):
            return f"write the duration as one word: {name}{'=' if is_joined else ' '}{number}{_UNITS[unit]}"
    return None
