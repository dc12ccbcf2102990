"""Memory: what is lent without a copy, and what is refused with words."""

import array
import contextlib
import ctypes
import gc
import weakref

import numpy as np
import outlast
import pytest


@pytest.fixture
def alone(peer):
    """A world of one: a sum over it must give back what was there, in the same memory."""
    comm = peer(name="alone")
    comm.connect()
    return comm


class Torchlike:
    """Lends a numpy array by DLPack alone, as torch does, without being torch."""

    def __init__(self, array, device=(1, 0), requires_grad=False, is_sparse=False):
        self.array, self.device = array, device
        self.requires_grad, self.is_sparse = requires_grad, is_sparse
        self.dtype, self.shape = f"lent.{array.dtype}", array.shape

    def detach(self):
        return Torchlike(self.array)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize(
    "lend",
    [
        lambda: np.arange(12, dtype=np.float32),
        lambda: np.arange(12, dtype=np.float32).reshape(3, 4),
        lambda: np.arange(12, dtype=np.float32).reshape(3, 4).T,
        lambda: np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(1, 2, 0),
        lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        lambda: np.arange(12, dtype=np.float32)[3:7],
        lambda: np.array(3.0),
        lambda: np.empty((0, 7), np.float32),
        lambda: np.ones((1, 5, 1), np.float32)[:, ::1, :],
        lambda: bytearray(b"outlast"),
        lambda: memoryview(bytearray(b"outlast"))[2:5],
        lambda: memoryview(bytearray(range(8))).cast("H"),
        lambda: array.array("d", [1, 2, 3]),
        lambda: array.array("l", [1, 2, 3]),
        lambda: (ctypes.c_float * 3)(1, 2, 3),
        lambda: Torchlike(np.arange(6, dtype=np.float16).reshape(2, 3).T),
        lambda: Torchlike(np.arange(6, dtype=np.float32), requires_grad=True),
        lambda: Torchlike(np.array([True, False])),
    ],
)
def test_dense_memory_is_lent(alone, lend):
    x = lend()
    before = np.array(x.array if isinstance(x, Torchlike) else x)
    receipt = alone.all_reduce(x)
    assert receipt.world_size == 1
    after = np.array(x.array if isinstance(x, Torchlike) else x)
    np.testing.assert_array_equal(after, before)


def test_a_transposed_array_is_reduced_where_it_is(together):
    def work(number, comm):
        x = (np.arange(12, dtype=np.float32) * (number + 1)).reshape(3, 4).T
        comm.all_reduce(x)
        np.testing.assert_array_equal(x, np.arange(12).reshape(3, 4).T * 3)
        lent = Torchlike(np.full((3, 4), number + 1, np.float32).T)
        comm.all_reduce(lent)
        assert (lent.array == 3).all()
        with pytest.raises(outlast.InvalidArgument, match="axes in different orders"):
            comm.all_reduce(np.ones((2, 3), np.float32), out=np.ones((3, 2), np.float32).T, tag=1)

    together(2, work)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: np.asfortranarray(x), lambda x: x),
        (lambda x: x.reshape(4, 3).T, lambda x: x.ravel()),
        (lambda x: Torchlike(x.reshape(4, 3).T), lambda x: x),
    ],
)
def test_members_whose_memory_runs_differently_are_told(together, ours, theirs):
    """Elements meet in the order of memory, so a matrix and its transpose must not be added."""

    def work(number, comm):
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        # A matrix agrees with its flattened self, and axes of one element make no difference.
        flat = [lambda: x.copy(), lambda: x.copy().ravel(), lambda: x.reshape(3, 1, 4, 1).copy()]
        comm.all_reduce(flat[number]())
        if number == 2:
            with pytest.raises(outlast.Mismatch, match=r"in the order of axes \[1, 0\]"):
                comm.all_reduce(ours(x))
        result = theirs(x.copy())
        comm.all_reduce(result)
        np.testing.assert_array_equal(result, theirs(x) * 3)

    together(3, work)


def test_bfloat16_arrays(together):
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def work(number, comm):
        x = np.arange(100).astype(ml_dtypes.bfloat16)
        comm.all_reduce(x)
        np.testing.assert_array_equal(x, (2 * np.arange(100)).astype(ml_dtypes.bfloat16))
        made = outlast.empty((2, 3), "bf16")
        made[:] = 1
        comm.all_reduce(made, "avg")
        assert (made == 1).all()

    together(2, work)


def refusals():
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    return {
        "read-only": read_only,
        "bytes": b"outlast",
        "gaps between": np.ones(10, np.float32)[::2],
        "gaps between its": np.ones((4, 4), np.float32)[:, :2],
        "has gaps": np.broadcast_to(np.float32(1), (3,)).astype(np.float32)[::-1],
        "byte order": np.ones(3, ">f4"),
        "do not know": np.ones(3, np.complex64),
        "which collectives": np.array(["a", "b"]),
        "elements": np.zeros(2, [("a", "f4"), ("b", "f4")]),
        "lends no memory": [1.0, 2.0],
        "a str": "text",
        "x is None": None,
        "a float": 3.0,
        "another device": Torchlike(np.ones(3), device=(2, 0)),
        "sparse": Torchlike(np.ones(3), is_sparse=True),
    }


@pytest.mark.parametrize("words", refusals())
def test_what_cannot_be_lent_is_refused_with_words(alone, words):
    x = refusals()[words]
    with pytest.raises(outlast.InvalidArgument, match="read-only|" + words if words == "bytes" else words):
        alone.all_reduce(x)
    assert issubclass(outlast.InvalidArgument, ValueError)


def test_read_only_memory_may_be_read(alone):
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    out = np.zeros(3, np.float32)
    alone.all_reduce(x, out=out)
    assert (out == 1).all()
    with pytest.raises(outlast.InvalidArgument, match="out is read-only"):
        alone.all_reduce(out, out=x)


def test_types_and_memory_must_fit(alone):
    f32, f64 = np.ones(4, np.float32), np.ones(4, np.float64)
    with pytest.raises(outlast.InvalidArgument, match="one type, not f32 and f64"):
        alone.all_reduce(f32, out=f64)
    with pytest.raises(outlast.InvalidArgument, match=r"x\[1\] is f64 and out\[1\] is f32"):
        alone.all_reduce_many([f32, f64], out=[np.empty_like(f32), np.empty_like(f32)])
    with pytest.raises(outlast.InvalidArgument, match=r"x\[1\] has 4 elements and out\[1\] has 3"):
        alone.all_reduce_many([f32, f64], out=[np.empty_like(f32), np.empty(3)])
    with pytest.raises(outlast.InvalidArgument, match=r"x\[2\]: avg of bool"):
        alone.all_reduce_many([f32, f64, np.ones(2, bool)], "avg")
    with pytest.raises(outlast.InvalidArgument, match=r"x\[1\]: int8 of sum of i32"):
        alone.all_reduce_many([f32, np.ones(2, np.int32)], quantize="int8")
    with pytest.raises(outlast.InvalidArgument, match=r"x\[1\]: .* gaps"):
        alone.all_reduce_many([f32, f64[::2]])
    with pytest.raises(outlast.InvalidArgument, match="elements"):
        alone.all_reduce(f32, out=np.ones(5, np.float32))
    with pytest.raises(outlast.InvalidArgument, match="share memory"):
        alone.all_reduce(f64[:2], out=f64[1:3])
    with pytest.raises(outlast.InvalidArgument, match=r"same memory: x\[0\] and x\[1\] overlap"):
        alone.all_reduce_many([f32, f32])
    with pytest.raises(outlast.InvalidArgument, match="no tensors"):
        alone.all_reduce_many([])
    alone.all_reduce(f32, out=f32)


def test_lent_memory_cannot_be_resized_while_in_flight(together):
    def work(number, comm):
        if number == 0:
            x = bytearray(1000)
            handle = comm.all_reduce_async(x, tag=1)
            with pytest.raises(BufferError):
                x.extend(b"more")
            comm.barrier(tag=2)
            handle.wait()
            x.extend(b"more")
        else:
            comm.barrier(tag=2)
            comm.all_reduce(bytearray(1000), tag=1)

    together(2, work)


def test_loans_are_given_back_however_a_call_ends(alone, together):
    x, y = bytearray(64), bytearray(64)
    calls = [
        lambda: alone.all_reduce(x, "max"),
        lambda: alone.all_reduce(x, "max", out=y),
        lambda: alone.all_reduce_many([x, y], "max"),
        lambda: alone.all_gather(y, x),
        lambda: alone.broadcast(x, 0),
        lambda: alone.all_reduce_async(x, "max").wait(),
        # These are refused after the memory was borrowed.
        lambda: alone.all_reduce(x, "max", out=x[:3]),
        lambda: alone.all_reduce_many([x, y, x], "max"),
        lambda: alone.all_reduce(x, "max", min_world=5),
        lambda: alone.send(x, 0),
    ]
    for call in calls:
        with contextlib.suppress(outlast.OutlastError):
            call()
        x.append(1)
        y.append(1)
        del x[-1], y[-1]

    def work(number, comm):
        z = bytearray(64)
        if number == 0:
            with pytest.raises(outlast.OperationTimeout):
                comm.all_reduce(z, timeout=0.2)
            z.append(1)
        comm.barrier(tag=9)

    together(2, work, run_id="late")


def test_the_caller_may_drop_its_array_while_the_call_waits(together):
    """The loan keeps the memory, not the program's name for it."""

    def work(number, comm):
        if number == 1:
            comm.barrier(tag=9)
        slots = [np.full(100_000, number + 1, np.float32)]
        handle = comm.all_reduce_async(slots[0])
        alive = weakref.ref(slots[0])
        slots.clear()
        gc.collect()
        if number == 0:
            assert alive() is not None, "in flight"
            comm.barrier(tag=9)
        handle.wait(20)
        gc.collect()
        assert alive() is None, "over"

    together(2, work)


def test_empty_makes_arrays():
    for name in ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "bool", "float32"]:
        assert outlast.empty((2, 3), name).shape == (2, 3)
    assert outlast.empty(5).dtype == np.float32
    with pytest.raises(outlast.InvalidArgument, match="dtype"):
        outlast.empty(5, "f33")


@pytest.mark.torch
def test_torch_tensors(together):
    torch = pytest.importorskip("torch")

    def work(number, comm):
        for dtype in [
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.uint8,
            torch.bool,
        ]:
            x = torch.ones(7, dtype=dtype)
            comm.all_reduce(x)
            assert (x == (1 if dtype == torch.bool else 2)).all(), dtype
        weight = torch.nn.Parameter(torch.full((3, 4), number + 1.0))
        comm.all_reduce(weight, "avg")
        assert (weight == 1.5).all()
        view = torch.full((3, 4), number + 1.0).t()
        comm.all_reduce(view)
        assert (view == 3).all()
        channels = torch.full((2, 3, 4, 4), 1.0).to(memory_format=torch.channels_last)
        comm.all_reduce(channels)
        assert (channels == 2).all()
        with pytest.raises(outlast.InvalidArgument, match="gaps"):
            comm.all_reduce(torch.ones(10)[::2], tag=1)
        with pytest.raises(outlast.InvalidArgument, match="sparse"):
            comm.all_reduce(torch.eye(3).to_sparse(), tag=1)

    together(2, work)
