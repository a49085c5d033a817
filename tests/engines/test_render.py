"""How values are written into job files: they arrive as they are, or are refused."""

import subprocess

import pytest
import yaml as reader
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.core.errors import UsageError
from launcher.core.resources import data_dir
from launcher.engines.leftover_variables import leftovers
from launcher.engines.render import templates
from launcher.engines.render.kinds import KINDS

ODD = [
    "", " a  b ", "it's", '"', "$(touch x)", "`touch x`", "-n", "--", "a\nb", "\\", "*", "#", "é", "\t", "~", "!", "%j",
    "a\r\nb", "it's\r'$'\\r''",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


def test_every_template_is_there():
    named = {template for kind in KINDS.values() for template in kind.templates.values()}
    included = {"exec.j2", "handed_on.j2", "slurm.asks.j2"}
    assert {path.name for path in (data_dir("templates") / "render").iterdir()} == named | included


@settings(max_examples=20, deadline=None)
@given(st.lists(TEXT, max_size=50))
def test_a_shell_reads_words_as_they_were(texts):
    texts = [*ODD, *texts]
    written = " ".join(map(templates.sh, texts))
    assert written.replace("\n", "").replace("\t", "").isprintable()
    shown = subprocess.run(["bash", "-c", f"printf '%s\\0' {written}"], capture_output=True, check=True)
    assert shown.stdout.decode().split("\0") == [*texts, ""]


@given(TEXT)
def test_yaml_is_read_as_it_was(text):
    assert reader.safe_load(f"key: {templates.yaml(text)}\n") == {"key": text}


@given(st.one_of(TEXT, st.lists(st.text("ab \t#:-'\"$\n"), min_size=1).map("\n".join)))
def test_a_block_of_yaml_is_read_as_it_was(text):
    assert reader.safe_load(f"data:\n  key: {templates.yaml_block(text, 4)}\n  other: 1\n") == {
        "data": {"key": text, "other": 1}
    }


def test_a_script_is_a_block_that_people_can_read():
    assert templates.yaml_block("#!/bin/sh\n\ntrue\n", 2) == "|\n  #!/bin/sh\n\n  true"


@pytest.mark.parametrize(
    ("text", "written"), [("train-1", "train-1"), ("a b", '"a b"'), ('a"b\\', '"a\\"b\\\\"'), ("$(x)", '"$(x)"')]
)
def test_an_argument_of_sbatch(text, written):
    assert templates.sbatch(text) == written


@pytest.mark.parametrize(("write", "text"), [
    *((write, text) for write in (templates.sbatch, templates.word) for text in ("a\nb", "a\x1b[2J")),
    *((templates.word, text) for text in ("", "a b", "-x", "#x")),  # only quotes could hold it
])  # fmt: skip
def test_what_a_format_cannot_hold_is_refused(write, text):
    with pytest.raises(UsageError) as refused:
        write(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("write", [templates.sh, templates.yaml, templates.sbatch, templates.word])
def test_what_is_no_text_is_refused(write):
    """A file's name may be any bytes, a job file is UTF-8. Secrets are not shown."""
    with pytest.raises(UsageError) as refused:
        write("API_KEY=s3cr3t\udcff")
    assert "s3cr3t" not in str(refused.value)


def test_a_comment_ends_where_it_should():
    assert templates.FILTERS["comment"]("a\ntouch x") == "a\\ntouch x"


def test_leftovers_are_patterns_without_signs_first():
    first, slurm = leftovers()
    assert not first.signs
    assert {"RANK", "RANK_TABLE_FILE", "PET_RDZV_*", "OMPI_COMM_WORLD_*", "PMI_RANK"} < set(first.names)
    assert "OMPI_COMM_WORLD_RANK" not in first.names
    assert "SLURM_PROCID" in slurm.signs
    assert "SLURM_NTASKS" in slurm.names
