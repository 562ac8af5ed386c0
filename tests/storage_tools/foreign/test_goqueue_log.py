"""GoQueue's segment folders: what is written is read back, damage is told from gaps and from a torn tail."""

from __future__ import annotations

import random
import struct
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.storage.disk import Disk, RealDisk
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.segment_scan import Damage, Window
from assay.reference_broker.storage_tools.foreign import goqueue_log
from assay.reference_broker.storage_tools.foreign.goqueue_log import (
    GoQueueLogWriter,
    SoundMessage,
    walk_messages,
)
from assay.reference_broker.storage_tools.foreign.goqueue_message import (
    GoQueueFlag,
    GoQueueLayout,
    GoQueueMessage,
    GoQueueMessageError,
    decode_message,
    encode_message,
)
from assay.sim.disk import Persistence, SimDisk
from tests.storage_tools.foreign.goqueue_folders import walk_folder, write_folder

FOLDER = "logs/orders/0"


def message(offset: int, value: bytes = b"value") -> GoQueueMessage:
    return GoQueueMessage(
        offset=offset,
        timestamp_ns=1_000 + offset,
        key=b"key",
        value=value,
        flags=GoQueueFlag.HAS_HEADERS,
        headers=((b"h", b"v"),),
    )


def sound(disk: Disk, layout: GoQueueLayout = GoQueueLayout.V34) -> list[GoQueueMessage]:
    found = [part.found for part in walk_folder(disk, FOLDER, layout=layout)]
    return [part.message for part in found if isinstance(part, SoundMessage)]


def walked(data: bytes, **options: int) -> list[int | tuple[int, int, bool]]:
    """Offsets of sound messages, and (start, end, is it the tail) of damage."""
    disk = MemoryDisk()
    file = disk.open("segment", create=True)
    file.append(data)
    found = walk_messages(file, **options)
    return [
        part.message.offset if isinstance(part, SoundMessage) else (part.start, part.end, part.is_tail)
        for part in found
    ]


def test_a_folder_is_read_back_and_its_files_are_goqueues() -> None:
    disk = MemoryDisk()
    messages = [message(offset, bytes(700)) for offset in range(5, 45)]
    size = len(encode_message(messages[0]))
    assert write_folder(disk, FOLDER, messages, segment_bytes=20 * size) == [5, 25]
    assert [disk.open(f"{FOLDER}/{base:020d}.log").size for base in (5, 25)] == [20 * size] * 2
    assert disk.list(FOLDER) == [
        f"{base:020d}{suffix}" for base in (5, 25) for suffix in (".index", ".log", ".timeindex")
    ]
    assert sound(disk) == messages
    for base in (5, 25):
        index = disk.open(f"{FOLDER}/{base:020d}.index").read_at(0, 10_000)
        times = disk.open(f"{FOLDER}/{base:020d}.timeindex").read_at(0, 10_000)
        # The first message, then the first one at least 4096 bytes after the last indexed one.
        step = -(-4_096 // size)
        expected = [(base + number, number * size) for number in range(0, 20, step)]
        assert index == b"".join(struct.pack(">qq", *entry) for entry in expected)
        assert list(struct.iter_unpack(">qq", times)) == [(1_000 + offset, offset) for offset, _ in expected]


def test_a_message_that_would_cross_the_limit_starts_a_segment() -> None:
    disk = MemoryDisk()
    size = len(encode_message(message(0)))
    assert write_folder(disk, FOLDER, [message(n) for n in range(3)], segment_bytes=2 * size - 1) == [0, 1, 2]
    assert write_folder(MemoryDisk(), FOLDER, [message(0)], segment_bytes=1) == [0]


def test_a_writer_refuses_offsets_that_go_back_and_folders_in_use() -> None:
    disk = MemoryDisk()
    writer = GoQueueLogWriter(disk, FOLDER)
    writer.add(message(4))
    writer.add(message(9))
    with pytest.raises(GoQueueMessageError, match="goes back"):
        writer.add(message(9))
    with pytest.raises(GoQueueMessageError, match="limit"):
        writer.add(message(10, bytes(17 * 2**20)))
    writer.add(message(10))
    writer.close()
    writer.close()
    assert [one.offset for one in sound(disk)] == [4, 9, 10]
    with pytest.raises(FileExistsError, match="empty folder"):
        GoQueueLogWriter(disk, FOLDER)


def test_an_empty_export_makes_no_segment() -> None:
    disk = MemoryDisk()
    assert write_folder(disk, FOLDER, []) == []
    assert list(walk_folder(disk, FOLDER)) == []


def test_a_closed_folder_survives_power_loss() -> None:
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        written = write_folder(disk, FOLDER, [message(n, bytes(50)) for n in range(40)], segment_bytes=700)
        disk.power_loss((Persistence.NONE,))
        assert [one.offset for one in sound(disk)] == list(range(40))
        assert len(disk.list(FOLDER)) == 3 * len(written)
        for base in written:
            index = disk.open(f"{FOLDER}/{base:020d}.index").read_at(0, 1_000)
            times = disk.open(f"{FOLDER}/{base:020d}.timeindex").read_at(0, 1_000)
            assert struct.unpack_from(">qq", index) == (base, 0)
            assert struct.unpack_from(">qq", times) == (1_000 + base, base)


def test_offsets_must_lie_between_the_names_of_their_segment_and_the_next() -> None:
    disk = MemoryDisk()
    write_folder(disk, FOLDER, [message(n) for n in range(6)], segment_bytes=3 * len(encode_message(message(0))))
    disk.rename(f"{FOLDER}/{3:020d}.log", f"{FOLDER}/{4:020d}.log")
    assert [one.offset for one in sound(disk)] == [0, 1, 2, 4, 5]
    disk.rename(f"{FOLDER}/{4:020d}.log", f"{FOLDER}/{2:020d}.log")
    parts = [part.found for part in walk_folder(disk, FOLDER)]
    assert [part.message.offset if isinstance(part, SoundMessage) else "damage" for part in parts] == [
        0, 1, "damage", 3, 4, 5,
    ]  # fmt: skip


@pytest.mark.parametrize("layout", list(GoQueueLayout))
def test_the_layout_of_a_folder_is_found(layout: GoQueueLayout, tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    plain = [GoQueueMessage(offset=n, timestamp_ns=n, value=b"%d" % n) for n in range(3)]
    write_folder(disk, FOLDER, plain, layout=layout)
    assert sound(disk, layout=layout) == plain
    wrong = GoQueueLayout.V32 if layout is GoQueueLayout.V34 else GoQueueLayout.V34
    assert sound(disk, layout=wrong) == []


def test_segments_of_different_layouts_are_read_in_one_walk() -> None:
    disk = MemoryDisk()
    plain = [GoQueueMessage(offset=n, timestamp_ns=n, value=b"%d" % n) for n in range(6)]
    for number, layout in enumerate(GoQueueLayout):
        other = MemoryDisk()
        write_folder(other, FOLDER, plain[2 * number : 2 * number + 2], layout=layout)
        (name,) = [name for name in other.list(FOLDER) if name.endswith(".log")]
        disk.make_folder(FOLDER)
        disk.open(f"{FOLDER}/{name}", create=True).append(other.open(f"{FOLDER}/{name}").read_at(0, 1_000))
    parts = list(walk_folder(disk, FOLDER, layout=None))
    assert [part.found.message for part in parts if isinstance(part.found, SoundMessage)] == plain
    assert [part.layout for part in parts] == [layout for layout in GoQueueLayout for _ in range(2)]
    assert len(sound(disk)) == 2, "with a layout given, only that one is read"


def test_every_flipped_bit_costs_at_most_its_own_message() -> None:
    pieces = [encode_message(message(n, b"payload %d" % n)) for n in range(5)]
    start, end = len(pieces[0]) * 2, len(pieces[0]) * 3
    hidden = 0
    for bit in range(start * 8, end * 8):
        data = bytearray(b"".join(pieces))
        data[bit // 8] ^= 1 << bit % 8
        found = walked(bytes(data))
        if found == [0, 1, 2, 3, 4]:
            hidden += 1
        else:
            assert found == [0, 1, (start, end, False), 3, 4], bit
    assert hidden == 3  # compressed, tombstone, control: covered by no checksum


def test_a_torn_tail_is_the_tail_at_every_length() -> None:
    pieces = [encode_message(message(n)) for n in range(3)]
    sound = b"".join(pieces[:2])
    for kept in range(1, len(pieces[2])):
        assert walked(sound + pieces[2][:kept]) == [0, 1, (len(sound), len(sound) + kept, True)]
    assert walked(sound + bytes(500)) == [0, 1, (len(sound), len(sound) + 500, True)]


def test_damage_to_a_length_is_found_wherever_it_leads() -> None:
    pieces = [encode_message(message(n, b"x" * 40)) for n in range(6)]
    data = bytearray(b"".join(pieces))
    size = len(pieces[0])
    for value_length in (0, 1, 39, 41, size + 39, 4 * size + 40, 10_000, 16 * 2**20, 2**32 - 1):
        data[size + 28 : size + 32] = value_length.to_bytes(4, "big")
        assert walked(bytes(data)) == [0, (size, 2 * size, False), 2, 3, 4, 5], value_length
    # When it happens to lead to the start of a later message, nobody can tell a wrong length from a long value.
    data[size + 28 : size + 32] = (size + 40).to_bytes(4, "big")
    assert walked(bytes(data)) == [0, (size, 3 * size, False), 3, 4, 5]


def test_what_follows_long_damage_is_found_wherever_a_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is searched piece by piece, and the mark of a message may lie in two of them."""
    monkeypatch.setattr(goqueue_log, "Window", partial(Window, read_bytes=200))
    last = [encode_message(message(n)) for n in (2, 3)]
    first = encode_message(message(0))
    for length in range(20, 800):
        long = bytearray(encode_message(message(1, bytes(length))))
        long[28:32] = b"\xff" * 4
        end = len(first) + len(long)
        assert walked(first + long + b"".join(last)) == [0, (len(first), end, False), 2, 3], length


def test_messages_inside_a_value_are_no_messages() -> None:
    forged = b"".join(encode_message(message(n)) for n in range(2, 12))
    pieces = [encode_message(message(0)), encode_message(message(1, forged)), encode_message(message(2))]
    data = bytearray(b"".join(pieces))
    outer = len(pieces[0])
    data[outer + 34 + 3 + 20] ^= 1  # within the value
    assert walked(bytes(data)) == [0, (outer, outer + len(pieces[1]), False), 2]
    data = bytearray(b"".join(pieces))
    data[outer] ^= 1  # the magic: the checksum still tells where the message ends
    assert walked(bytes(data)) == [0, (outer, outer + len(pieces[1]), False), 2]
    torn = pieces[0] + pieces[1][:-5]
    assert walked(torn) == [0, (outer, len(torn), True)]


def test_gaps_are_no_damage_but_offsets_that_go_back_are() -> None:
    size = len(encode_message(message(0)))
    assert walked(b"".join(encode_message(message(n)) for n in (3, 7, 2_000, 2_001))) == [3, 7, 2_000, 2_001]
    back = b"".join(encode_message(message(n)) for n in (3, 7, 7, 8))
    assert walked(back) == [3, 7, (2 * size, 3 * size, False), 8]
    assert walked(back, end_offset=8) == [3, 7, (2 * size, 3 * size, False), (3 * size, 4 * size, False)]
    assert walked(back, base_offset=4) == [(0, size, False), 7, (2 * size, 3 * size, False), 8]


def test_a_gap_behind_damaged_lengths_needs_a_chain() -> None:
    """A message far ahead is believed when many follow it: a compacted log leaves such gaps."""
    size = len(encode_message(message(0)))
    data = bytearray(b"".join(encode_message(message(n)) for n in (0, 1, *range(5_000, 5_010))))
    data[size + 28 : size + 32] = b"\xff\xff\xff\xff"
    assert walked(bytes(data)) == [0, (size, 2 * size, False), *range(5_000, 5_010)]


def test_the_search_behind_damage_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value made of headers that claim megabytes each must not make the walk quadratic."""
    tried = 0

    def counted(data: bytes, at: int, *, layout: GoQueueLayout) -> GoQueueMessage:
        nonlocal tried
        tried += 1
        return decode_message(data, at, layout=layout)

    monkeypatch.setattr(goqueue_log, "_MAX_SEARCHED_BYTES", 10_000_000)
    monkeypatch.setattr(goqueue_log, "decode_message", counted)
    claim = struct.pack(">2sBBIqqBBHIH", b"GQ", 1, 0, 0, 1, 0, 2, 0, 0, 100_000, 0)
    first = encode_message(message(0))
    data = first + b"\xff" * 34 + claim * 6_000
    assert walked(data) == [0, (len(first), len(data), True)]
    assert 90 < tried < 110, "each try checksums 100 kB"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_walk_accounts_for_every_byte_whatever_the_damage(data: st.DataObject) -> None:
    content = bytearray(b"".join(encode_message(message(n, bytes([n]) * (n * 11 % 50))) for n in range(12)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        junk = data.draw(st.binary(max_size=40))
        kind = data.draw(st.sampled_from(["overwrite", "insert", "delete"]))
        content[at : at + (0 if kind == "insert" else len(junk))] = b"" if kind == "delete" else junk
    disk = MemoryDisk()
    file = disk.open("segment", create=True)
    file.append(bytes(content))
    position, offsets = 0, []
    for part in walk_messages(file):
        if isinstance(part, Damage):
            assert part.start == position < part.end
            assert part.is_tail <= (part.end == len(content))
            position = part.end
        else:
            assert part.position == position
            position += part.size
            offsets.append(part.message.offset)
    assert position == len(content)
    assert offsets == sorted(set(offsets))
