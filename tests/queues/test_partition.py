import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlops.queues.partition import (
    bucket,
    is_name,
    lag,
    last_of_each,
    murmur2,
    partition_of,
    rate,
    start_offset,
)

# Of Kafka's UtilsTest.testMurmur2, and of librdkafka's rdmurmur2.c (the last three).
KAFKA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
    "1": -1993445489,
    "12": 126087238,
    "123": -267702483,
    "1234": -1614185708,
    "12345": -1188365604,
    "kafka": 0xD067CF64,
}


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
def test_murmur2_is_kafkas(key, expected):
    assert murmur2(key.encode()) == expected & 0xFFFFFFFF
    assert partition_of(key, 1000) == (expected & 0x7FFFFFFF) % 1000


@given(st.text(), st.integers(1, 500))
def test_every_key_has_a_partition(key, partitions):
    assert 0 <= partition_of(key, partitions) < partitions


@pytest.mark.parametrize(
    ("committed", "begin", "end", "start", "waiting"),
    [
        (None, 9000, 10000, 9000, 1000),
        (None, 0, 0, 0, 0),
        (None, 500, 500, 500, 0),
        (7, 0, 10, 7, 3),
        (10, 0, 10, 10, 0),
        (0, 0, 10, 0, 10),
        (3, 5, 10, 5, 5),
        (11, 5, 10, 5, 5),
    ],
)
def test_where_a_group_starts_and_its_lag(committed, begin, end, start, waiting):
    assert start_offset(committed, begin, end) == start
    assert lag(committed, begin, end) == waiting


@given(st.none() | st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_lag_is_never_negative_nor_more_than_the_log(committed, begin, length):
    assert 0 <= lag(committed, begin, begin + length) <= length


def test_a_rate_is_over_the_last_minute_only():
    now = 1_000_000.0  # the first instant of a bucket
    counts = {bucket(now - seconds): 10 for seconds in (0, 5, 30, 55, 60, 500)}
    assert rate(counts, now, since=0.0) == pytest.approx(40 / 55)
    assert rate(counts, now + 4, since=0.0) == pytest.approx(40 / 59)


def test_a_rate_of_a_young_topic_is_over_its_life():
    assert rate({bucket(1000.0): 30}, 1010.0, since=1000.0) == pytest.approx(3.0)
    assert rate({bucket(1000.0): 30}, 1004.0, since=1000.0) is None
    assert rate({}, 2000.0, since=0.0) == 0.0


def test_a_clock_that_went_back_gives_no_rate_from_the_future():
    assert rate({bucket(5000.0): 30}, 1000.0, since=0.0) == 0.0
    assert rate({bucket(5000.0): 30}, 1000.0, since=4000.0) is None


def test_last_of_each():
    assert last_of_each(["a", "b", "a", "c", "b"]) == [2, 3, 4]
    assert last_of_each([]) == []


@pytest.mark.parametrize("name", ["demo.prompts", "a", "A_b-9.x", "x" * 200])
def test_names_of_topics(name):
    assert is_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".new-x", "a/b", "a b", "a\n", "é", "x" * 201])
def test_what_is_no_name_of_a_topic(name):
    assert not is_name(name)
