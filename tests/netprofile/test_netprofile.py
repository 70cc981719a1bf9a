"""What netprofile measures of which groups, how it ends, what it refuses."""

import json
import math
import os
import pathlib
import signal
import socket
import time

import pytest

OPERATIONS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Send")
REDUCTIONS = ("AllReduce", "ReduceScatter", "Reduce")
FEW = ("--sizes", "1KiB:256KiB:16", "--iterations", 3, "--repeats", 3)
LONG = ("--sizes", "1KiB:1MiB:2", "--iterations", 200, "--repeats", 10000)

pytestmark = pytest.mark.usefixtures("nothing_left")


def netprofile(prism, *flags, **kwargs):
    return prism("netprofile", "--device", "host", *flags, **kwargs)


def keys(profile):
    return sorted(
        (e["operation"], e.get("type", ""), e["ranks"], e["nodes"], e["bytes"], e["isolated"]) for e in profile["entries"]
    )


def expected_keys(groups, sizes, operations=OPERATIONS, types=("bf16", "fp32"), pairs=(1,), kinds=(False, True)):
    return sorted(
        (operation, type_, ranks, nodes, size, isolated)
        for operation in operations
        for type_ in (types if operation in REDUCTIONS else ("",))
        for ranks, nodes in ([(2, n) for n in pairs] if operation == "Send" else groups)
        for size in sizes
        for isolated in kinds
    )


def children(process):
    return [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def start_long_run(prism, tmp_path, ranks=3):
    process = prism.start("netprofile", "--device", "host", "--ranks", ranks, *LONG, "--out", tmp_path / "net.json")
    wait_for(lambda: len(children(process)) == ranks)
    first = process.stderr.readline()  # of rank 0, when all have come together
    assert "1 of 10: AllReduce bf16" in first, first
    return process


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_operation_size_and_type_is_measured(prism, tmp_path, ranks):
    out = tmp_path / "net.json"
    result = netprofile(prism, "--ranks", ranks, *FEW, "--out", out, "--json")
    assert result.code == 0, result.err
    profile = json.loads(out.read_text())
    assert json.loads(result.out) == profile
    assert (profile["schema"], profile["schema_version"]) == ("prism.netprofile", 1)
    assert keys(profile) == expected_keys([(ranks, 1)], [1 << 10, 1 << 14, 1 << 18])
    for entry in profile["entries"]:
        assert 0 < entry["p10_ns"] <= entry["median_ns"] <= entry["p90_ns"]
        assert entry["n"] == 3
    machine = profile["machine"]
    assert (machine["gpu"], machine["device"], machine["ranks"]) == ("NVIDIA H200", "host", ranks)
    assert machine["ranks_per_node"] == [ranks]


def test_smaller_groups_and_a_table_for_people(prism):
    flags = ("--ranks", 4, "--groups", "2,3,4", "--operations", "all_gather,reduce", "--types", "fp16", *FEW)
    profile = json.loads(netprofile(prism, *flags, "--json").out)
    sizes = [1 << 10, 1 << 14, 1 << 18]
    assert keys(profile) == expected_keys([(4, 1), (2, 1), (3, 1)], sizes, ("AllGather", "Reduce"), ("fp16",))
    table = netprofile(prism, *flags).out
    for heading in ("NVIDIA H200, NCCL 2.28.9", "AllGather, 3 ranks on 1 node", "Reduce fp16, 2 ranks on 1 node", "256 KiB"):
        assert heading in table


def test_sizes_beyond_the_memory_are_left_out_and_said(prism):
    result = netprofile(prism, "--ranks", 2, "--sizes", "1MiB:4GiB:64", "--operations", "alltoall", "--repeats", 2, "--iterations", 2,
                        "--json", env={"HOSTCUDA_MEMORY": "2GiB"})
    assert result.code == 0, result.err
    profile = json.loads(result.out)
    assert keys(profile) == expected_keys([(2, 1)], [1 << 20, 1 << 26], ("AlltoAll",))
    assert profile["settings"]["left_out"][0].startswith("AlltoAll of 2 ranks from 4294967296 bytes")


def test_ranks_of_another_launcher_find_each_other_on_two_nodes(prism, tmp_path):
    with socket.socket() as taken:  # as torchrun has MASTER_PORT
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        processes = []
        for rank in range(4):
            environment = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank, "GROUP_RANK": rank // 2, "MASTER_ADDR": "localhost",
                           "MASTER_PORT": taken.getsockname()[1], "HOSTCUDA_SESSION": tmp_path.name}
            processes.append(prism.start("netprofile", "--device", "host", "--groups", "2,2x1", "--operations", "AllReduce,Send",
                                         "--types", "bf16", *FEW, "--out", tmp_path / "net.json",
                                         env={name: str(value) for name, value in environment.items()}))
        results = [prism.finish(p, time.monotonic(), 60) for p in processes]
    assert [r.code for r in results] == [0] * 4, results
    assert [r.out != "" for r in results] == [True, False, False, False]
    profile = json.loads((tmp_path / "net.json").read_text())
    groups = [(4, 2), (2, 1), (2, 2)]
    assert keys(profile) == expected_keys(groups, [1 << 10, 1 << 14, 1 << 18], ("AllReduce", "Send"), ("bf16",), pairs=(1, 2))
    assert profile["machine"]["ranks_per_node"] == [2, 2]


@pytest.mark.parametrize("flags, message, hint", [
    (("--ranks", 9), "9 ranks on this machine need as many GPUs; it has 8", "--ranks 8"),
    (("--ranks", 1), "--ranks 1 is out of range", "from 2"),
    ((), "how many ranks?", "--ranks N"),
    (("--ranks", 4, "--nodes", 3), "--ranks 4 is no multiple of --nodes 3", "--ranks 6"),
    (("--ranks", 4, "--nodes", 5), "--nodes 5 is out of range", "from 1 to 4"),
    (("--ranks", 4, "--nodes", 0), "--nodes 0 is out of range", "from 1 to 4"),
    (("--nodes", 2), "--nodes 2: nothing says how many ranks", "give --ranks, too"),
    (("--ranks", 18, "--nodes", 2), "9 ranks on this machine need as many GPUs; it has 8", "--ranks"),
    (("--ranks", 4, "--nodes", 2, "--groups", "2x4"), "--groups 2x4: there are 4 ranks on 2 nodes", "ranks that there are"),
    (("--ranks", 2, "--groups", "4"), "--groups 4: there are 2 ranks", "ranks that there are"),
    (("--ranks", 2, "--groups", "2x1"), "--groups 2x1: there are 2 ranks on 1 node", "ranks that there are"),
    (("--ranks", 3, "--groups", "1x2/3"), "--groups 1x2/3: there are 3 ranks on 1 node", "ranks that there are"),
    (("--ranks", 2, "--sizes", "1MiB:1KiB:2"), "the largest size is below the smallest", "--sizes 1KiB:1GiB:2"),
    (("--ranks", 2, "--operations", "AllReduse"), "'AllReduse' is not one of AllReduce", "did you mean 'AllReduce'"),
    (("--ranks", 2, "--operations", "Gather"), "'Gather' is not one of AllReduce", "AllGather"),
    (("--ranks", 2, "--types", "float"), "--types 'float' is not one of int8", ""),
    (("--ranks", 2, "--iterations", 0), "--iterations 0 is out of range", "from 1 to 200"),
    (("--ranks", 2, "--nccl", "/nowhere/libnccl.so.2"), "cannot open /nowhere/libnccl.so.2", "--nccl PATH"),
    (("--ranks", 2, "--out", "/nowhere/net.json"), "/nowhere/net.json cannot be written", "folder that can be written"),
])
def test_what_is_wrong_is_said_with_the_remedy(prism, flags, message, hint):
    result = netprofile(prism, *flags)
    assert result.code == 1, result
    assert message in result.err
    assert hint in result.err
    assert result.out == ""


def test_several_nodes_of_gpus_are_refused(prism):
    result = prism("netprofile", "--device", "cuda", "--ranks", 4, "--nodes", 2)
    assert result.code == 1 and result.out == ""
    assert "--nodes 2: the GPUs of this machine are on one node" in result.err and "torchrun" in result.err


def test_launchers_variables_are_checked(prism):
    base = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    for name, value, message in [("WORLD_SIZE", "1", "WORLD_SIZE=1 is no number from 2"), ("RANK", "2", "RANK=2 is no number from 0 to 1"),
                                 ("MASTER_ADDR", "", "MASTER_ADDR"), ("MASTER_PORT", "x", "MASTER_PORT=x")]:
        result = netprofile(prism, env={**base, name: value})
        assert result.code == 1 and message in result.err, (name, result.err)


def test_earlier_file_is_not_replaced_unless_forced(prism, tmp_path):
    out = tmp_path / "net.json"
    out.write_text("mine")
    flags = ("--ranks", 2, "--operations", "Send", *FEW, "--out", out)
    result = netprofile(prism, *flags)
    assert (result.code, out.read_text()) == (1, "mine")
    assert "--force" in result.err
    assert netprofile(prism, *flags, "--force").code == 0
    assert json.loads(out.read_text())["schema"] == "prism.netprofile"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_every_rank_and_leaves_no_file(prism, tmp_path, number):
    process = start_long_run(prism, tmp_path)
    ranks = children(process)
    process.send_signal(number)
    result = prism.finish(process, time.monotonic(), 30)
    assert result.code == 128 + number
    assert [pid for pid in ranks if os.path.exists(f"/proc/{pid}")] == []
    assert not (tmp_path / "net.json").exists()


def test_rank_that_is_killed_ends_the_others_and_is_named(prism, tmp_path):
    process = start_long_run(prism, tmp_path)
    ranks = children(process)
    os.kill(ranks[1], signal.SIGKILL)
    result = prism.finish(process, time.monotonic(), 30)
    assert result.code != 0
    assert "error: rank 1 was ended by Killed" in result.err
    assert [pid for pid in ranks if os.path.exists(f"/proc/{pid}")] == []
    assert not (tmp_path / "net.json").exists()


def test_killed_netprofile_leaves_no_rank(prism, tmp_path):
    process = start_long_run(prism, tmp_path)
    ranks = children(process)
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks))
    netprofile(prism, "--ranks", 2, "--operations", "Send", *FEW)  # what it left is removed by the next one


# hostnccl's links on the virtual clock (docs/design/0013-link-model.md), in one node: a base, the steps' latencies, and what the
# busiest port sends over its bandwidth.
BASE_NS, STEP_NS, BYTES_PER_NS = 20_000, 500, 350.0
LINKS = {"schema": 1, "base_ns": BASE_NS, "port": {"latency_ns": STEP_NS, "bytes_per_s": BYTES_PER_NS * 1e9}, "protocols": [{}]}


def messages_ns(alone_ns, each_ns):
    """When the last of some messages has come that share a link: each takes so long alone, and keeps the link busy for `each_ns` of that. All
    alike, or two: when the shorter one has ended, the other has the link for itself."""
    use = sum(each_ns / ns for ns in alone_ns)
    first, last = min(alone_ns), max(alone_ns)
    return last if use <= 1 else first * use + (last - first)


def ring_ns(operation, size, ranks):
    if operation == "AlltoAll":
        return messages_ns([BASE_NS + STEP_NS + size / BYTES_PER_NS] * (ranks - 1), size / BYTES_PER_NS)
    steps = {"AllReduce": 2 * (ranks - 1), "Gather": 1, "Scatter": 1, "Send": 1}
    parts = {"AllReduce": 2 * (ranks - 1) / ranks, "AllGather": ranks - 1, "ReduceScatter": ranks - 1}
    return BASE_NS + STEP_NS * steps.get(operation, ranks - 1) + size * parts.get(operation, 1) / BYTES_PER_NS


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_measured_on_the_virtual_clock_is_the_closed_form(prism, tmp_path, ranks):
    links = tmp_path / "links.json"
    links.write_text(json.dumps(LINKS))
    flags = ("--ranks", ranks, "--sizes", "1KiB:256MiB:64", "--iterations", 5, "--repeats", 3, "--json")
    result = netprofile(prism, *flags, env={"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links)})
    assert result.code == 0, result.err
    entries = json.loads(result.out)["entries"]
    assert len(entries) == 4 * 2 * (3 * 2 + 4)
    for e in entries:
        expected = ring_ns(e["operation"], e["bytes"], e["ranks"])
        # An event's time is a float of milliseconds.
        assert e["median_ns"] == pytest.approx(expected, rel=1e-6, abs=2), e
        assert e["p90_ns"] - e["p10_ns"] <= 1 + 1e-6 * expected, e


# Two nodes of two GPUs, each with a NIC, on one leaf switch. The NICs are the busiest links: a ring or tree for each NIC that a
# group has in every node, with its part of the bytes.
RAIL_NS, RAIL_BYTES_PER_NS = 3_000, 40.0
TWO_NODES = LINKS | {"gpus_per_node": 2, "rail": {"latency_ns": RAIL_NS, "bytes_per_s": RAIL_BYTES_PER_NS * 1e9}}


def two_nodes_ns(operation, size, per_node, rails):
    ranks = 2 * per_node
    if operation == "Send":  # by the receiver's rail, to which a sender of another has a step
        latency, through_nic = RAIL_NS + STEP_NS * (rails - 1), 1
    elif operation == "AlltoAll":  # by the receiver's NIC, to which a sender of another rail has a step
        alone_ns = BASE_NS + RAIL_NS + size / RAIL_BYTES_PER_NS
        return messages_ns([alone_ns, alone_ns + STEP_NS][:per_node], size / RAIL_BYTES_PER_NS)
    elif operation == "AllReduce":  # by trees: half of the bytes up and half down on each, which a ring of two nodes does not beat
        latency, through_nic = 2 * ((per_node - 1) * STEP_NS + RAIL_NS), 1 / per_node
    else:
        passed = ranks - 1 if operation in ("AllGather", "ReduceScatter") else 1
        latency, through_nic = (ranks - 2) * STEP_NS + RAIL_NS, passed / per_node
    return BASE_NS + latency + size * through_nic / RAIL_BYTES_PER_NS


def test_nodes_are_played_and_have_the_times_of_their_links(prism, tmp_path):
    links = tmp_path / "links.json"
    links.write_text(json.dumps(TWO_NODES))
    flags = ("--ranks", 4, "--nodes", 2, "--groups", "2,2x1", "--types", "fp32", "--sizes", "1KiB:64MiB:256", "--iterations", 3,
             "--repeats", 2, "--json")
    result = netprofile(prism, *flags, env={"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links)})
    assert result.code == 0, result.err
    profile = json.loads(result.out)
    assert profile["machine"]["ranks_per_node"] == [2, 2]
    sizes = [1 << 10, 1 << 18, 1 << 26]
    assert keys(profile) == expected_keys([(4, 2), (2, 1), (2, 2)], sizes, types=("fp32",), pairs=(1, 2, 2))
    assert profile["links"] == {"receive_ns": pytest.approx(BASE_NS, abs=1), "nic_of_gpu": [0, 1], "nodes": [0, 1], "nodes_per_leaf": 0,
                                "leaf_share": 0}  # fmt: skip
    for e in profile["entries"]:
        operation, size, ranks, nodes = e["operation"], e["bytes"], e["ranks"], e["nodes"]
        expected = ring_ns(operation, size, ranks) if nodes == 1 else two_nodes_ns(operation, size, ranks // nodes, e["rails"])
        assert e["median_ns"] == pytest.approx(expected, rel=1e-6, abs=2), e
        assert e["p90_ns"] - e["p10_ns"] <= 1 + 1e-6 * expected, e


def test_gpus_that_share_a_nic_are_told_and_groups_with_a_stride_have_more_nics(prism, tmp_path):
    links = tmp_path / "links.json"
    links.write_text(json.dumps(TWO_NODES | {"gpus_per_node": 4, "rail": TWO_NODES["rail"] | {"nics_per_node": 2}}))
    flags = ("--ranks", 8, "--nodes", 2, "--groups", "2x2,2x2/2,2x2/3,2x1", "--operations", "AllGather", "--sizes", "64MiB:64MiB:2",
             "--iterations", 1, "--repeats", 1, "--json")
    result = netprofile(prism, *flags, env={"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links)})
    assert result.code == 0, result.err
    profile = json.loads(result.out)
    assert profile["links"]["nic_of_gpu"] == [0, 0, 1, 1]
    times = {(e["ranks"], e["nodes"], e["rails"]): e["median_ns"] for e in profile["entries"] if e["isolated"]}
    # 2x2/3 is to the links what 2x2/2 is, and measured once.
    assert times.keys() == {(8, 2, 2), (4, 2, 1), (4, 2, 2), (2, 2, 1)}
    for (ranks, _, rails), ns in times.items():
        expected = BASE_NS + (ranks - 2) * STEP_NS + RAIL_NS + (ranks - 1) * (64 << 20) / rails / RAIL_BYTES_PER_NS
        assert ns == pytest.approx(expected, rel=1e-6), (ranks, rails)


def test_nodes_of_a_leaf_are_told_and_profiles_of_several_layouts_are_one(prism, tmp_path):
    spine_ns = 1_500
    links = tmp_path / "links.json"
    links.write_text(json.dumps(TWO_NODES | {"spine": {"nodes_per_leaf": 2, "latency_ns": spine_ns, "oversubscription": 2}}))
    few = ("--operations", "AllGather,Send", "--sizes", "1MiB:64MiB:64", "--iterations", 1, "--repeats", 1)

    def measured(name, *flags):
        result = netprofile(prism, *flags, *few, "--out", tmp_path / name, env={"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links)})
        assert result.code == 0, result.err
        return json.loads((tmp_path / name).read_text())

    def times(profile):
        return {(e["operation"], e["ranks"], e["rails"], e["leaves"]): e["median_ns"] for e in profile["entries"] if e["bytes"] == 64 << 20 and e["nodes"] > 1}

    # Two nodes' NICs are twice as much as leads away from their leaf.
    wide = measured("wide.json", "--ranks", 6, "--nodes", 6, "--groups", "2x1,4x1")
    assert (wide["links"]["nodes_per_leaf"], wide["links"]["leaf_share"]) == (2, pytest.approx(1, rel=1e-4))
    through_nic = (64 << 20) / RAIL_BYTES_PER_NS
    sends = {("Send", 2, 1, leaves): BASE_NS + RAIL_NS + (leaves - 1) * spine_ns + through_nic for leaves in (1, 2)}
    gathers = {("AllGather", ranks, 1, leaves): BASE_NS + (ranks - 1) * (RAIL_NS + (spine_ns if leaves > 1 else 0) + through_nic)
               for ranks, leaves in ((2, 1), (4, 2), (6, 3))}  # fmt: skip
    assert times(wide) == pytest.approx(sends | gathers, rel=1e-6)
    # These are equally far: only the wide one tells that they are on leaves of their own.
    apart = measured("apart.json", "--ranks", 6, "--nodes", 3, "--node-numbers", "0,2,4", "--gpus", "1,0")
    assert (apart["links"]["nodes_per_leaf"], apart["links"]["nodes"]) == (0, [0, 2, 4])
    assert {leaves for _, _, _, leaves in times(apart)} == {1}
    merged = tmp_path / "merged.json"
    result = netprofile(prism, "--merge", tmp_path / "apart.json", tmp_path / "wide.json", "--out", merged)
    assert result.code == 0, result.err
    profile = json.loads(merged.read_text())
    assert (profile["links"]["nodes_per_leaf"], profile["links"]["nic_of_gpu"]) == (2, [0, 1])
    through_two = times(apart)["AllGather", 6, 2, 1]
    assert times(profile) == pytest.approx(
        sends | gathers | {("Send", 2, 2, 2): times(apart)["Send", 2, 2, 1], ("AllGather", 6, 2, 3): through_two}, rel=1e-6)  # fmt: skip


@pytest.mark.parametrize(
    "flags, error",
    [
        (("--ranks", 4, "--nodes", 2, "--node-numbers", "0,0"), "--node-numbers has 1 different numbers"),
        (("--ranks", 4, "--nodes", 2, "--gpus", "0,1,2"), "--gpus has 3 different numbers"),
        (("--merge", "one.json", "two.json"), "there is no file one.json"),
    ],
)
def test_places_that_are_none_are_refused(prism, flags, error):
    result = netprofile(prism, *flags)
    assert result.code == 1
    assert error in result.err


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_start_on_an_idle_stream_takes_no_time_on_the_virtual_clock_however_much_work_varies(prism, tmp_path, seed):
    links, times, out = (tmp_path / name for name in ("links.json", "times.json", "net.json"))
    links.write_text(json.dumps(LINKS))
    times.write_text(json.dumps({"schema": 1, "jitter": {"sigma": 0.3, "seed": seed}}))
    # A buffer that takes much longer to fill than any call: 30 % of that is more than a launch's latency on a GPU.
    result = netprofile(prism, "--ranks", 2, "--sizes", "4B:256MiB:64", "--operations", "AllReduce", "--types", "fp32", "--repeats", 1,
                        "--iterations", 1, "--out", out,
                        env={"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links), "HOSTCUDA_TIMES": str(times)})
    assert result.code == 0, result.err
    # Two medians of 200 works of twice a waiting call's 2 us or a little more: four standard errors of their difference.
    assert json.loads(out.read_text())["settings"]["sync_ns"] < 4 * 0.3 * 4000 * (math.pi / 200) ** 0.5


def test_memory_of_a_gpu_is_each_nodes_own(prism):
    # Two buffers of 2 GiB for each of four ranks do not fit 12 GiB together.
    flags = ("--ranks", 4, "--nodes", 4, "--sizes", "2GiB:2GiB:2", "--operations", "AllReduce", "--types", "fp32", "--repeats", 1,
             "--iterations", 1, "--json")
    result = netprofile(prism, *flags, env={"HOSTCUDA_MEMORY": "12GiB"})
    assert result.code == 0, result.err
    assert keys(json.loads(result.out)) == expected_keys([(4, 4)], [1 << 31], ("AllReduce",), ("fp32",), kinds=(True,))


def test_nccl_tests_are_imported(prism, tmp_path):
    def write(name, lines):
        (tmp_path / name).write_text("\n".join([
            "#  Rank  0 Group  0 Pid   1 on  a device  0 [0x0f] NVIDIA H200", "#  Rank  1 Group  0 Pid   2 on  a device  1 [0x1f] NVIDIA H200",
            "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong", *lines]))
        return tmp_path / name

    gather = write("all_gather_perf.txt", ["  2048  256  float  none  -1  11.50  0.1  0.1  0  11.0  0.1  0.1  0"])
    unnamed = write("results.txt", ["  2048  512  float   sum  -1  12.25  0.1  0.1  0  11.0  0.1  0.1  0"])
    out = tmp_path / "net.json"
    result = prism("netprofile", "--import", gather, "--out", out)
    assert result.code == 0, result.err
    assert "AllGather, 2 ranks on 1 node" in result.out and "11.50 us" in result.out
    entry, = json.loads(out.read_text())["entries"]
    assert (entry["operation"], entry["bytes"], entry["median_ns"], entry["isolated"]) == ("AllGather", 1024, 11500, False)

    result = prism("netprofile", "--import", unnamed)
    assert result.code == 1 and "line 4: it is not said which operation" in result.err and "--operation AllReduce" in result.err
    result = prism("netprofile", "--import", unnamed, "--operation", "all_reduce", "--json")
    assert json.loads(result.out)["entries"][0]["operation"] == "AllReduce"
    result = prism("netprofile", "--import", tmp_path / "none.txt")
    assert result.code == 1 and "there is no file" in result.err
