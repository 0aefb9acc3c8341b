#!/usr/bin/env python3
"""An NBD client with TLS that costs its host little: it encrypts its requests, and drops the replies
without decrypting or copying them (MSG_TRUNC of TCP).

tls_sink.py PORT CA EXPORT BYTES DEPTH CONNECTIONS SECONDS: reads BYTES at a time, in order. Prints
the bytes of TLS records that came, per second, and the seconds of its own processor time."""

import os
import resource
import socket
import ssl
import struct
import sys
import time

RECORD, OVERHEAD = 16384, 22
ROOM = bytearray(1 << 20)


class Connection:
    def __init__(self, port, ca, export):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.asked, self.came = 0, 0
        self.exactly(18)
        self.socket.sendall(struct.pack(">I", 3))
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", 5, 0))
        if struct.unpack(">QIII", self.exactly(20))[2] != 1:
            sys.exit("the server refuses STARTTLS")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(ca)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.until(self.tls.do_handshake)
        name = export.encode()
        go = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.write(b"IHAVEOPT" + struct.pack(">II", 7, len(go)) + go)
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.decrypted(20))
            data = self.decrypted(length)
            if kind == 1:
                break
            if kind & 0x80000000:
                sys.exit(f"the server refuses the export: {data!r}")
            if data[:2] == b"\0\0":
                self.size = struct.unpack(">Q", data[2:10])[0]

    def exactly(self, count):
        data = b""
        while len(data) < count:
            data += self.socket.recv(count - len(data)) or sys.exit("the server hung up")
        return data

    def until(self, call):
        """Calls until the call needs no more from the server."""
        while True:
            try:
                result = call()
                self.socket.sendall(self.outgoing.read())
                return result
            except ssl.SSLWantReadError:
                self.socket.sendall(self.outgoing.read())
                self.incoming.write(self.socket.recv(65536) or sys.exit("the server hung up"))

    def decrypted(self, count):
        data = b""
        while len(data) < count:
            data += self.until(lambda: self.tls.read(count - len(data)))
        return data

    def write(self, data):
        self.tls.write(data)
        self.socket.sendall(self.outgoing.read())

    def read_for(self, length, depth, seconds):
        """Keeps `depth` reads in flight; returns the bytes that came."""
        # what a reply takes in TLS records, at least
        reply = (length + 16) * (RECORD + OVERHEAD) / RECORD
        # one wake-up for many records
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, length // 2)
        before = self.came
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            requests = b""
            while self.asked < depth + int(self.came / reply):
                at = self.asked * length % (self.size - length)
                requests += struct.pack(">IHHQQI", 0x25609513, 0, 0, self.asked, at, length)
                self.asked += 1
            if requests:
                self.write(requests)
            count = self.socket.recv_into(ROOM, len(ROOM), socket.MSG_TRUNC)
            if count == 0:
                sys.exit("the server hung up")
            self.came += count
        return self.came - before


def main():
    port, ca, export, length, depth, connections, seconds = sys.argv[1:]
    pipes = []
    for _ in range(int(connections)):
        reader, writer = os.pipe()
        if os.fork() == 0:
            connection = Connection(int(port), ca, export)
            connection.read_for(int(length), int(depth), 0.3)
            came = connection.read_for(int(length), int(depth), float(seconds))
            usage = resource.getrusage(resource.RUSAGE_SELF)
            os.write(writer, f"{came} {usage.ru_utime + usage.ru_stime}".encode())
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    answers = [os.read(pipe, 100).split() for pipe in pipes]
    while pipes:
        status = os.wait()[1]
        pipes.pop()
        if status != 0:
            sys.exit("a connection failed")
    print(sum(int(came) for came, _ in answers) / float(seconds), sum(float(cpu) for _, cpu in answers))


main()
