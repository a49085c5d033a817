"""`tlaunch table generate`: every source, what is visible, and what is written where."""

import json
import socket

import pytest

from launcher.rank_table import discover, load_cluster

CONF = "".join(f"address_{one}=192.168.{one}.1\nnetmask_{one}=255.255.0.0\n" for one in range(8))


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch):
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def generate(launcher):
    def run(*arguments, code=0, **options):
        done = launcher.call("table", "generate", *arguments, **options)
        assert done.returncode == code, done.stderr
        return done

    return run


def table_of(done):
    return json.loads(done.stdout)


def server_ids(done):
    return [server["server_id"] for server in table_of(done)["server_list"]]


def device_ids(done):
    return [[device["device_id"] for device in server["device"]] for server in table_of(done)["server_list"]]


def test_conf_to_a_table_that_validates(launcher, generate, tmp_path, umask, snapshot):
    """A table from an hccn.conf is valid without a warning, has its addresses, and is readable by group at most."""
    launcher.write("hccn.conf", CONF)
    done = generate("--hccn-conf", "hccn.conf", "--server-id", "10.0.0.1", "--output", "table.json")
    assert launcher.transcript(done) == snapshot
    output = tmp_path / "table.json"
    assert output.stat().st_mode & 0o777 == 0o640 & ~umask
    cluster, warnings = load_cluster(output)
    assert warnings == ()
    assert [device.device_ip for device in cluster.servers[0].devices] == [f"192.168.{one}.1" for one in range(8)]
    assert launcher.call("validate", "--strict", "table.json").returncode == 0


def test_conf_from_standard_input(launcher, generate, snapshot):
    """`-` reads the text from stdin, the table goes to stdout, everything else to stderr."""
    done = generate("--hccn-conf", "-", "--device-ids", "6,2", "--server-id", "node1", input=CONF)
    (server,) = table_of(done)["server_list"]
    assert [(one["device_id"], one["device_ip"], one["rank_id"]) for one in server["device"]] == [
        ("6", "192.168.6.1", "0"),
        ("2", "192.168.2.1", "1"),
    ]
    # What comes from stdin is taken to be another server's: variables of this machine do not count for it.
    done = generate("--hccn-conf", "-", "--server-id", "a", input=CONF, env={"ASCEND_VISIBLE_DEVICES": "1"})
    assert device_ids(done) == [[str(one) for one in range(8)]]
    twice = generate("--hccn-conf", "-", "--server-id", "a", input=CONF + "address_0=192.168.0.1\n")
    assert twice.stderr.splitlines() == snapshot(name="a line twice")
    broken = launcher.refused(2, "table generate --hccn-conf -", input=CONF + "address_0=10.*.*.*\n")
    assert broken == snapshot(name="broken")


def test_device_that_the_conf_does_not_list_has_no_address(generate, snapshot):
    """A device without an address is in no line of hccn.conf: one that is asked for is taken without, with a warning."""
    done = generate("--hccn-conf", "-", "--device-ids", "9,1", "--server-id", "a", input=CONF)
    (server,) = table_of(done)["server_list"]
    assert server["device"] == [
        {"device_id": "9", "rank_id": "0"},
        {"device_id": "1", "device_ip": "192.168.1.1", "rank_id": "1"},
    ]
    assert done.stderr.splitlines() == snapshot


def test_closed_stdin_is_unreadable(launcher):
    done = launcher.shell('exec "$@" <&-', "table", "generate", "--hccn-conf", "-")
    assert (done.returncode, done.stdout, done.stderr.startswith("error: stdin ")) == (2, "", True)


@pytest.mark.parametrize("name", ["127.0.1.1", "localhost"])
def test_loopback_names_are_warned_of(generate, name):
    """Such a table cannot be merged with others, which is said together with a name that can be used."""
    done = generate("--devices", "1", "--server-id", name)
    assert server_ids(done) == [name]
    assert f'warning: server_id "{name}"' in done.stderr
    assert "--server-id " in done.stderr.split("table: ")[1]


def test_programs_get_the_addresses_that_they_want(launcher, generate):
    """`same` gives each server its own address as container_ip and pod_ip, and `validate` then misses neither."""
    arguments = ("--servers", "10.0.0.1,10.0.0.2", "--devices", "8", "--container-ip", "same", "--pod-ip", "same")
    generate(*arguments, "-o", "table.json")
    for consumer in ("mindie", "msrun"):
        done = launcher.call("validate", "table.json", "--for", consumer)
        assert done.returncode == 0, done.stdout
        assert not any(name in done.stdout + done.stderr for name in ("container_ip", "pod_ip"))
    done = generate("--devices", "1", "--server-id", "a", "--container-ip", "10.0.0.7", "--pod-ip", "fd00::7")
    (server,) = table_of(done)["server_list"]
    assert (server["container_ip"], server["pod_ip"]) == ("10.0.0.7", "fd00::7")
    done = generate("--devices", "1", "--server-id", "a", "--host-ip", "10.0.0.9", "--pod-ip", "same")
    assert table_of(done)["server_list"][0]["pod_ip"] == "10.0.0.9"


def test_own_address_is_the_server_id(generate):
    """Without --server-id the server is named by an address that is not a loopback's, or by its host name."""
    done = generate("--devices", "2")
    (name,) = server_ids(done)
    assert not name.startswith("127.")
    assert name == socket.gethostname() or discover.own_server_id() == name
    assert f'note: server_id: "{name}"' in done.stderr


def test_several_servers(generate):
    """--devices gives the counts in the order of --servers, which may have ranges; ranks go through."""
    done = generate("--servers", "10.0.0.1,10.0.0.2,10.0.0.3", "--devices", "8,8,4")
    table = table_of(done)
    assert (table["server_count"], [len(ids) for ids in device_ids(done)]) == ("3", [8, 8, 4])
    assert table["server_list"][2]["device"][3] == {"device_id": "3", "rank_id": "19"}
    assert [server["host_ip"] for server in table["server_list"]] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert server_ids(generate("--servers", "node[1-3]", "--devices", "2")) == ["node1", "node2", "node3"]


def test_unusual_order_is_a_warning_and_sort_mends_it(generate, snapshot):
    """Ranks in the order given, with a warning that --sort takes away."""
    arguments = ("--servers", "node2,node1", "--device-ids", "4-5")
    done, mended = generate(*arguments), generate(*arguments, "--sort")
    assert (server_ids(done), server_ids(mended)) == (["node2", "node1"], ["node1", "node2"])
    assert device_ids(mended) == [["4", "5"], ["4", "5"]]
    assert [each.stderr.splitlines() for each in (done, mended)] == snapshot


@pytest.mark.parametrize(
    "arguments",
    [
        "--devices 8",
        "--devices 4 --device-ids 4-7 --host-ip 10.0.0.9",
        "--servers 10.0.0.1,10.0.0.2 --devices 8",
        "--servers fd00::1,fd00::2 --devices 2",
        "--servers node1,node2 --devices 64,2",
    ],
)
def test_what_is_generated_validates(launcher, generate, arguments):
    generate(*arguments.split(), "--output", "made.json")
    done = launcher.call("validate", "made.json")
    assert done.returncode == 0, done


def test_name_that_hccl_refuses_is_a_warning(generate):
    """HCCL reads files whose names end in .json: another name is said while it can be changed."""
    assert "warning[RT406]" in generate("--devices", "1", "-o", "table.txt").stderr


def test_options_that_make_no_sense(launcher, snapshot):
    """Exit 2, nothing written, and a message with what was given and what to do."""
    refused = launcher.refused(
        2,
        *(
            f"table generate {options}"
            for options in (
                "--devices 8 --nvidia-smi",
                "--hccn-conf x --hccn-tool",
                "--servers a,b",
                "--servers a,b --devices 8,8,8",
                "--servers a,b --hccn-tool",
                "--servers a,b --devices 1 --server-id c",
                "--servers a,b --devices 1 --host-ip 10.0.0.1",
                "--servers a,a --devices 1",
                "--devices 0",
                "--devices 33 --server-id a",
                "--devices 3 --device-ids 0-3",
                "--servers a,b --devices 1 --pod-ip 10.0.0.1",
                "--servers 10.0.0.1,b --devices 1 --pod-ip same",
                "--devices 1 --container-ip node1",
                "--servers 'node[1-' --devices 1",
                "--device-ids '[0,8)'",
                "--devices 1 --host-ip node1",
                "--devices 1 --server-id ''",
            )
        ),
    )
    assert refused.count("! hint: ") == refused.count("! error: ")
    assert refused == snapshot


def test_visible_devices_of_a_plain_count(launcher, generate, snapshot):
    """--devices takes the first of what is visible, keeps physical ids, and cannot take more."""
    environment = {"ASCEND_RT_VISIBLE_DEVICES": "4-6"}
    done = generate("--devices", "2", "--server-id", "a", env=environment)
    assert device_ids(done) == [["4", "5"]]
    assert done.stderr.splitlines() == snapshot(name="first")
    assert launcher.refused(2, "table generate --devices 4", env=environment) == snapshot(name="more")
