"""What is said in the sections of MindSpore's messages."""

import pytest

from launcher.logs.tracebacks import find_traceback
from launcher.supervise.diagnosis.evidence import explained
from tests.mindspore_messages import DATASET, ITEM, KERNEL, MAP, NETWORK, SHAPES, TRACEBACK

USERS_FRAMES = """# 1 In file /home/me/net.py:47, 23~29
        return loss_fn(net(x), y)
                       ^~~~~~
# 3 In file /home/me/net.py:18, 12~20
        x = self.fc2(x)
            ^~~~~~~~
"""
OTHERS_NETWORK = NETWORK.replace("/home/me/", "/usr/lib/python3/dist-packages/")
LAST = NETWORK.partition("# 4")[0] + " (See file 'analyze_fail.ir' for more details.)\n"


@pytest.mark.parametrize(("message", "what", "where"), [
    (KERNEL, "RuntimeError: Launch kernel failed: Default/AllReduce-op0", None),
    (DATASET, "RuntimeError: Invalid cifar10 file, failed to read data from: cifar/data_batch_1.bin, re-download dataset.", None),
    (ITEM, "KeyError: 'label of image 40'", "dset.py:18 in __getitem__"),
    (MAP, "ValueError: cannot reshape array of size 16 into shape (17,)", "dset.py:22 in scale"),
    (f"Refer to 'Dataset Pipeline Error Message'.\n{ITEM}", "KeyError: 'label of image 40'", "dset.py:18 in __getitem__"),
    (NETWORK, f"RuntimeError: {SHAPES}", "net.py:18"),
    (OTHERS_NETWORK, f"RuntimeError: {SHAPES}", None),
    ("no such word\nand more", "RuntimeError: no such word", None),
    ("Refer to 'Nothing'.", "RuntimeError: Refer to 'Nothing'.", None),
    ("", "RuntimeError: ", None),
])  # fmt: skip
def test_the_section_that_says_it_is_found(message, what, where):
    assert explained("RuntimeError", message, None)[:2] == (what, where)


@pytest.mark.parametrize("message", [NETWORK, LAST])
def test_of_a_network_the_programs_own_lines_are_shown_and_the_error(message):
    assert explained("ValueError", message, TRACEBACK)[2] == f"{USERS_FRAMES}ValueError: {SHAPES}"


def test_of_a_dataset_the_exception_of_the_programs_own_code_is_shown():
    stack = ITEM[ITEM.index("Traceback") : ITEM.index("KeyError: '")]
    assert explained("RuntimeError", ITEM, TRACEBACK)[2] == f"{stack}KeyError: 'label of image 40'"


@pytest.mark.parametrize(("kind", "message", "shown"), [
    ("ValueError", OTHERS_NETWORK, SHAPES), ("RuntimeError", DATASET, DATASET),
    ("ValueError", "no such word\n  and more", "no such word\n  and more"),
])  # fmt: skip
def test_other_tracebacks_are_shown_without_sections_to_which_nothing_refers(kind, message, shown):
    before = f"{TRACEBACK}{kind}: {NETWORK}\nThe above exception was the direct cause of the following exception:\n\n{TRACEBACK}"
    found = explained(kind, message, f"{before}{kind}: {message}\n")[2]
    assert found.rstrip() == f"{before}{kind}: {shown}".rstrip()


@pytest.mark.parametrize(
    ("kind", "message", "where"),
    [("ValueError", NETWORK, "net.py:18"), ("RuntimeError", ITEM, "dset.py:18 in __getitem__"), ("RuntimeError", MAP, "dset.py:22 in scale")],
)  # fmt: skip
def test_a_log_tells_as_much_as_the_exception(kind, message, where):
    """Where a shell has started the program, its traceback in the log is all there is."""
    printed = f"{TRACEBACK}{kind}: {message}"
    found = find_traceback(f"{printed}[INFO] DISTRIBUTED(7,7f,python):2026-11-27-23:38:44.088.396 [a.cc:1]\n")
    what, place, traceback = explained(found.type, found.message, found.text)
    told = explained(kind, message, printed)
    assert (what, place or found.where, traceback) == (told[0], where, told[2])
