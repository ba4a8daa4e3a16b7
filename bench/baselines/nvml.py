# The same by hand in Python, with ctypes on the driver's library and nothing but the standard library.
# nvml.py look NVML ROUNDS -> the time of each look at all GPUs in nanoseconds, a line each
# nvml.py claim NVML DIRECTORY ROUNDS -> the time of each claim and release (no placeholder)
# nvml.py steps NVML DIRECTORY CUDA -> when each step of the first claim was reached, by the clock that all share; with a context and 1 MiB
import time

REACHED = [("main", time.monotonic_ns())]

# Modules are imported after the start.
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys

RECORD = 4096


class Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Temperature(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("sensor", ctypes.c_uint), ("celsius", ctypes.c_int)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


class Driver:
    def __init__(self, path):
        self.nvml = ctypes.CDLL(path)
        count = ctypes.c_uint()
        if self.nvml.nvmlInit_v2() != 0 or self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            sys.exit("no driver")
        self.devices = []
        self.uuids = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            uuid = ctypes.create_string_buffer(96)
            self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
            self.nvml.nvmlDeviceGetUUID(device, uuid, 96)
            self.devices.append(device)
            self.uuids.append(uuid.value.decode())

    def number(self, function, device):
        value = ctypes.c_uint()
        return value.value if function(device, ctypes.byref(value)) == 0 else None

    def processes(self, function, device):
        count = ctypes.c_uint(64)
        found = (Process * 64)()
        if function(device, ctypes.byref(count), found) != 0:
            return None
        return [(found[i].pid, found[i].used) for i in range(count.value)]

    def look(self, device):
        nvml = self.nvml
        memory = Memory(version=0x02000028)
        nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory))
        power = self.number(nvml.nvmlDeviceGetPowerUsage, device)
        limit = self.number(nvml.nvmlDeviceGetEnforcedPowerLimit, device)
        use = Utilization()
        nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use))
        heat = Temperature(version=0x0100000C)
        nvml.nvmlDeviceGetTemperatureV(device, ctypes.byref(heat))
        mode = self.number(nvml.nvmlDeviceGetComputeMode, device)
        display = self.number(nvml.nvmlDeviceGetDisplayActive, device)
        mig, pending = ctypes.c_uint(), ctypes.c_uint()
        nvml.nvmlDeviceGetMigMode(device, ctypes.byref(mig), ctypes.byref(pending))
        return {
            "total": memory.total,
            "used": memory.used,
            "free": memory.free,
            "power": power,
            "limit": limit,
            "utilization": use.gpu,
            "temperature": heat.celsius,
            "mode": mode,
            "display": display,
            "mig": mig.value,
            "compute": self.processes(nvml.nvmlDeviceGetComputeRunningProcesses_v3, device),
            "graphics": self.processes(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, device),
        }


def flock_of(kind, start, length):
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def lock(file, start, length):
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, flock_of(fcntl.F_WRLCK, start, length))
        return True
    except OSError:
        return False


def is_locked(path):
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_OFD_GETLK, flock_of(fcntl.F_WRLCK, 0, 1)))[0] != fcntl.F_UNLCK
    finally:
        os.close(file)


def open_shared(path):
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT, 0o666)


def record(file, **more):
    text = json.dumps({"pid": os.getpid(), "uid": os.geteuid(), "host": socket.gethostname(), "since": time.time(), **more})
    os.pwrite(file, text.ljust(RECORD - 1).encode() + b"\n", 0)


def reached(step):
    if REACHED is not None:
        REACHED.append((step, time.monotonic_ns()))


def take_placeholder(path):
    cuda = ctypes.CDLL(path)
    count, device, context, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_ulonglong()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or cuda.cuDeviceGet(ctypes.byref(device), 0) != 0:
        sys.exit("no CUDA")
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
        sys.exit("no context")
    cuda.cuCtxPushCurrent_v2(context)
    if cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) != 0:
        sys.exit("no memory")
    cuda.cuCtxPopCurrent_v2(ctypes.byref(context))


def claim(driver, directory, cuda=None):
    def path(uuid):
        return f"{directory}/{uuid}.lease"

    if not os.path.isdir(directory):
        os.mkdir(directory)
    seen = [driver.look(device) for device in driver.devices]
    reached("driver")
    deciding = open_shared(f"{directory}/acquisition.lock")
    lock(deciding, 0, 1)
    record(deciding)
    reached("acquisition-lock")
    free = [i for i, uuid in enumerate(driver.uuids) if not seen[i]["compute"] and not is_locked(path(uuid))]
    chosen = free[0]
    reached("chosen")
    lease = open_shared(path(driver.uuids[chosen]))
    generation = time.monotonic_ns() & (2**46 - 1)
    if not lock(lease, 0, 1) or os.stat(path(driver.uuids[chosen])).st_ino != os.fstat(lease).st_ino:
        sys.exit("another process took it first")
    lock(lease, 1 + generation, 1)
    record(lease, generation=generation, gpus=[driver.uuids[chosen]])
    reached("leased")
    if driver.look(driver.devices[chosen])["compute"]:
        sys.exit("somebody came in between")
    reached("looked-again")
    os.close(deciding)
    os.environ["CUDA_VISIBLE_DEVICES"] = driver.uuids[chosen]
    reached("environment")
    if cuda is not None:
        take_placeholder(cuda)
    reached("placeholder")
    driver.look(driver.devices[chosen])
    reached("claimed")
    del os.environ["CUDA_VISIBLE_DEVICES"]
    record(lease, generation=generation, ended=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    os.close(lease)


def main(what, library, *rest):
    global REACHED
    if what != "steps":
        REACHED = None
    os.umask(0)
    reached("start")
    driver = Driver(library)
    if what == "steps":
        claim(driver, *rest)
        print("\n".join(f"{step} {at}" for step, at in REACHED))
        return

    def act():
        if what == "look":
            return [driver.look(device) for device in driver.devices]
        return claim(driver, rest[0])

    times = []
    for _ in range(int(rest[-1])):
        start = time.perf_counter_ns()
        act()
        times.append(time.perf_counter_ns() - start)
    print("\n".join(map(str, times)))


main(*sys.argv[1:])
