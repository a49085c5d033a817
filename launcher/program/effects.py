"""What a piece of Python may do to the imports that come after it, as far as its text tells.

Two questions. `is_harmless`: whether an expression, evaluated while a module is imported, runs none of the program's own
code and changes nothing. `mentions_change`: whether there is anything in a module, at whatever depth, that changes what
an import finds or what an imported module reads: variables, search path, loaded modules, working directory, limits.

Unclear counts as a change: it only costs time. Installed packages cannot be read, and are taken to be well-behaved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Variables that programs often set, and that no module worth preloading reads when it is imported.
UNREAD_VARIABLES = frozenset("MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK TOKENIZERS_PARALLELISM".split())  # noqa: SIM905
_ENVIRONMENTS = frozenset({"environ", "environb"})
_OF_SYS = frozenset({"path", "modules"})  # words that mean much else elsewhere
_OF_IMPORTS = frozenset({"__import__", "meta_path", "path_hooks", "path_importer_cache"})
_READING_METHODS = frozenset(
    {"get", "copy", "keys", "values", "items", "index", "count", "__contains__", "__getitem__"}
)
_READING_FUNCTIONS = frozenset(f"builtins.{name}" for name in ("dict", "len", "list", "print", "sorted", "str"))
# Those that load libraries set variables for them; the last line's run text that nobody has looked into.
_CHANGING_FUNCTIONS = frozenset(
    """
    CDLL LoadLibrary PyDLL addpackage addsitedir cdll chdir cpu_affinity fchdir load_dotenv putenv pydll read_env
    sched_setaffinity setdlopenflags setenv setrlimit unsetenv
    exec_module import_module load_module run_module run_path
    """.split()  # noqa: SIM905 - reads better
)
_EXECUTING_BUILTINS = frozenset({"exec", "eval"})
_TELLING_TEXTS = _ENVIRONMENTS | _OF_IMPORTS | _CHANGING_FUNCTIONS  # as in getattr(os, "environ")
# Functions that call nothing of the program's, whatever they are given, since nothing has been made of its classes yet.
_HARMLESS_FUNCTIONS = frozenset(
    """
    abc.abstractmethod argparse.ArgumentParser builtins.abs builtins.bool builtins.classmethod builtins.dict
    builtins.float builtins.frozenset builtins.int builtins.isinstance builtins.len builtins.list builtins.print
    builtins.property builtins.range builtins.repr builtins.set builtins.staticmethod builtins.str builtins.tuple
    collections.Counter collections.OrderedDict collections.deque collections.namedtuple contextlib.contextmanager
    contextlib.suppress dataclasses.dataclass dataclasses.field enum.auto enum.unique functools.cache
    functools.lru_cache functools.wraps logging.basicConfig logging.getLogger os.cpu_count os.environ.get os.getcwd
    os.getenv os.getpid pathlib.Path pathlib.PurePath re.compile threading.Event threading.Lock threading.RLock
    time.perf_counter time.time typing.NewType typing.ParamSpec typing.TypeVar typing.cast typing.final typing.overload
    warnings.catch_warnings warnings.filterwarnings
    """.split()  # noqa: SIM905 - reads better
)
_OWN = ""  # stands for something of the program's


class Names:
    """What the names of a module stand for: `osp` for os.path, `Path` for pathlib.Path.

    A name that is bound in two ways, anywhere in the module, may be anything.
    """

    def __init__(self, module: ast.Module) -> None:
        self._meanings: dict[str, str] = {}
        self._builtins = True
        for node in ast.walk(module):
            for name, meaning in _bound(node):
                self._builtins = self._builtins and name != "*"  # a star may hide them
                self._meanings[name] = meaning if self._meanings.get(name, meaning) == meaning else _OWN

    def meaning(self, node: ast.AST) -> str:
        """As "os.path.join"; empty for what is the program's own, or unknown."""
        if isinstance(node, ast.Attribute):
            base = self.meaning(node.value)
            return f"{base}.{node.attr}" if base else _OWN
        if isinstance(node, ast.Name):
            return self._meanings.get(node.id, f"builtins.{node.id}" if self._builtins else _OWN)
        return _OWN


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        case ast.ImportFrom(module=module, names=aliases, level=level):
            for alias in aliases:
                yield alias.asname or alias.name, _OWN if level else f"{module}.{alias.name}"
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name, _OWN
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name, _OWN


def is_harmless(expression: ast.AST | None, names: Names) -> bool:
    """Whether evaluating it calls nothing but what is known to be harmless."""
    return expression is None or all(_is_harmless_node(node, names) for node in _evaluated(expression))


def _evaluated(expression: ast.AST) -> Iterator[ast.AST]:
    """Without the bodies of lambdas: they run when they are called."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _is_harmless_node(node: ast.AST, names: Names) -> bool:
    if isinstance(node, ast.Call):
        meaning = names.meaning(node.func)
        return meaning in _HARMLESS_FUNCTIONS or meaning.startswith("os.path.")
    return not isinstance(node, ast.Await | ast.Yield | ast.YieldFrom)


def is_unread_variable(target: ast.AST) -> bool:
    """`os.environ["MASTER_ADDR"]` and the like: to be set by anybody at any time."""
    return isinstance(target, ast.Subscript) and is_environment(target.value) and _is_unread(target.slice)


def is_environment(node: ast.AST) -> bool:
    """`os.environ`, or `environ`, by whatever name `os` goes."""
    return _last_word(node) in _ENVIRONMENTS


def mentions_change(module: ast.Module, names: Names, known: set[ast.AST]) -> bool:
    """Anywhere in the module, called or not; `known`: nodes whose effect the caller sees to."""
    read = {id(node) for parent in ast.walk(module) for node in _only_read(parent, names)} | {
        id(node) for node in known
    }
    return any(_may_change(node, names) and id(node) not in read for node in ast.walk(module))


def _only_read(parent: ast.AST, names: Names) -> list[ast.expr]:  # noqa: PLR0911 - one for each form
    """Those of its parts that it only looks at, should they be the environment or the like."""
    match parent:
        case ast.Subscript(value=value, ctx=ast.Load()):
            return [value]
        case ast.Subscript(value=value) if is_unread_variable(parent):
            return [value]
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[looked_at]):
            return [looked_at]
        case ast.For(iter=looked_at) | ast.comprehension(iter=looked_at):
            return [looked_at]
        case ast.Dict(keys=keys, values=values):  # {**os.environ}
            return [value for key, value in zip(keys, values, strict=True) if key is None]
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
            unread = name == "setdefault" and arguments and _is_unread(arguments[0])
            return [value] if name in _READING_METHODS or unread else []
        case ast.Call(func=called, args=arguments) if names.meaning(called) in _READING_FUNCTIONS:
            return arguments
    return []


def _is_unread(key: ast.AST) -> bool:
    return isinstance(key, ast.Constant) and key.value in UNREAD_VARIABLES


def _may_change(node: ast.AST, names: Names) -> bool:
    match node:
        case ast.Attribute(value=value, attr=word):
            of_sys = word in _OF_SYS and "sys" in {_last_word(value), names.meaning(value)}
            return of_sys or word in _ENVIRONMENTS | _OF_IMPORTS | _CHANGING_FUNCTIONS
        case ast.Name(id=word):
            return word in _ENVIRONMENTS | _OF_IMPORTS | _CHANGING_FUNCTIONS | _EXECUTING_BUILTINS
        case ast.ImportFrom(module="sys", names=aliases):
            return any(alias.name in _OF_SYS for alias in aliases)
        case ast.alias(name=word, asname=other) if other not in {None, word}:  # under another name it goes unseen
            return word in _ENVIRONMENTS | _OF_IMPORTS | _CHANGING_FUNCTIONS
        case ast.Constant(value=str(text)):
            return text in _TELLING_TEXTS
    return False


def _last_word(node: ast.AST) -> str | None:
    word: str | None = getattr(node, "attr", getattr(node, "id", None))
    return word
