"""Which format a document is in, and what is said about files that are no rank table."""

import pytest

from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.check import READERS
from launcher.rank_table.table_format import Format, recognise

SERVERS = [{"server_id": "10.0.0.1", "device": [{"device_id": "0", "rank_id": "0"}]}]
WITHOUT_RANK = [{"server_id": "10.0.0.1", "device": [{"device_id": "0", "device_ip": "192.0.0.1"}]}]

# Small documents of each format, nothing in them but what tells it.
DOCUMENTS = {
    "v1.0": ({"version": "1.0", "server_list": SERVERS}, Format.V1_0),
    "v1.0 with host ranks' key": ({"version": "1.0", "node_list": []}, Format.V1_0),
    "v1.1": ({"version": "1.1", "node_list": []}, Format.V1_1),
    "v1.1 with servers": ({"version": "1.1", "server_list": SERVERS}, Format.V1_1),
    "v1.2": ({"version": "1.2", "server_list": SERVERS, "super_pod_list": []}, Format.V1_2),
    "v1.2 without super pods": ({"version": "1.2", "server_list": SERVERS}, Format.V1_2),
    "v2.0": ({"version": "2.0", "rank_list": []}, Format.V2_0),
    "v2.0 with servers": ({"version": "2.0", "server_list": SERVERS}, Format.V2_0),
    "lab": ({"deploy_mode": "lab", "group_list": []}, Format.LAB),
    "cloud": ({"group_count": "1", "group_list": []}, Format.CLOUD),
    "cloud without a list": ({"group_count": "1"}, Format.CLOUD),
    "no version, servers": ({"server_list": SERVERS}, Format.V1_0),
    "no version, nodes": ({"node_list": []}, Format.V1_1),
    "no version, ranks": ({"rank_list": []}, Format.V2_0),
    "nothing": ({}, None),
    "some other JSON": ({"name": "a package", "private": True}, None),
    "just begun": ({"status": "initializing"}, Format.V1_0),
    "version of v1.2 as a number": ({"version": 1.2, "server_list": SERVERS}, Format.V1_2),
    "version as a number": ({"version": 1.0, "server_list": SERVERS}, Format.V1_0),
    "version as a number, ranks": ({"version": 2.0, "rank_list": []}, Format.V2_0),
    "global table": ({"version": "1.0", "server_group_list": []}, Format.GLOBAL_TABLE),
    "several clusters": ({"version": "1.0", "server_list": SERVERS, "cluster_list": []}, Format.CROSS_CLUSTER),
    "prefill": ({"version": "1.2", "prefill_device_list": []}, Format.DISAGGREGATED_PREFILL),
    "decode": ({"version": "1.2", "decode_device_list": []}, Format.DISAGGREGATED_PREFILL),
    "one device's links": ({"version": "1.0", "server_list": WITHOUT_RANK}, Format.LOCAL_RESOURCES),
    "one device's links, v1.2": ({"version": "1.2", "server_list": WITHOUT_RANK}, Format.LOCAL_RESOURCES),
    "root info": ({"version": "2.0", "topo_file_path": "topo.json", "rank_list": []}, Format.ROOT_INFO),
    "switches": ({"version": "1.0", "tor_count": "1", "tor_list": [{"tor_ip": "10.0.0.1"}]}, Format.SWITCHES),
    "request": ({"allocated_group_resource": []}, Format.RESOURCE_REQUEST),
    "unknown version": ({"version": "1.9", "server_list": SERVERS}, None),
    "a version with a blank": ({"version": "1.0 ", "server_list": SERVERS}, None),
    "a list": ([], None),
    "a string": ("1.0", None),
    "null": (None, None),
}
RELATED = sorted((form for form in Format if not form.is_rank_table), key=lambda form: form.value)


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_format_is_recognised(name):
    document, expected = DOCUMENTS[name]
    assert recognise(document) is expected


def test_every_format_has_a_document_a_name_and_where_it_is_a_table_a_reader():
    assert {expected for _, expected in DOCUMENTS.values()} == {*Format, None}
    assert set(READERS) == {form for form in Format if form.is_rank_table}
    assert all(form.title and form.title != form.value for form in Format)
    assert len({form.title for form in Format}) == len(Format)
    assert all(CATALOGUE[code].explanation for code in ("RT201", "RT202", "RT203", "RT207"))


def test_two_devices_without_ranks_are_a_faulty_table(report):
    servers = [{"server_id": "a", "device": [{"device_id": "0"}, {"device_id": "1"}]}]
    found = report({"version": "1.0", "server_count": "1", "status": "completed", "server_list": servers})
    assert found.format is Format.V1_0
    assert [problem.message for problem in found.errors] == ["rank_id is missing here"] * 2


@pytest.mark.parametrize("form", RELATED, ids=lambda form: form.value)
def test_related_file_is_named_and_checked_no_further(form, report):
    document = next(document for document, expected in DOCUMENTS.values() if expected is form)
    found = report({**document, "status": 7, "nobody_knows_this": 1})
    assert found.format is form
    assert found.cluster is None
    (problem,) = found.problems
    assert problem.code == "RT202"
    assert form.title in problem.message
    assert problem.hint == form.use
    assert (found.servers, found.devices) == (0, 0)


@pytest.mark.parametrize(("document", "remove", "add"), [
    (DOCUMENTS["several clusters"][0], "cluster_list", {}),
    (DOCUMENTS["one device's links"][0], None, {"server_list": SERVERS}),
])  # fmt: skip
def test_hint_that_makes_a_related_file_a_table_is_right(document, remove, add, report):
    table = {"status": "completed", "server_count": "1", **document, **add}
    table.pop(remove, None)
    assert report(table).valid


def test_unknown_version_is_shown_with_the_known_ones(report):
    (problem,) = report({"version": "1.9", "server_list": SERVERS}).problems
    assert (problem.code, problem.pointer) == ("RT203", "/version")
    assert '"1.9"' in problem.message
    assert all(version in problem.hint for version in ("1.0", "1.1", "1.2", "2.0"))


@pytest.mark.parametrize(
    ("document", "named"),
    [([], "a list"), ('"x"', "a string"), (1, "a number"), (None, "null"), (True, "true or false")],
)
def test_document_that_is_no_object_is_none(document, named, report):
    (problem,) = report(document).problems
    assert problem.code == "RT201"
    assert problem.message.endswith(named)
