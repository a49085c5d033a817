"""`tlaunch table generate`: every source, what is visible, and what is written where."""

import json
import socket

import pytest

from launcher.rank_table import discover, load_cluster

from .transcript import typed_lines

CONF = "".join(f"address_{one}=192.168.{one}.1\nnetmask_{one}=255.255.0.0\n" for one in range(8))
MADE = """
--servers 10.0.0.1,10.0.0.2,10.0.0.3 --devices 8,8,4; --servers node[1-3] --devices 2
--servers node2,node1 --device-ids 4-5; --servers node2,node1 --device-ids 4-5 --sort
--devices 1 --server-id a --container-ip 10.0.0.7 --pod-ip fd00::7
--devices 1 --server-id a --host-ip 10.0.0.9 --pod-ip same; --devices 1 --server-id a -o table.txt
"""
VALID = """
--devices 8; --devices 4 --device-ids 4-7 --host-ip 10.0.0.9; --servers fd00::1,fd00::2 --devices 2
--servers node1,node2 --devices 64,2; --servers 10.0.0.1,10.0.0.2 --devices 8 --container-ip same --pod-ip same
"""
SENSELESS = """
--devices 8 --nvidia-smi; --hccn-conf x --hccn-tool; --servers a,b; --servers a,b --devices 8,8,8
--servers a,b --hccn-tool; --servers a,b --devices 1 --server-id c; --servers a,b --devices 1 --host-ip 10.0.0.1
--servers a,a --devices 1; --devices 0; --devices 33 --server-id a; --devices 3 --device-ids 0-3
--servers a,b --devices 1 --pod-ip 10.0.0.1; --servers 10.0.0.1,b --devices 1 --pod-ip same
--devices 1 --container-ip node1; --servers 'node[1-' --devices 1; --device-ids '[0,8)'; --devices 1 --host-ip node1
--devices 1 --server-id ''
"""


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch):
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def generate(options):
    return [f"table generate {each}" for each in typed_lines(options)]


def test_conf_to_a_table_that_validates(launcher, umask, snapshot):
    launcher.write("hccn.conf", CONF)
    command = "--hccn-conf hccn.conf --server-id 10.0.0.1 --output table.json"
    assert launcher.scene(*generate(command), code=0) == snapshot
    output = launcher.directory / "table.json"
    assert output.stat().st_mode & 0o777 == 0o640 & ~umask
    cluster, warnings = load_cluster(output)
    assert warnings == ()
    assert [device.device_ip for device in cluster.servers[0].devices] == [f"192.168.{one}.1" for one in range(8)]
    assert launcher.call("validate", "--strict", "table.json").returncode == 0


def test_conf_from_standard_input(launcher, snapshot):
    chosen = generate("--hccn-conf - --device-ids 6,2 --server-id a; --hccn-conf - --device-ids 9,1 --server-id a")
    assert launcher.scene(*chosen, code=0, input=CONF) == snapshot(name="some devices")
    # What comes from stdin is taken to be another server's: variables of this machine do not count for it.
    everything, hidden = generate("--hccn-conf - --server-id a"), {"ASCEND_VISIBLE_DEVICES": "1"}
    shown = launcher.scene(*everything, code=0, input=CONF, env=hidden)
    assert shown == launcher.scene(*everything, code=0, input=CONF) == snapshot(name="all devices")
    for name, line, code in (("a line twice", "address_0=192.168.0.1", 0), ("broken", "address_0=10.*.*.*", 2)):
        done = launcher.call(*everything[0].split(), input=f"{CONF}{line}\n")
        assert (done.returncode, done.stderr.splitlines()) == (code, snapshot(name=name))
    done = launcher.shell('exec "$@" <&-', "table", "generate", "--hccn-conf", "-")
    assert (done.returncode, done.stdout, done.stderr.startswith("error: stdin ")) == (2, "", True)


@pytest.mark.parametrize("name", ["127.0.1.1", "localhost"])
def test_loopback_names_are_warned_of(launcher, name):
    done = launcher.call("table", "generate", "--devices", 1, "--server-id", name)
    assert f'"server_id": "{name}"' in done.stdout
    assert f'warning: server_id "{name}"' in done.stderr
    assert "--server-id " in done.stderr.split("table: ")[1]


def test_own_address_is_the_server_id(launcher):
    done = launcher.call("table", "generate", "--devices", 2)
    name = json.loads(done.stdout)["server_list"][0]["server_id"]
    assert not name.startswith("127.")
    assert name == socket.gethostname() or discover.own_server_id() == name
    assert f'note: server_id: "{name}"' in done.stderr


def test_what_is_generated(launcher, snapshot):
    assert launcher.scene(*generate(MADE), code=0) == snapshot


def test_what_is_generated_validates(launcher):
    for command in generate(VALID):
        launcher.scene(f"{command} --force -o made.json", "validate made.json", code=0)
    assert "pod_ip" not in launcher.scene("validate made.json --for msrun", code=0)


def test_options_that_make_no_sense(launcher, snapshot):
    refused = launcher.refused(2, *generate(SENSELESS))
    assert refused.count("! hint: ") == refused.count("! error: ")
    assert refused == snapshot


def test_visible_devices_of_a_plain_count(launcher, snapshot):
    environment = {"ASCEND_RT_VISIBLE_DEVICES": "4-6"}
    made = launcher.scene("table generate --devices 2 --server-id a", code=0, env=environment)
    assert made == snapshot(name="first")
    assert launcher.refused(2, "table generate --devices 4", env=environment) == snapshot(name="more")
