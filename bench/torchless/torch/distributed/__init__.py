"""TCPStore, its server alone: https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp, without libuv."""

import socketserver
import struct
import threading

_VALIDATE, _SET, _GET, _WAIT, _PING = 0, 1, 3, 6, 13
_MAGIC = 0x3C85F7CE
_STOP_WAITING = b"\0"


class _Client(socketserver.StreamRequestHandler):
    def _text(self):
        return self._exactly(struct.unpack("=Q", self._exactly(8))[0])

    def _exactly(self, count):
        data = self.rfile.read(count)
        if len(data) != count:
            raise ConnectionError("the client is gone")
        return data

    def handle(self):
        store = self.server.store
        try:
            while request := self.rfile.read(1):
                if request[0] == _VALIDATE:
                    if struct.unpack("=I", self._exactly(4))[0] != _MAGIC:
                        return
                elif request[0] == _PING:
                    self.wfile.write(self._exactly(4))
                elif request[0] == _SET:
                    store._put(self._text(), self._text())
                elif request[0] == _GET:
                    value = store._take(self._text())
                    self.wfile.write(struct.pack("=Q", len(value)) + value)
                elif request[0] == _WAIT:
                    for _ in range(struct.unpack("=Q", self._exactly(8))[0]):
                        store._take(self._text())
                    self.wfile.write(_STOP_WAITING)
                else:
                    return
        except ConnectionError:
            pass


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 1024


class TCPStore:
    """Listens on `port` (0: a free one, told by `port`). Keys are those of clients, which put a slash before each."""

    def __init__(self, host, port, is_master=True, wait_for_workers=False, use_libuv=False):
        if not is_master or wait_for_workers or use_libuv:
            raise NotImplementedError("torchless: the store's server alone")
        self._values, self._changed = {}, threading.Condition()
        self._server = _Server((host, port), _Client)
        self._server.store = self
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _put(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def _take(self, key):
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key]

    def set(self, key, value):
        self._put(b"/" + key.encode(), bytes(value))

    def get(self, key):
        return self._take(b"/" + key.encode())

    def list_keys(self):
        with self._changed:
            return [key.decode()[1:] for key in self._values if key.startswith(b"/")]
