"""Shared state and checkpoints from Python."""

import os

import numpy as np
import outlast
import pytest

MIB = 1 << 20


def tensors(value, dtype=np.float32):
    return {"w": np.full(MIB, value, dtype), "b": np.full((2, 3), value, np.float64)}


def test_a_newcomer_and_a_diverged_member_are_healed_in_place(together):
    # Two members hold the right contents: between one and one the older would decide, and threads connect in any order.
    def program(number, comm):
        ours = tensors(0 if number == 2 else 5)
        if number == 1:
            ours["w"][17] = 6
        state = outlast.SharedState(ours, revision=None if number == 2 else 3, extra=b"step 3")
        report = comm.sync_state(state)
        assert all(np.array_equal(ours[key], value) for key, value in tensors(5).items())
        assert (state.revision, state.extra, state.torn) == (3, b"step 3", False)
        healing = [event for event in comm.events(timeout=0) if isinstance(event, outlast.Healing)]
        return comm.peer_id, report, healing

    peers, reports, healing = zip(*together(4, program), strict=True)
    assert healing[0] == healing[3] == []
    for mine, leaves in ((healing[1], 1), (healing[2], 5)):
        assert (mine[0], mine[-1]) == (outlast.Healing(0, leaves), outlast.Healing(leaves, leaves))
    healed = {peers[1]: ("w",), peers[2]: ("b", "w")}
    assert all(report.healed == healed and report.diverged == (peers[1],) for report in reports)
    assert [report.differed for report in reports] == [(), ("w",), ("b", "w"), ()]
    assert [report.leaves for report in reports] == [0, 1, 5, 0]
    listed = 5 * 16 + len(b"step 3")
    assert [report.received for report in reports] == [0, MIB + listed, 4 * MIB + 48 + listed, 0]
    assert sum(report.sent for report in reports) == sum(report.received for report in reports)


def test_a_deviating_key_is_named_to_its_owner_alone(together):
    def program(number, comm):
        ours = tensors(1)
        if number == 1:
            ours["extra_bias"] = np.zeros(3)
        state = outlast.SharedState(ours, revision=0)
        if number == 1:
            with pytest.raises(outlast.Mismatch, match="extra_bias"):
                comm.sync_state(state)
        else:
            assert comm.sync_state(state).revision == 0

    together(3, program)


def test_errors_say_what_to_do(together):
    def program(number, comm):
        state = outlast.SharedState(tensors(1))
        with pytest.raises(outlast.FatalError, match="no member has a state to give"):
            comm.sync_state(state)
        with pytest.raises(outlast.InvalidArgument, match="strategy"):
            comm.sync_state(state, strategy="most")
        state.revision = 0
        assert comm.sync_state(state, staged=True).received == 0

    together(2, program)


def test_what_is_no_state_is_refused():
    with pytest.raises(outlast.InvalidArgument, match="read-only"):
        outlast.SharedState({"w": b"bytes"})
    with pytest.raises(outlast.InvalidArgument, match="revision -1"):
        outlast.SharedState({}, revision=-1)
    with pytest.raises(outlast.InvalidArgument, match="nobody"):
        outlast.SharedState(tensors(1), may_differ=["nobody"])
    with pytest.raises(outlast.InvalidArgument, match="gaps"):
        outlast.SharedState({"w": np.zeros((4, 4))[:, ::2]})
    whole = np.zeros(10)
    with pytest.raises(outlast.InvalidArgument, match='"part" has some of the memory of "whole"'):
        outlast.SharedState({"whole": whole, "part": whole[3:]})


def test_tied_tensors_are_healed_only_where_they_are_tied_everywhere(together):
    def program(number, comm):
        ours = np.full(MIB, number, np.float32)
        for tied_by_all in (True, False):
            # The first member has two tensors, which are equal at first. The other has one of two names.
            other = np.full(MIB, 7 if tied_by_all else 8, np.float32)
            if number == 0:
                ours[:] = 7
            tensors = {"a": ours, "b": other if number == 0 else ours}
            state = outlast.SharedState(tensors, revision=4 if number == 0 else None)
            if tied_by_all or number == 0:
                assert comm.sync_state(state).revision == 4
                assert np.all(ours == 7)
                continue
            ours[:] = 1
            with pytest.raises(outlast.Mismatch, match='"a" and "b" are the same memory here'):
                comm.sync_state(state)
            assert not state.torn
            assert np.all(ours == 1)

    together(2, program)


def test_checkpoints_are_whole_and_the_newest_wins(tmp_path):
    ours = tensors(1)
    ours["turned"] = np.arange(6.0).reshape(2, 3).T
    state = outlast.SharedState(ours, revision=1, extra=b"one")
    state.save(tmp_path / "1")
    for value in ours.values():
        value += 1
    state.revision, state.extra = 2, b"two"
    state.save(tmp_path / "2")
    with pytest.raises(outlast.InvalidArgument, match="never overwritten"):
        state.save(tmp_path / "2")
    fresh = {key: np.zeros_like(value) for key, value in ours.items()}
    loaded = outlast.SharedState.load(tmp_path, into=fresh)
    assert (loaded.revision, loaded.extra, loaded.digest()) == (2, b"two", state.digest())
    assert all(np.array_equal(fresh[key], ours[key]) for key in ours)
    os.truncate(tmp_path / "2" / "tensors.safetensors", 1_000)
    loaded = outlast.SharedState.load(tmp_path, into=fresh)
    assert (loaded.revision, fresh["w"][0]) == (1, 1)
    with pytest.raises(outlast.FatalError, match="no checkpoint"):
        outlast.SharedState.load(tmp_path / "nowhere", into=fresh)


def test_a_checkpoint_is_what_other_tools_read(tmp_path):
    ours = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([7], np.int64)}
    outlast.SharedState(ours, revision=1).save(tmp_path / "1")
    data = (tmp_path / "1" / "tensors.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    import json

    header = json.loads(data[8 : 8 + length])
    begin, end = header["w"]["data_offsets"]
    body = data[8 + length :]
    assert (header["w"]["dtype"], header["w"]["shape"]) == ("F32", [2, 3])
    assert np.array_equal(np.frombuffer(body[begin:end], np.float32).reshape(2, 3), ours["w"])
    begin, end = header["n"]["data_offsets"]
    assert np.frombuffer(body[begin:end], np.int64)[0] == 7
