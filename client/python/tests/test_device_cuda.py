"""`device: cuda` end to end over a real kvarved: the package opens the emulator's libcuda.so.1 as it opens a driver.

Pages are a tensor's in host memory, which that driver takes for its own."""

import ctypes
import gc
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from test_engine_side import BLOCK, FIELDS, PAGES, WAIT_SECONDS_MAX, Daemon, Rig

import kvarve

BUILD = Path(os.environ.get("KVARVE_BUILD", Path(__file__).parents[3] / "build" / "release"))
FAKE = BUILD / "tests" / "fake_cuda" / "libcuda.so.1"
ANY = 2**64 - 1
SOURCE, TARGET = [7, 3, 30, 1, 2, 21, 22, 5], [10, 11, 39, 13, 0, 14, 15, 16]


@pytest.fixture(scope="module")
def library():
    library = ctypes.CDLL(str(FAKE))  # from now on "libcuda.so.1" is this one
    library.kvarve_fake_open.argtypes = [ctypes.c_int, ctypes.c_ulonglong]
    library.kvarve_fake_adopt.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.kvarve_fake_calls.restype = ctypes.c_ulonglong
    library.kvarve_fake_close.restype = ctypes.c_char_p
    return library


def cuda_rig(library, daemon, name, **options):
    rig = Rig(daemon, name, device="cuda", load_staging_bytes=8 << 20, **options)
    library.kvarve_fake_adopt(rig.memory.data_ptr(), rig.memory.untyped_storage().nbytes())
    return rig


def round_trip(rig):
    """What the counters said."""
    before, keys = rig.memory.clone(), kvarve.chain_keys(list(range(4 * BLOCK)), BLOCK)
    assert rig.save(keys, SOURCE) == 4
    load_back(rig, before)
    return rig.engine.take_counts()


def load_back(rig, before):
    lease = rig.load(kvarve.chain_keys(list(range(4 * BLOCK)), BLOCK), TARGET)
    assert rig.result() == ("r", "")
    rig.scheduler.release(lease)
    assert torch.equal(rig.rows(TARGET), rig.rows(SOURCE))
    others = [page for page in range(PAGES) if page not in TARGET]
    assert torch.equal(rig.rows(others), torch.cat([before[:, page] for page in others], dim=2))


def end(library, rig):
    """The driver has nothing to say, and has everything back."""
    rig.engine.close(1.0)
    del rig.engine, rig.space, rig.scheduler
    gc.collect()
    assert library.kvarve_fake_close() == b""


@pytest.mark.parametrize("path,read_only,trust", [("arena", 1, "read_only"), ("staging", 0, "read_only"),
                                                  ("writable", 0, "writable")])
def test_each_host_path(library, request, path, read_only, trust):
    library.kvarve_fake_open(read_only, ANY)
    with Daemon(capacity="256MiB", arena__trust=trust) as daemon:
        rig = cuda_rig(library, daemon, request.node.name)
        registered = library.kvarve_fake_calls(b"cuMemHostRegister")
        assert registered >= 3, "the tables, and the staging of both connections"
        library.kvarve_fake_begin_capture()  # the engine warms up
        assert library.kvarve_fake_end_capture() == 1
        before, counts = rig.memory.clone(), round_trip(rig)
        assert sum(n for name, n in counts.items() if name.startswith("device_moves|")) >= 2
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        # The arena grew with the save: until the new chunk is registered, blocks come through staging.
        while f"host_path_blocks|{path}" not in counts and time.monotonic() < deadline:
            assert counts["host_path_blocks|staging"] == 4
            load_back(rig, before)
            counts = rig.engine.take_counts()
        assert rig.engine.host_path == path
        assert counts[f"host_path_blocks|{path}"] == counts["load_blocks"] == 4
        assert sum(n for name, n in counts.items() if name.startswith("host_path_blocks")) == 4
        assert "registration_failures" not in counts
        end(library, rig)


def test_nothing_is_registered_while_the_engine_warms_up(library):
    """A daemon that comes too late: what it shows waits for the end of the capture."""
    library.kvarve_fake_open(1, ANY)
    daemon = Daemon(capacity="256MiB")
    memory = torch.zeros(3, PAGES, 2, 32, 32, dtype=torch.int16)
    layers = [(layer.data_ptr(), memory.untyped_storage().data_ptr(), memory.untyped_storage().nbytes(), layer.shape,
               [2 * stride for stride in layer.stride()]) for layer in memory]
    engine = kvarve.Engine(endpoint=daemon.endpoint, engine_id="late", ranks=(0, 0, 0), name="late", device="cuda",
                           staging_bytes=8 << 20, load_staging_bytes=8 << 20, timeout=2.0, put_timeout=5.0,
                           layers=layers, pages=PAGES, descriptor=FIELDS)
    registered = library.kvarve_fake_calls(b"cuMemHostRegister")
    library.kvarve_fake_begin_capture()
    with daemon:
        engine.wait_ready(20)
        assert library.kvarve_fake_calls(b"cuMemHostRegister") == registered
        assert library.kvarve_fake_end_capture() == 1
        engine.results(0.0)  # the first step
        engine.close(1.0)
        del engine
        gc.collect()
        assert library.kvarve_fake_close() == b""


def test_what_the_driver_does_not_register_comes_through_staging(library, request):
    library.kvarve_fake_open(1, 64 << 20)
    with Daemon(capacity="256MiB") as daemon:
        rig = cuda_rig(library, daemon, request.node.name)
        counts = round_trip(rig)
        assert rig.engine.host_path == "arena"
        assert counts["host_path_blocks|staging"] == 4 and "host_path_blocks|arena" not in counts
        assert counts["registration_failures"] >= 1
        end(library, rig)


def test_doctor_lists_the_gpu():
    answer = subprocess.run([str(BUILD / "bin" / "kvarve"), "--endpoint", "unix:///nonexistent/socket", "doctor"],
                            capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(FAKE.parent)}, check=False)
    assert "fake GPU, compute 9.0, driver of CUDA 13.0: blocks come in place" in answer.stdout
