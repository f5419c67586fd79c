"""What every message engine guarantees about topics and records (ports.Queue)."""

import threading

import pytest

from verlops.errors import ConfigError, NotFoundError, VerlopsError
from verlops.ports import TopicSpec


def test_ensure_creates_topics_and_describe_lists_them(lab):
    spec = TopicSpec(lab.topic, 3, compact=False, retention_s=3600.0, max_bytes=5000)
    compacted = TopicSpec(f"{lab.topic}.control", 1, compact=True)
    lab.queue.ensure([spec, compacted])
    found = lab.again().describe()
    assert found[spec.name] == spec
    assert found[compacted.name] == compacted


def test_ensure_again_keeps_records_grows_and_never_shrinks(lab):
    topic = lab.make(2)
    lab.fill(10)
    before = lab.records()
    lab.make(4)
    assert lab.queue.describe()[topic].partitions == 4
    assert lab.queue.end_offsets(topic).keys() == {0, 1, 2, 3}
    lab.make(1)
    assert lab.queue.describe()[topic].partitions == 4
    assert lab.records() == before


def test_ensure_takes_over_changed_settings(lab):
    lab.make(1, max_bytes=10)
    lab.make(1, max_bytes=20)
    assert lab.again().describe()[lab.topic].max_bytes == 20
    lab.queue.publish(lab.topic, [("k", b"x" * 20)])


@pytest.mark.parametrize(
    "spec",
    [TopicSpec("", 1), TopicSpec("../up", 1), TopicSpec("a/b", 1), TopicSpec("t", 0)],
    ids=["empty", "outside", "slash", "no partition"],
)
def test_an_impossible_topic_is_refused_and_none_is_made(lab, spec):
    with pytest.raises(ConfigError):
        lab.queue.ensure([TopicSpec(lab.topic, 1), spec])
    assert lab.topic not in lab.queue.describe()


def test_an_unknown_topic_is_not_found(lab):
    for name in (lab.topic, "../../etc/passwd", "nul\0"):
        for call in (
            lambda name=name: lab.queue.publish(name, [("k", b"v")]),
            lambda name=name: lab.queue.read(name, 0, 0),
            lambda name=name: lab.queue.begin_offsets(name),
            lambda name=name: lab.queue.end_offsets(name),
            lambda name=name: lab.queue.trim(name, {0: 1}),
            lambda name=name: lab.queue.join(name, "g", member="m"),
            lambda name=name: lab.queue.committed(name, "g"),
        ):
            with pytest.raises(NotFoundError):
                call()


def test_an_unknown_partition_is_not_found(lab):
    lab.make(2)
    lab.fill(4)
    for call in (
        lambda: lab.queue.read(lab.topic, 2, 0),
        lambda: lab.queue.read(lab.topic, -1, 0),
        lambda: lab.queue.trim(lab.topic, {0: 1, 2: 1}),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert lab.queue.begin_offsets(lab.topic) == {0: 0, 1: 0}


def test_offsets_start_at_zero_and_grow_by_one(lab):
    topic = lab.make(3)
    assert lab.queue.begin_offsets(topic) == lab.queue.end_offsets(topic) == {0: 0, 1: 0, 2: 0}
    places = [
        place
        for batch in range(5)
        for place in lab.queue.publish(topic, [(f"{batch}-{n}", b"v") for n in range(7)])
    ]
    for partition, end in lab.queue.end_offsets(topic).items():
        offsets = [place.offset for place in places if place.partition == partition]
        assert offsets == list(range(end))
    assert len(places) == 35


def test_records_come_back_as_they_were_where_publish_said(lab):
    topic = lab.make(3)
    sent = [("ключ-é", bytes(range(256))), ("", b""), ("k", b"x" * 100_000), ("'; --", b"\0")]
    places = lab.queue.publish(topic, sent)
    for place, (key, value) in zip(places, sent, strict=True):
        (record, *_) = lab.again().read(topic, place.partition, place.offset)
        assert (record.topic, record.partition, record.offset) == (topic, *place)
        assert (record.key, record.value) == (key, value)
        assert record.timestamp > 0


def test_a_key_lies_where_kafka_would_put_it_and_keeps_its_order(lab):
    topic = lab.make(7)
    keys = ["foobar", "a-little-bit-long-string", "21"] * 4
    places = lab.queue.publish(topic, [(key, str(n).encode()) for n, key in enumerate(keys)])
    # murmur2 of Kafka's own tests: −790332482, −985981536, −973932308.
    expected = {
        key: (value & 0x7FFFFFFF) % 7
        for key, value in zip(keys[:3], (-790332482, -985981536, -973932308), strict=True)
    }
    for n, place in enumerate(places):
        assert place.partition == expected[keys[n]]
    for key in keys[:3]:
        values = [int(r.value) for r in lab.records() if r.key == key]
        assert values == sorted(values)
        assert len(values) == 4


def test_publishing_nothing_does_nothing(lab):
    topic = lab.make()
    assert lab.queue.publish(topic, []) == []
    assert lab.queue.end_offsets(topic) == {0: 0}


def test_what_is_published_is_seen_by_everybody_at_once(lab):
    topic = lab.make()
    other = lab.again()
    lab.fill(3)
    assert other.end_offsets(topic) == {0: 3}
    other.publish(topic, [("k", b"theirs")])
    assert lab.queue.read(topic, 0, 3)[0].value == b"theirs"


def test_read_honours_start_and_limit_and_ends_short(lab):
    topic = lab.make()
    lab.fill(10)
    offsets = [r.offset for r in lab.queue.read(topic, 0, 4, 3)]
    assert offsets == [4, 5, 6]
    assert [r.offset for r in lab.queue.read(topic, 0, 8, 5)] == [8, 9]
    assert lab.queue.read(topic, 0, 10) == []
    assert lab.queue.read(topic, 0, 99) == []
    assert lab.queue.read(topic, 0, 0, 0) == []


def test_a_tombstone_is_not_an_empty_value(lab):
    topic = lab.make(compact=True)
    lab.queue.publish(topic, [("empty", b""), ("gone", b"x"), ("gone", None)])
    newest = {record.key: record.value for record in lab.records()}
    assert newest == {"empty": b"", "gone": None}


def test_compaction_keeps_the_newest_record_of_every_key_at_its_offset(lab):
    topic = lab.make(2, compact=True)
    places = {}
    for number in range(30):
        key = f"k{number % 4}"
        (places[key],) = lab.queue.publish(topic, [(key, str(number).encode())])
    records = lab.records()
    newest = {record.key: record for record in records}
    assert {k: int(r.value) for k, r in newest.items()} == {"k0": 28, "k1": 29, "k2": 26, "k3": 27}
    assert {k: (r.partition, r.offset) for k, r in newest.items()} == places
    assert sum(lab.queue.end_offsets(topic).values()) == 30


def test_an_oversize_record_is_refused_with_all_its_batch(lab):
    topic = lab.make(2, max_bytes=100)
    with pytest.raises(VerlopsError, match="'big' of 101 bytes is over the 100"):
        lab.queue.publish(topic, [("small", b"x"), ("big", b"x" * 101)])
    assert lab.queue.end_offsets(topic) == {0: 0, 1: 0}
    lab.queue.publish(topic, [("big", b"x" * 100)])


def test_trim_forgets_what_lies_below_and_keeps_offsets(lab):
    topic = lab.make(2)
    lab.fill(40)
    ends = lab.queue.end_offsets(topic)
    lab.queue.trim(topic, {0: 5})
    assert lab.again().begin_offsets(topic) == {0: 5, 1: 0}
    assert lab.queue.end_offsets(topic) == ends
    # A reader who starts below the log start gets from the log start on.
    assert [r.offset for r in lab.queue.read(topic, 0, 0, 3)] == [5, 6, 7]
    assert [r.offset for r in lab.queue.read(topic, 1, 0, 1)] == [0]


def test_trim_goes_no_further_than_the_end_and_never_back(lab):
    topic = lab.make()
    lab.fill(10)
    lab.queue.trim(topic, {0: 99})
    assert lab.queue.begin_offsets(topic) == lab.queue.end_offsets(topic) == {0: 10}
    lab.queue.trim(topic, {0: 3})
    assert lab.queue.begin_offsets(topic) == {0: 10}
    assert lab.queue.read(topic, 0, 0) == []
    (place,) = lab.queue.publish(topic, [("k", b"next")])
    assert place.offset == 10
    assert [r.value for r in lab.queue.read(topic, 0, 0)] == [b"next"]


def test_many_threads_publish_without_losing_or_mixing_anything(lab):
    topic = lab.make(4)
    places: dict[str, tuple[int, int]] = {}

    def publish(worker: int) -> None:
        for batch in range(10):
            sent = [(f"{worker}-{batch}-{n}", b"%d" % worker) for n in range(5)]
            for (key, _), place in zip(sent, lab.queue.publish(topic, sent), strict=True):
                places[key] = place

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = lab.records()
    assert {r.key: (r.partition, r.offset) for r in records} == places
    assert len(places) == len(records) == 200
    assert sum(lab.queue.end_offsets(topic).values()) == 200


def test_a_closed_queue_says_so(lab):
    topic = lab.make()
    lab.queue.close()
    lab.queue.close()
    with pytest.raises(VerlopsError, match="closed"):
        lab.queue.publish(topic, [("k", b"v")])
