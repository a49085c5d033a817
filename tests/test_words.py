"""Docstrings, messages and documentation are in plain English.

The tests count phrases that plain technical English rarely uses. torchtitan and uv have less than 1 per 1,000 words. A
phrase may be right in its place, so the limits are not 0. A failed test shows the texts to read again.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_PER_1000_WORDS = 3.0
MAX_LONG_SENTENCES = 0.06  # share of sentences with more than MAX_WORDS words in the documentation
MAX_WORDS = 30
MAX_INVENTED_NAMES = 10
SHOWN = 15

PHRASES = {  # to avoid: what to write instead
    r"\breturns? (?:what|which|whether|why|how|where|who|whom)\b": "name the result: Return the exit code",
    r"\b(?:of|by|in|from|for|with|to|on|at|behind|after|before|under) (?:which|whom|whose)\b": "two sentences",
    r"\b(?:those|that) (?:of|that|which|who)\b": "repeat the noun",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer\b)": "is not a",
    r"\b(?:stands?|lies|stood)\b": "is",
    r"\balone\b": "only",
    r"\bso (?:many|much|long|often)\b": "the number",
    r"\b(?:told|tells?|telling)\b": "report, log, print",
    r"\b(?:anew|besides?|whoever|whatever|thereof|therefrom|wherever|hitherto)\b": "again, next to, anyone who",
    r"\b(?:one's own|of (?:its|their|one's|your|his) own|of (?:ours|theirs|yours))\b": "its own X",
    r"\b(?:takes? note|makes? ready|goes? on|gone on|comes? of|made of it)\b": "record, prepare, continue",
    r"\b(?:nobody|neither|nor)\b": "not",
}
PHRASE = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE)
INVENTED_NAME = re.compile(
    r"(?:^|_)(?:told|tells?|here|there|meant|elsewhere|alike|goes|vain|unheard|whole|behind|besides?|begun|gone|wish|due|ways)(?:_|$)"
)


def words(text):
    return len(re.findall(r"[A-Za-z][A-Za-z'-]*", text))


def sentences(text):
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(line.strip() for line in paragraph.splitlines())
        yield from re.split(r"(?<=[.!?:;])\s+(?=[A-Z`\"'(])", joined)


@cache
def modules():
    paths = sorted((ROOT / "launcher").rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def docstrings():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield path, text


def messages():
    """Yield the strings of raised errors, hints and help texts."""
    for path, tree in modules().items():
        for node in ast.walk(tree):
            is_said = isinstance(node, ast.keyword) and node.arg in {"hint", "help", "message"}
            said = node.value if is_said else node.exc if isinstance(node, ast.Raise) else None
            for each in ast.walk(said) if said else ():
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and words(each.value) > 3:
                    yield path, each.value


def documentation():
    """Yield the prose of README and docs, without code, tables, headings and generated references."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if "reference" not in path.parts:
            text = re.sub(r"```.*?```", "\n\n", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            text = re.sub(r"^\s*(?:\||#|---|!!!).*$", "\n", text, flags=re.MULTILINE)
            text = re.sub(r"^\s*(?:[*-]|\d+\.)\s+", "\n\n", text, flags=re.MULTILINE)
            yield str(path.relative_to(ROOT)), re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


@pytest.mark.parametrize("texts", [docstrings, messages, documentation])
def test_phrases_that_plain_english_rarely_uses_are_rare(texts):
    found = list(texts())
    total = sum(words(text) for _, text in found)
    read = [(path, sentence) for path, text in found for sentence in sentences(text)]
    lines = [f"{path}: {sentence}" for path, sentence in read for _ in PHRASE.finditer(sentence)]
    worst = "\n".join(f"{line[:200]} ({count})" for line, count in Counter(lines).most_common(SHOWN))
    rate = 1000 * len(lines) / total
    assert rate <= MAX_PER_1000_WORDS, f"{rate:.1f} per 1,000 of {total} words; read again:\n{worst}"


def test_sentences_of_the_documentation_are_short():
    found = [(path, each) for path, text in documentation() for each in sentences(text) if words(each) > 2]
    lines = [f"{path}: {sentence}" for path, sentence in found if words(sentence) > MAX_WORDS]
    share = len(lines) / len(found)
    worst = "\n".join(sorted(lines, key=words, reverse=True)[:SHOWN])
    assert share <= MAX_LONG_SENTENCES, f"{share:.1%} have more than {MAX_WORDS} words; split these:\n{worst}"


def test_functions_and_classes_have_the_names_of_the_field():
    names = [
        f"{path}: {node.name}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and INVENTED_NAME.search(node.name)
    ]
    assert len(names) <= MAX_INVENTED_NAMES, "\n".join(names)
