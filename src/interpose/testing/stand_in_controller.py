#!/usr/bin/env python3
"""A controller for tests of the shims: one thread, no dependency, the packets of src/wire/protocol.h.

It welcomes every rank, makes communicators when all members have come, and executes collectives of float32 sums, copies and
send/receive on the arenas, so that a program under capture runs through. Independent of src/coordinator on purpose.

    stand_in_controller.py --socket /tmp/s --devices 8 --device 5 --mode capture --trace DIR [--log FILE]
"""
import argparse
import array
import ctypes
import json
import mmap
import os
import select
import socket
import struct
import sys
import time

HELLO, WELCOME, REFUSE, CREATE, SPLIT, READY, ERROR, CLOSE, OP_POST, CALL_SITE, ABORT, BYE, LEDGER = range(1, 14)
NAMES = ["AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter", "Send", "Recv"]
OP = struct.Struct("<IIIIiIQQQQQQQIIII")  # OpRecord
CONTROL_BYTES = 64 * 1024
libc = ctypes.CDLL(None, use_errno=True)


def to_float(value):
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf")


class Rank:
    def __init__(self, connection):
        self.connection, self.rank, self.arena, self.posts = connection, -1, None, []

    def word(self, index):
        return struct.unpack_from("<i", self.arena, 4 * index)[0]

    def release(self, index, value):
        struct.pack_into("<I", self.arena, 4 * index, value)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.arena, 4 * index))
        libc.syscall(202, ctypes.c_void_p(address), 1, 2**31 - 1, None, None, 0)  # futex(FUTEX_WAKE)


class Controller:
    def __init__(self, args):
        self.args, self.ranks, self.comms, self.waiting, self.next_comm = args, {}, {}, {}, 1
        self.log = open(args.log, "a", buffering=1) if args.log else None

    def note(self, **event):
        if self.log:
            self.log.write(json.dumps(event) + "\n")

    def serve(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.path.exists(self.args.socket):
            os.unlink(self.args.socket)
        listener.bind(self.args.socket)
        listener.listen(256)
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        deadline = time.monotonic() + self.args.lifetime
        while time.monotonic() < deadline:
            busy = any(rank.posts for rank in self.ranks.values())
            for fd, _ in poller.poll(1 if busy else 200):
                if fd == listener.fileno():
                    connection, _ = listener.accept()
                    self.ranks[connection.fileno()] = Rank(connection)
                    poller.register(connection, select.POLLIN)
                elif not self.receive(self.ranks[fd]):
                    self.note(event="gone", rank=self.ranks[fd].rank)
                    poller.unregister(fd)
                    self.ranks.pop(fd).connection.close()
            self.progress()

    def receive(self, rank):
        try:
            data, fds, _, _ = socket.recv_fds(rank.connection, 128 * 1024, 4)
        except OSError:
            return False
        if len(data) < 16:
            return False
        kind, _, request = struct.unpack_from("<IIQ", data)
        if kind == HELLO:
            _, pid, rank.rank, world, local, _, arena_bytes = struct.unpack_from("<IiIIIIQ", data, 16)
            rank.arena = mmap.mmap(fds[0], arena_bytes)
            os.close(fds[0])
            self.note(event="hello", rank=rank.rank, pid=pid, world=world)
            if self.args.refuse:
                rank.connection.send(struct.pack("<IIQ1024s", REFUSE, 16 + 1024, 0, self.args.refuse.encode()))
                return True
            device = self.args.device if self.args.device >= 0 else (local if local != 2**32 - 1 else 0)
            trace = f"{self.args.trace}/rank-{rank.rank:05d}.prt" if self.args.trace else ""
            mode = ["passthrough", "record", "capture", "emulate"].index(self.args.mode)
            body = struct.pack("<IIIIQQQIIII64s512s", mode, self.args.devices, device, 0, self.args.memory, self.args.context,
                               self.args.payload, 0, 0, 0, 0, self.args.name.encode(), trace.encode())
            rank.connection.send(struct.pack("<IIQ", WELCOME, 16 + len(body), 0) + body)
        elif kind == CREATE:
            unique = data[16:144]
            size, position, _, _, _, _ = struct.unpack_from("<IIIIII", data, 144)
            self.join(("create", unique), size, position, position, rank, request)
        elif kind == SPLIT:
            parent, color, key, index, flags, _, parent_rank, excluded = struct.unpack_from("<IiiIIIII", data, 16)
            members = len(self.comms[parent]) - (excluded if flags & 2 else 0)
            self.join_split(("split", parent, index), members, color, key, parent_rank, rank, request)
        elif kind == OP_POST:
            count, arrival, arrival_value, release, release_value = struct.unpack_from("<IIIII", data, 16)  # OpPost
            ops = [OP.unpack_from(data, 48 + i * OP.size) for i in range(count)]
            rank.posts.append(dict(ops=ops, arrival=(arrival, arrival_value), release=(release, release_value), done=set()))
            for op in ops:
                self.note(event="op", rank=rank.rank, op=NAMES[op[1]], comm=op[0], count=op[6], sequence=op[7], site=op[13])
        elif kind == CALL_SITE:
            number, size = struct.unpack_from("<II", data, 16)
            self.note(event="site", rank=rank.rank, id=number, text=data[24:24 + size].decode())
        elif kind == REFUSE:
            self.note(event="refused", rank=rank.rank, reason=data[16:].split(b"\0")[0].decode())
        elif kind == LEDGER:
            allocated, peak, failed, device, allocations = struct.unpack_from("<QQQII", data, 16)
            self.note(event="ledger", rank=rank.rank, allocated=allocated, peak=peak, failed=failed)
        elif kind == BYE:
            self.note(event="bye", rank=rank.rank, exit_code=struct.unpack_from("<i", data, 16)[0])
        elif kind == CLOSE:
            comm, how, position, _ = struct.unpack_from("<IIII", data, 16)
            self.note(event="close", rank=rank.rank, comm=comm, how=how)
        return True

    def ready(self, members, order):
        comm = self.next_comm
        self.next_comm += 1
        self.comms[comm] = [member[0] for member in order]
        world = [member[0].rank for member in order]
        for position, (rank, request) in enumerate(order):
            body = struct.pack("<IIII", comm, len(order), position, 0) + struct.pack(f"<{len(order)}I", *world)
            rank.connection.send(struct.pack("<IIQ", READY, 16 + len(body), request) + body)

    def join(self, key, size, position, order, rank, request):
        members = self.waiting.setdefault(key, {})
        members[position] = (rank, request)
        if len(members) == size:
            del self.waiting[key]
            self.ready(members, [members[i] for i in sorted(members)])

    def join_split(self, key, size, color, order_key, parent_rank, rank, request):
        members = self.waiting.setdefault(key, {})
        members[parent_rank] = (color, order_key, rank, request)
        if len(members) < size:
            return
        del self.waiting[key]
        for colour in sorted({m[0] for m in members.values()}):
            chosen = sorted((m[1], p) for p, m in members.items() if m[0] == colour)
            if colour < 0:
                for _, p in chosen:
                    body = struct.pack("<IIII", 0, 0, 0, 0)
                    members[p][2].connection.send(struct.pack("<IIQ", READY, 16 + len(body), members[p][3]) + body)
            else:
                self.ready(None, [(members[p][2], members[p][3]) for _, p in chosen])

    def progress(self):
        moved = True
        while moved:
            moved = False
            due = {}
            for rank in self.ranks.values():
                for post in rank.posts:
                    if rank.word(post["arrival"][0]) - post["arrival"][1] < 0:
                        continue
                    for index, op in enumerate(post["ops"]):
                        if index not in post["done"]:
                            due.setdefault(self.key(op), {})[op[15]] = (rank, post, index, op)
            for key, members in due.items():
                needed = 2 if key[0] == "p2p" and key[2] != key[3] else 2 if key[0] == "p2p" else len(self.comms[key[1]])
                if key[0] == "p2p":
                    members = self.pair(key)
                if members is None or len(members) < needed:
                    continue
                self.execute(key, members)
                moved = True
                break
            for rank in self.ranks.values():
                for post in list(rank.posts):
                    if len(post["done"]) == len(post["ops"]):
                        rank.posts.remove(post)
                        rank.release(*post["release"])

    @staticmethod
    def key(op):
        comm, kind, peer, sequence, me = op[0], NAMES[op[1]], op[4], op[7], op[15]
        if kind == "Send":
            return ("p2p", comm, me, peer, sequence)
        if kind == "Recv":
            return ("p2p", comm, peer, me, sequence)
        return ("coll", comm, sequence)

    def pair(self, key):
        found = {}
        for rank in self.ranks.values():
            for post in rank.posts:
                if rank.word(post["arrival"][0]) - post["arrival"][1] < 0:
                    continue
                for index, op in enumerate(post["ops"]):
                    if index not in post["done"] and self.key(op) == key:
                        found[NAMES[op[1]]] = (rank, post, index, op)
        return found if len(found) == 2 else None

    def execute(self, key, members):
        if key[0] == "p2p":
            send, recv = members["Send"], members["Recv"]
            if send[3][5] & 1 and recv[3][5] & 1:
                recv[0].arena[recv[3][11]:recv[3][11] + recv[3][12]] = send[0].arena[send[3][9]:send[3][9] + send[3][10]]
        else:
            order = [members[i] for i in sorted(members)]
            first = order[0][3]
            kinds = {(op[1], op[2], op[6], op[4]) for _, _, _, op in order}
            if len(kinds) != 1:
                self.abort(key[1], f"ranks disagree on call {key[2]}: {sorted(kinds)}")
                return
            if first[5] & 1:
                inputs = [bytes(rank.arena[op[9]:op[9] + op[10]]) for rank, _, _, op in order]
                for position, (rank, _, _, op) in enumerate(order):
                    out = self.output(NAMES[op[1]], inputs, position, op, [member[3][8] for member in order])
                    if op[12]:
                        rank.arena[op[11]:op[11] + op[12]] = out
        for _, post, index, _ in members.values():
            post["done"].add(index)

    @staticmethod
    def sum(inputs, op, scalars):
        if op[2] != 7 or op[3] not in (0, 4, 100):
            return inputs[0] if len(inputs) == 1 else b"\0" * len(inputs[0])
        values = [array.array("f", data) for data in inputs]
        if op[3] == 100:  # every input is scaled by its own rank's scalar
            factors = [struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0] for bits in scalars]
            values = [array.array("f", [x * f for x in v]) for v, f in zip(values, factors)]
        total = values[0]
        for other in values[1:]:
            total = array.array("f", [to_float(a + b) for a, b in zip(total, other)])
        if op[3] == 4:
            total = array.array("f", [a / len(inputs) for a in total])
        return total.tobytes()

    def output(self, kind, inputs, position, op, scalars):
        if kind in ("AllReduce", "Reduce"):
            return self.sum(inputs, op, scalars)
        if kind == "Broadcast":
            return inputs[op[4]]
        if kind in ("AllGather", "Gather"):
            return b"".join(inputs)
        if kind == "ReduceScatter":
            return self.sum(inputs, op, scalars)[position * op[12]:(position + 1) * op[12]]
        if kind == "AlltoAll":
            part = op[12] // len(inputs)
            return b"".join(i[position * part:(position + 1) * part] for i in inputs)
        return inputs[op[4]][position * op[12]:(position + 1) * op[12]]

    def abort(self, comm, reason):
        self.note(event="abort", comm=comm, reason=reason)
        packet = struct.pack("<IIQIi4096s", ABORT, 16 + 8 + 4096, 0, comm, 6, reason.encode())
        for rank in self.ranks.values():
            rank.posts.clear()
            rank.connection.send(packet)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--mode", default="capture")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--device", type=int, default=-1, help="given to every rank; -1: its local rank; 4294967295: any")
    parser.add_argument("--memory", type=int, default=150_000_000_000)
    parser.add_argument("--context", type=int, default=600_000_000)
    parser.add_argument("--payload", type=int, default=1 << 40)
    parser.add_argument("--name", default="NVIDIA H200")
    parser.add_argument("--trace", default="")
    parser.add_argument("--log", default="")
    parser.add_argument("--refuse", default="")
    parser.add_argument("--lifetime", type=float, default=600.0)
    Controller(parser.parse_args()).serve()


if __name__ == "__main__":
    sys.exit(main())
