# Run by nbdsh, with URI and SIZE set in front. Every call's outcome is compared; the last line says that all of it was run.
import errno
import random


def fresh(**options):
    handle = nbd.NBD()
    handle.add_meta_context("base:allocation")
    if options.get("simple"):
        handle.set_request_structured_replies(False)
    handle.connect_uri(URI)
    return handle


def refused(number, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, (call, arguments, error)
        return
    raise AssertionError((call, arguments, "was accepted"))


def status(handle, length, offset, flags=0):
    found = []
    handle.block_status(length, offset, lambda name, at, entries, error: found.extend(zip(entries[::2], entries[1::2])), flags)
    return found


a, b = fresh(), fresh()
assert a.get_size() == SIZE and a.get_protocol() == "newstyle-fixed" and a.get_structured_replies_negotiated()
for can in [a.can_multi_conn, a.can_flush, a.can_fua, a.can_trim, a.can_zero, a.can_fast_zero, a.can_cache, a.can_df]:
    assert can(), can
assert not a.is_read_only() and not a.is_rotational() and a.can_meta_context("base:allocation")
assert a.get_block_size(nbd.SIZE_MINIMUM) in (1, 512) and a.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20

# What one connection wrote and flushed, another sees; the largest request too.
large = bytes(range(256)) * (32 << 12)
a.pwrite(large, 8 << 20)
a.flush()
assert b.pread(32 << 20, 8 << 20) == large
one = []
b.pread_structured(1000 * 512, (8 << 20) + 512, lambda data, at, kind, error: one.append(bytes(data)), nbd.CMD_FLAG_DF)
assert one == [large[512:512 + 1000 * 512]]
for size in (512, 4096, 65536):
    a.pwrite(b"x" * size, 0, nbd.CMD_FLAG_FUA)
    assert b.pread(size, 0) == b"x" * size

# Zeroes and holes, with and without space; a part of a block is no fast zero.
b.zero(1 << 20, 8 << 20, nbd.CMD_FLAG_FUA)
b.zero(1 << 20, 9 << 20, nbd.CMD_FLAG_NO_HOLE)
b.zero(1 << 20, 10 << 20, nbd.CMD_FLAG_FAST_ZERO)
b.trim(1 << 20, 11 << 20)
refused(errno.ENOTSUP, b.zero, 512, 13 << 20, nbd.CMD_FLAG_FAST_ZERO)
assert a.pread(3 << 20, 8 << 20) == bytes(3 << 20)
assert a.pread(1 << 20, 12 << 20) == large[4 << 20:5 << 20]
assert status(a, 1 << 20, 8 << 20) == [(1 << 20, 3)] and status(a, 1 << 20, 12 << 20) == [(1 << 20, 0)]
assert len(status(a, 32 << 20, 4 << 20)) > 1 and len(status(a, 32 << 20, 4 << 20, nbd.CMD_FLAG_REQ_ONE)) == 1
a.cache(1 << 20, 12 << 20)

# A read in pieces is the read.
pieces = {}
a.pread_structured(4 << 20, 10 << 20, lambda data, at, kind, error: pieces.update({at: (bytes(data), kind)}))
whole = bytearray(4 << 20)
for at, (data, kind) in pieces.items():
    if kind == nbd.READ_DATA:
        whole[at - (10 << 20):at - (10 << 20) + len(data)] = data
assert bytes(whole) == a.pread(4 << 20, 10 << 20)

# What cannot be is refused, and the connection stays in step.
for handle in (a, fresh(simple=True)):
    handle.set_strict_mode(0)
    refused(errno.EINVAL, handle.pread, 512, SIZE)
    refused(errno.ENOSPC, handle.pwrite, b"y" * 1024, SIZE - 512)
    refused(errno.ENOSPC, handle.zero, 1024, SIZE - 512)
    refused(errno.EINVAL, handle.flush, nbd.CMD_FLAG_REQ_ONE)
    assert handle.pread(512, 0) == b"x" * 512

# Many requests in flight, whose answers come in any order.
order = list(range(256))
random.Random(5).shuffle(order)
def finish(handle, cookies):
    while cookies:
        handle.poll(-1)
        cookies = [cookie for cookie in cookies if not handle.aio_command_completed(cookie)]


finish(a, [a.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([number]) * 4096), number * 4096) for number in order])
buffers = {number: nbd.Buffer(4096) for number in order}
finish(b, [b.aio_pread(buffers[number], number * 4096) for number in order])
assert all(buffers[number].to_bytearray() == bytearray([number]) * 4096 for number in order)
a.shutdown()
b.shutdown()
print("all of it")
