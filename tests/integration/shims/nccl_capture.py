#!/usr/bin/env python3
"""The NCCL shim under capture, call by call, before hostcuda's driver (or a GPU's) and a stand-in controller.

    nccl_capture.py --shims build/dev/shims --cuda LIBCUDA [--only NAME]

Every scenario is a function of (rank, world) that runs in `world` processes; what it expects is written in closed form.
Prints `ok NAME` or what differed; exit code 1 if something did.
"""
import argparse
import ctypes as C
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
SUCCESS, CUDA_ERROR, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, PROGRESS = range(8)
FLOAT, INT64 = 7, 4
SUM, PROD, MAX, MIN, AVG = range(5)
SCENARIOS = {}


def scenario(world, **controller):
    def add(function):
        SCENARIOS[function.__name__] = (function, world, controller)
        return function
    return add


class UniqueId(C.Structure):
    _fields_ = [("bytes", C.c_char * 128)]


class Config(C.Structure):
    _fields_ = [("size", C.c_size_t), ("magic", C.c_uint), ("version", C.c_uint), ("blocking", C.c_int), ("cga", C.c_int),
                ("min_ctas", C.c_int), ("max_ctas", C.c_int), ("net", C.c_char_p), ("split_share", C.c_int),
                ("traffic", C.c_int), ("name", C.c_char_p), ("rest", C.c_int * 6)]

    def __init__(self, blocking):
        undefined = -2**31
        super().__init__(C.sizeof(Config), 0xCAFEBEEF, 22809, blocking, undefined, undefined, undefined, None, undefined,
                         undefined, None, (C.c_int * 6)(*[undefined] * 6))


class Cuda:
    """Device buffers of floats, streams, and NCCL's calls with their results."""

    def __init__(self):
        self.cu, self.nc = C.CDLL("libcuda.so.1"), C.CDLL("libnccl.so.2")
        self.nc.ncclGetLastError.restype = C.c_char_p
        self.check(self.cu.cuInit(0))
        self.context = C.c_void_p()
        self.check(self.cu.cuDevicePrimaryCtxRetain(C.byref(self.context), 0))
        self.check(self.cu.cuCtxSetCurrent(self.context))

    @staticmethod
    def check(result, expected=0):
        assert result == expected, f"result {result} instead of {expected}"

    def buffer(self, values):
        address = C.c_uint64()
        self.check(self.cu.cuMemAlloc_v2(C.byref(address), C.c_size_t(max(4 * len(values), 4))))
        self.put(address, values)
        return address

    def put(self, address, values):
        host = (C.c_float * len(values))(*values)
        self.check(self.cu.cuMemcpyHtoD_v2(address, host, C.c_size_t(4 * len(values))))
        # A small copy from pageable memory may return before it has arrived. Only its own stream is awaited: another thread's
        # may wait for a peer whose thread waits here.
        self.check(self.cu.cuStreamSynchronize(None))

    def get(self, address, count):
        host = (C.c_float * count)()
        self.check(self.cu.cuMemcpyDtoH_v2(host, address, C.c_size_t(4 * count)))
        return list(host)

    def stream(self):
        stream = C.c_void_p()
        self.check(self.cu.cuStreamCreate(C.byref(stream), 1))
        return stream

    def sync(self, stream):
        self.check(self.cu.cuStreamSynchronize(stream))

    def comm(self, rank, world, name="a", config=None, expected=SUCCESS):
        identity = UniqueId(name.encode().ljust(127, b"."))
        handle = C.c_void_p()
        result = self.nc.ncclCommInitRankConfig(C.byref(handle), world, identity, rank, C.byref(config) if config else None)
        self.check(result, expected)
        return handle

    def state(self, comm):
        value = C.c_int(-1)
        self.check(self.nc.ncclCommGetAsyncError(comm, C.byref(value)))
        return value.value

    def wait_for(self, comm, state, seconds=10):
        deadline = time.monotonic() + seconds
        while self.state(comm) != state:
            assert time.monotonic() < deadline, f"state {self.state(comm)} instead of {state}"
            time.sleep(0.005)

    def size_and_rank(self, comm):
        size, rank = C.c_int(), C.c_int()
        self.check(self.nc.ncclCommCount(comm, C.byref(size)))
        self.check(self.nc.ncclCommUserRank(comm, C.byref(rank)))
        return size.value, rank.value

    def all_reduce(self, send, receive, count, comm, stream, op=SUM, dtype=FLOAT):
        return self.nc.ncclAllReduce(send, receive, C.c_size_t(count), dtype, op, comm, stream)


def N(count):
    return C.c_size_t(count)


@scenario(3)
def collectives(c, rank, world):
    comm, s, n = c.comm(rank, world), c.stream(), 6
    mine = [10.0 * rank + i for i in range(n)]
    every = [[10.0 * r + i for i in range(n)] for r in range(world)]
    send, out, wide = c.buffer(mine), c.buffer([-1.0] * n), c.buffer([-1.0] * n * world)
    total = [sum(column) for column in zip(*every)]
    c.check(c.all_reduce(send, out, n, comm, s))
    c.sync(s)
    assert c.get(out, n) == total
    c.check(c.all_reduce(send, out, n, comm, s, AVG))
    c.sync(s)
    assert c.get(out, n) == [t / world for t in total]
    c.put(out, mine)
    c.check(c.all_reduce(out, out, n, comm, s))  # in place
    c.sync(s)
    assert c.get(out, n) == total
    c.put(out, [-1.0] * n)
    c.check(c.nc.ncclReduce(send, out, N(n), FLOAT, SUM, 1, comm, s))
    c.sync(s)
    assert c.get(out, n) == (total if rank == 1 else [-1.0] * n)
    c.check(c.nc.ncclBroadcast(send, out, N(n), FLOAT, 2, comm, s))
    c.sync(s)
    assert c.get(out, n) == every[2]
    c.put(out, mine)
    c.check(c.nc.ncclBcast(out, N(n), FLOAT, 0, comm, s))
    c.sync(s)
    assert c.get(out, n) == every[0]
    c.check(c.nc.ncclAllGather(send, wide, N(n), FLOAT, comm, s))
    c.sync(s)
    assert c.get(wide, n * world) == sum(every, [])
    c.check(c.nc.ncclReduceScatter(send, out, N(2), FLOAT, SUM, comm, s))
    c.sync(s)
    assert c.get(out, 2) == total[2 * rank:2 * rank + 2]
    c.check(c.nc.ncclAlltoAll(send, out, N(2), FLOAT, comm, s))
    c.sync(s)
    assert c.get(out, n) == sum((v[2 * rank:2 * rank + 2] for v in every), [])
    c.put(wide, [-1.0] * n * world)
    c.check(c.nc.ncclGather(send, wide, N(n), FLOAT, 0, comm, s))
    c.sync(s)
    assert c.get(wide, n * world) == (sum(every, []) if rank == 0 else [-1.0] * n * world)
    c.check(c.nc.ncclScatter(send, out, N(2), FLOAT, 1, comm, s))
    c.sync(s)
    assert c.get(out, 2) == every[1][2 * rank:2 * rank + 2]
    c.check(c.all_reduce(send, out, 0, comm, s))  # dropped, as NCCL drops it
    c.check(c.nc.ncclCommFinalize(comm))
    c.check(c.nc.ncclCommDestroy(comm))


@scenario(2, payload=64)
def large_payloads_are_skipped(c, rank, world):
    comm, s = c.comm(rank, world), c.stream()
    send, out = c.buffer([1.0] * 32), c.buffer([-1.0] * 32)
    c.check(c.all_reduce(send, out, 16, comm, s))  # 64 bytes: moves
    c.sync(s)
    assert c.get(out, 17) == [2.0] * 16 + [-1.0]
    c.put(out, [-1.0] * 32)
    c.check(c.all_reduce(send, out, 17, comm, s))
    c.sync(s)
    assert c.get(out, 17) == [-1.0] * 17


@scenario(3)
def point_to_point(c, rank, world):
    comm, s, n = c.comm(rank, world), c.stream(), 4
    after, before = (rank + 1) % world, (rank - 1) % world
    send, out, second = c.buffer([float(rank)] * n), c.buffer([-1.0] * n), c.buffer([-1.0] * n)
    c.check(c.nc.ncclGroupStart())
    for to, source in ((send, out), (out, second)):  # two to the same peer: matched in order
        c.check(c.nc.ncclSend(send, N(n), FLOAT, after, comm, s))
        c.check(c.nc.ncclRecv(source, N(n), FLOAT, before, comm, s))
    c.check(c.nc.ncclGroupEnd())
    c.sync(s)
    assert c.get(out, n) == [float(before)] * n and c.get(second, n) == [float(before)] * n
    if rank == 0:
        c.check(c.nc.ncclSend(send, N(n), FLOAT, 1, comm, s))
    elif rank == 1:
        c.check(c.nc.ncclRecv(out, N(n), FLOAT, 0, comm, s))
        c.sync(s)
        assert c.get(out, n) == [0.0] * n


@scenario(2)
def groups_of_several_communicators(c, rank, world):
    a, b, s, other = c.comm(rank, world, "a"), c.comm(rank, world, "b"), c.stream(), c.stream()
    send, one, two = c.buffer([1.0 + rank] * 4), c.buffer([0.0] * 4), c.buffer([0.0] * 4)
    for streams in ((s, s), (s, other)):
        # Ranks name the communicators in different orders, on one stream: both must arrive before either stalls.
        calls = [(send, one, a, streams[0]), (send, two, b, streams[1])]
        c.check(c.nc.ncclGroupStart())
        c.check(c.nc.ncclGroupStart())  # groups nest
        for to, out, comm, stream in calls if rank == 0 else reversed(calls):
            c.check(c.all_reduce(to, out, 4, comm, stream))
        c.check(c.nc.ncclGroupEnd())
        c.check(c.nc.ncclGroupEnd())
        c.sync(s)
        c.sync(other)
        assert c.get(one, 4) == c.get(two, 4) == [3.0] * 4
    # One communicator, two streams in a group: each stream sees its own result.
    c.check(c.nc.ncclGroupStart())
    c.check(c.all_reduce(send, one, 4, a, s))
    c.check(c.all_reduce(send, two, 4, a, other, AVG))
    c.check(c.nc.ncclGroupEnd())
    c.sync(other)
    assert c.get(two, 4) == [1.5] * 4
    c.sync(s)
    assert c.get(one, 4) == [3.0] * 4


@scenario(2)
def host_runs_ahead(c, rank, world):
    comm, s = c.comm(rank, world), c.stream()
    send, out = c.buffer([1.0]), c.buffer([0.0])
    if rank == 0:
        for _ in range(300):  # nobody has come yet
            c.check(c.all_reduce(send, out, 1, comm, s))
            c.check(c.all_reduce(out, send, 1, comm, s, AVG))
        c.check(c.cu.cuStreamQuery(s), 600)
    else:
        time.sleep(1)
        for _ in range(300):
            c.check(c.all_reduce(send, out, 1, comm, s))
            c.check(c.all_reduce(out, send, 1, comm, s, AVG))
    c.sync(s)
    assert c.get(out, 1) == [float(2 ** 300)] or c.get(out, 1) == [float("inf")]


@scenario(2)
def non_blocking_init(c, rank, world):
    if rank == 1:
        time.sleep(0.7)
    comm = c.comm(rank, world, config=Config(0), expected=PROGRESS)
    s, send, out = c.stream(), c.buffer([1.0]), c.buffer([0.0])
    if rank == 0:
        assert c.state(comm) == PROGRESS
        c.check(c.all_reduce(send, out, 1, comm, s), ARGUMENT)
        assert b"not ready" in c.nc.ncclGetLastError(None)
    c.wait_for(comm, SUCCESS)
    c.check(c.all_reduce(send, out, 1, comm, s))
    c.sync(s)
    assert c.get(out, 1) == [2.0]
    part = C.c_void_p()
    c.check(c.nc.ncclCommSplit(comm, 0, -rank, C.byref(part), None), PROGRESS)  # inherits
    c.wait_for(part, SUCCESS)
    assert c.size_and_rank(part) == (2, 1 - rank)
    c.check(c.nc.ncclCommFinalize(part), PROGRESS)
    c.wait_for(part, SUCCESS)
    c.check(c.nc.ncclCommDestroy(part))


@scenario(4)
def split_and_shrink(c, rank, world):
    comm, s = c.comm(rank, world), c.stream()
    part = C.c_void_p(1)
    c.check(c.nc.ncclCommSplit(comm, -1 if rank == 3 else rank % 2, -rank, C.byref(part), None))
    if rank == 3:
        assert not part.value
    else:
        members = [2, 0] if rank % 2 == 0 else [1]
        assert c.size_and_rank(part) == (len(members), members.index(rank))
        send, out = c.buffer([float(rank)]), c.buffer([0.0])
        c.check(c.all_reduce(send, out, 1, part, s))
        c.sync(s)
        assert c.get(out, 1) == [float(sum(members))]
    c.check(c.nc.ncclCommSplit(comm, -2, 0, C.byref(part), None), ARGUMENT)
    if rank != 2:
        small, excluded = C.c_void_p(), (C.c_int * 1)(2)
        c.check(c.nc.ncclCommShrink(comm, excluded, 1, C.byref(small), None, 0))
        assert c.size_and_rank(small) == (3, [0, 1, None, 2][rank])


@scenario(1, device=2**32 - 1)
def one_process_of_several_members(c, rank, world):
    comms, devices = (C.c_void_p * 3)(), (C.c_int * 3)(0, 1, 2)
    c.check(c.nc.ncclCommInitAll(comms, 3, devices))
    members = [C.c_void_p(x) for x in comms]
    streams, buffers, device = [c.stream() for _ in members], [c.buffer([1.0 + i] * 4) for i in range(3)], C.c_int()
    for i, member in enumerate(members):
        assert c.size_and_rank(member) == (3, i)
        c.check(c.nc.ncclCommCuDevice(member, C.byref(device)))
        assert device.value == i
    c.check(c.nc.ncclGroupStart())
    for member, stream, buffer in zip(members, streams, buffers):
        c.check(c.all_reduce(buffer, buffer, 4, member, stream))
    c.check(c.nc.ncclGroupEnd())
    for stream, buffer in zip(streams, buffers):
        c.sync(stream)
        assert c.get(buffer, 4) == [6.0] * 4
    c.check(c.nc.ncclCommInitAll(comms, 2, (C.c_int * 2)(1, 1)), USAGE)
    c.check(c.nc.ncclCommInitAll(comms, 2, (C.c_int * 2)(1, 8)), ARGUMENT)
    # Grouped ncclCommInitRank of one process.
    identity, handles = UniqueId(b"grouped".ljust(127, b".")), [C.c_void_p() for _ in range(2)]
    c.check(c.nc.ncclGroupStart())
    for i, handle in enumerate(handles):
        c.check(c.nc.ncclCommInitRank(C.byref(handle), 2, identity, i))
    c.check(c.nc.ncclGroupEnd())
    assert [c.size_and_rank(h) for h in handles] == [(2, 0), (2, 1)]


@scenario(2)
def pre_multiplied_sum(c, rank, world):
    comm, s = c.comm(rank, world), c.stream()
    send, out, scalar = c.buffer([4.0, 8.0]), c.buffer([0.0, 0.0]), c.buffer([0.25])
    on_host, op, device_op = C.c_float(0.5 + rank), C.c_int(), C.c_int()
    c.check(c.nc.ncclRedOpCreatePreMulSum(C.byref(op), C.byref(on_host), FLOAT, 1, comm))
    c.check(c.nc.ncclRedOpCreatePreMulSum(C.byref(device_op), scalar, FLOAT, 0, comm))
    assert op.value >= 5 and device_op.value != op.value
    c.check(c.all_reduce(send, out, 2, comm, s, op.value))
    c.sync(s)
    assert c.get(out, 2) == [4.0 * 2.0, 8.0 * 2.0]
    c.check(c.all_reduce(send, out, 2, comm, s, device_op.value))
    c.sync(s)
    assert c.get(out, 2) == [2.0, 4.0]
    c.check(c.all_reduce(send, out, 2, comm, s, op.value, dtype=INT64), ARGUMENT)
    c.check(c.nc.ncclRedOpDestroy(op, comm))
    c.check(c.nc.ncclRedOpDestroy(op, comm), ARGUMENT)
    c.check(c.all_reduce(send, out, 2, comm, s, op.value), ARGUMENT)


@scenario(1)
def arguments_are_checked(c, rank, world):
    comm, s, b = c.comm(rank, world), c.stream(), c.buffer([1.0] * 4)
    handle = C.c_void_p()
    identity = UniqueId(b"x" * 127)
    c.check(c.nc.ncclCommInitRank(C.byref(handle), 0, identity, 0), ARGUMENT)
    c.check(c.nc.ncclCommInitRank(C.byref(handle), 2, identity, 2), ARGUMENT)
    c.check(c.nc.ncclCommInitRank(None, 1, identity, 0), ARGUMENT)
    bad = Config(0)
    bad.magic = 1
    c.check(c.nc.ncclCommInitRankConfig(C.byref(handle), 1, identity, 0, C.byref(bad)), ARGUMENT)
    c.check(c.nc.ncclCommInitRankConfig(C.byref(handle), 1, identity, 0, C.byref(Config(7))), ARGUMENT)
    c.check(c.all_reduce(b, b, 4, None, s), ARGUMENT)
    c.check(c.all_reduce(b, b, 4, C.c_void_p(12345), s), ARGUMENT)
    c.check(c.all_reduce(b, b, 4, comm, s, dtype=12), ARGUMENT)
    c.check(c.all_reduce(b, b, 4, comm, s, op=77), ARGUMENT)
    c.check(c.all_reduce(None, b, 4, comm, s), ARGUMENT)
    c.check(c.all_reduce(b, b, 2**63, comm, s), ARGUMENT)
    c.check(c.nc.ncclBroadcast(b, b, N(4), FLOAT, 1, comm, s), ARGUMENT)
    assert b"root 1: this communicator has ranks 0 to 0" in c.nc.ncclGetLastError(comm)
    c.check(c.nc.ncclSend(b, N(4), FLOAT, -1, comm, s), ARGUMENT)
    c.check(c.nc.ncclGroupEnd(), USAGE)
    c.check(c.nc.ncclGroupStart())
    c.check(c.all_reduce(b, b, 4, comm, s))
    c.check(c.nc.ncclBroadcast(b, b, N(4), FLOAT, 9, comm, s), ARGUMENT)
    c.check(c.nc.ncclGroupEnd(), ARGUMENT)  # and nothing of the group has happened
    c.check(c.nc.ncclDevCommCreate(comm, None, None), USAGE)
    assert b"ncclDevCommCreate" in c.nc.ncclGetLastError(None)
    window = C.c_void_p(1)
    c.check(c.nc.ncclCommWindowRegister(comm, b, N(16), C.byref(window), 0))
    assert not window.value
    c.check(c.nc.ncclCommRegister(comm, b, N(16), C.byref(window)))
    c.check(c.nc.ncclCommDeregister(comm, window))
    memory = C.c_void_p()
    c.check(c.nc.ncclMemAlloc(C.byref(memory), N(100)))
    c.check(c.nc.ncclMemFree(memory))
    c.check(c.nc.ncclMemFree(C.c_void_p(4096)), ARGUMENT)
    version, first, second = C.c_int(), UniqueId(), UniqueId()
    c.check(c.nc.ncclGetVersion(C.byref(version)))
    assert version.value >= 22800
    c.check(c.nc.ncclGetUniqueId(C.byref(first)))
    c.check(c.nc.ncclGetUniqueId(C.byref(second)))
    assert bytes(first) != bytes(second)
    c.nc.ncclGetErrorString.restype = C.c_char_p
    assert c.nc.ncclGetErrorString(REMOTE) == b"remote process exited or there was a network error"
    c.check(c.nc.ncclCommDestroy(comm))
    c.check(c.nc.ncclCommDestroy(comm), ARGUMENT)
    c.check(c.all_reduce(b, b, 4, comm, s), ARGUMENT)
    c.check(c.nc.ncclCommDestroy(None))


@scenario(2)
def abort_lets_streams_go(c, rank, world):
    comm, s, b = c.comm(rank, world), c.stream(), c.buffer([1.0])
    if rank == 0:  # the other never calls
        c.check(c.all_reduce(b, b, 1, comm, s))
        c.check(c.cu.cuStreamQuery(s), 600)
        c.check(c.nc.ncclCommAbort(comm))
        c.sync(s)
    c.check(c.nc.ncclCommAbort(None))


@scenario(2)
def disagreement_is_an_asynchronous_error(c, rank, world):
    comm, s, b = c.comm(rank, world), c.stream(), c.buffer([1.0] * 8)
    c.check(c.all_reduce(b, b, 4 + rank, comm, s))
    c.wait_for(comm, REMOTE)
    assert b"disagree" in c.nc.ncclGetLastError(comm)
    c.check(c.all_reduce(b, b, 4, comm, s), REMOTE)
    c.check(c.nc.ncclCommAbort(comm))
    c.sync(s)


@scenario(1, lifetime=3)
def controller_that_dies_is_an_error(c, rank, world):
    comm, s, b = c.comm(rank, world), c.stream(), c.buffer([1.0])
    c.wait_for(comm, SYSTEM, 10)
    assert b"controller is gone" in c.nc.ncclGetLastError(comm)
    c.check(c.all_reduce(b, b, 1, comm, s), SYSTEM)
    identity, handle = UniqueId(b"late".ljust(127, b".")), C.c_void_p()
    c.check(c.nc.ncclCommInitRank(C.byref(handle), 1, identity, 0), SYSTEM)


@scenario(1)
def captured_graphs_are_refused_by_name(c, rank, world):
    comm, s, b = c.comm(rank, world), c.stream(), c.buffer([1.0])
    if c.cu.cuStreamBeginCapture_v2(s, 2) != 0:
        return  # this driver has no graphs
    c.check(c.all_reduce(b, b, 1, comm, s), USAGE)
    assert b"captured CUDA graph" in c.nc.ncclGetLastError(None)
    graph = C.c_void_p()
    c.cu.cuStreamEndCapture(s, C.byref(graph))


@scenario(2)
def threads_share_a_rank(c, rank, world):
    errors = []

    def work(name):
        try:
            context = C.c_void_p()
            c.check(c.cu.cuDevicePrimaryCtxRetain(C.byref(context), 0))
            c.check(c.cu.cuCtxSetCurrent(context))
            comm, s, b = c.comm(rank, world, name), c.stream(), c.buffer([1.0])
            for _ in range(20):
                c.check(c.all_reduce(b, b, 1, comm, s, AVG))
            c.sync(s)
            assert c.get(b, 1) == [1.0]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors, errors


@scenario(1)
def call_sites_are_exact(c, rank, world):
    """Also after the frames are read directly instead of by the interpreter's crash handler."""
    comm, s, b = c.comm(rank, world), c.stream(), c.buffer([1.0])
    lines = []

    def call(depth):
        if depth:
            return call(depth - 1)
        lines.append(sys._getframe().f_lineno + 1)
        c.check(c.nc.ncclAllReduce(b, b, N(1), FLOAT, SUM, comm, s))
        lines.append(sys._getframe().f_lineno + 1)
        c.check(c.nc.ncclBroadcast(b, b, N(1), FLOAT, 0, comm, s))

    for i in range(12):
        call(i)
    thread = threading.Thread(target=lambda: [c.check(c.cu.cuCtxSetCurrent(c.context)), call(3)])
    thread.start()
    thread.join()
    c.sync(s)
    events = [json.loads(line) for line in open(os.environ["PRISM_TEST_LOG"])]
    texts = {e["id"]: e["text"] for e in events if e["event"] == "site"}
    seen = [texts[e["site"]].split(" < ")[0] for e in events if e["event"] == "op"]
    assert seen == [f"nccl_capture.py:{line} in call" for line in lines], (seen, lines)


def run(name, options, work):
    function, world, controller = SCENARIOS[name]
    place = work / name
    place.mkdir()
    settings = dict({"devices": 8, "device": 0, "lifetime": 60}, **controller)
    arguments = [x for key, value in settings.items() for x in (f"--{key}", str(value))]
    server = subprocess.Popen([sys.executable, str(ROOT / "src/interpose/testing/stand_in_controller.py"), "--socket",
                               str(place / "s"), "--log", str(place / "log"), "--trace", str(place)] + arguments)
    while not (place / "s").exists():
        time.sleep(0.02)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRISM_")}
    environment.update(LD_PRELOAD=":".join(str((options.shims / n).resolve()) for n in ("libcuda.so.1", "libnccl.so.2")),
                       PRISM_REAL_LIBCUDA=options.cuda, PRISM_SOCKET=str(place / "s"), WORLD_SIZE=str(world), PRISM_TEST_LOG=str(place / "log"))
    ranks = [subprocess.Popen([sys.executable, __file__, "--scenario", name, "--rank", str(r), "--world", str(world)],
                              env=dict(environment, RANK=str(r)), stderr=subprocess.PIPE, text=True) for r in range(world)]
    failures = []
    for r, process in enumerate(ranks):
        try:
            _, error = process.communicate(timeout=50)
        except subprocess.TimeoutExpired:
            process.kill()
            _, error = process.communicate()
            error += "\nhangs"
        if process.returncode != 0:
            failures.append(f"rank {r}, exit {process.returncode}: {error[-1200:]}")
    server.kill()
    server.wait()
    print(f"ok {name}" if not failures else f"DIFFERENT {name}\n  " + "\n  ".join(failures), flush=True)
    return not failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shims", type=pathlib.Path)
    parser.add_argument("--cuda")
    parser.add_argument("--only", default="")
    parser.add_argument("--scenario", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scenario:
        SCENARIOS[options.scenario][0](Cuda(), options.rank, options.world)
        return 0
    work = pathlib.Path(tempfile.mkdtemp(prefix="prism-nccl-"))
    good = [run(name, options, work) for name in SCENARIOS if options.only in name]
    shutil.rmtree(work, ignore_errors=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
