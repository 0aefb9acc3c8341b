# Run by nbdsh of libnbd 1.18 and later, with URI and SIZE set in front: extended headers, whose lengths have 64 bits. The last line says that all
# of it was run. The disk has more than 4 GiB, "monday" is a snapshot of it when it was empty.
import errno

BITMAP = "qemu:dirty-bitmap:monday"
GIB = 1 << 30


def fresh(extended=True):
    handle = nbd.NBD()
    handle.add_meta_context("base:allocation")
    handle.add_meta_context(BITMAP)
    handle.set_request_extended_headers(extended)
    handle.connect_uri(URI)
    return handle


def status(handle, length, offset, flags=0, only=None):
    found = {}
    if only is None:
        handle.block_status_64(length, offset, lambda name, at, entries, error: found.setdefault(name, []).extend(entries), flags)
    else:
        handle.block_status_filter(length, offset, only, lambda name, at, entries, error: found.setdefault(name, []).extend(entries), flags)
    return found


def refused(number, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, (call, arguments, error)
        return
    raise AssertionError((call, arguments, "was accepted"))


a, old = fresh(), fresh(extended=False)
assert a.get_extended_headers_negotiated() and a.get_structured_replies_negotiated() and a.can_block_status_payload()
assert not old.get_extended_headers_negotiated() and not old.can_block_status_payload()
assert a.get_size() == SIZE > 5 * GIB and a.can_meta_context("base:allocation") and a.can_meta_context(BITMAP)

# One answer about more than 4 GiB.
assert status(a, SIZE, 0) == {"base:allocation": [(SIZE, 3)], BITMAP: [(SIZE, 0)]}

# Data beyond the first 4 GiB, through the long headers and through the short ones.
data = bytes(range(256)) * 4096
a.pwrite(data, 5 * GIB, nbd.CMD_FLAG_FUA)
assert a.pread(len(data), 5 * GIB) == data and old.pread(len(data), 5 * GIB) == data
pieces = []
a.pread_structured(2 << 20, 5 * GIB, lambda part, at, kind, error: pieces.append((at - 5 * GIB, len(part), kind)))
assert sorted(pieces) == [(0, 1 << 20, nbd.READ_DATA), (1 << 20, 1 << 20, nbd.READ_HOLE)], pieces
extents = [(5 * GIB, 3), (1 << 20, 0), (SIZE - 5 * GIB - (1 << 20), 3)]
changes = [(5 * GIB, 0), (1 << 20, 1), (SIZE - 5 * GIB - (1 << 20), 0)]
assert status(a, SIZE, 0) == {"base:allocation": extents, BITMAP: changes}
assert status(a, SIZE, 0, nbd.CMD_FLAG_REQ_ONE) == {"base:allocation": extents[:1], BITMAP: changes[:1]}

# A payload with the request chooses among the contexts; none of them, and none that was agreed on.
assert status(a, SIZE, 0, only=[BITMAP]) == {BITMAP: changes}
assert status(a, SIZE, 0, only=["base:allocation"]) == {"base:allocation": extents}
assert status(a, SIZE, 0, only=["base:allocation", BITMAP]) == {"base:allocation": extents, BITMAP: changes}
a.set_strict_mode(0)
refused(errno.EINVAL, lambda: status(a, SIZE, 0, only=[]))
refused(errno.EINVAL, lambda: status(a, SIZE + 512, 0))

# Zeroes and discards of more than 4 GiB in one request.
a.zero(SIZE - GIB, GIB, nbd.CMD_FLAG_FAST_ZERO)
assert status(a, SIZE, 0)["base:allocation"] == [(SIZE, 3)]
assert a.pread(len(data), 5 * GIB) == bytes(len(data))
a.pwrite(data, 5 * GIB)
a.trim(SIZE, 0)
assert a.pread(len(data), 5 * GIB) == bytes(len(data)) and status(a, SIZE, 0)["base:allocation"] == [(SIZE, 3)]
a.cache(SIZE, 0)

# What cannot be is refused, and the connection stays in step.
refused(errno.ENOSPC, a.zero, 5 * GIB, SIZE - 4 * GIB)
refused(errno.EINVAL, a.pread, 512, SIZE)
refused(errno.ENOSPC, a.pwrite, b"y" * 1024, SIZE - 512)
a.pwrite(data, 0)  # without the flag that announces a payload, as QEMU 8.2 to 10.0 do: strictness would set it
a.flush()
assert old.pread(len(data), 0) == data
a.shutdown()
old.shutdown()
print("all of it")
