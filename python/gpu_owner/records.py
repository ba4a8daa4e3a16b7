"""Records of `gpu-owner … --json`: docs/json.md has the same as tables. Written by `npm run generate`, from lib/shapes."""

from typing import List, Literal, Optional, TypedDict


class GPUMemory(TypedDict):
    """in bytes; usedBytes leaves out what the driver reserves for itself"""

    totalBytes: Optional[int]
    usedBytes: Optional[int]
    freeBytes: Optional[int]
    reservedBytes: Optional[int]


class GPU(TypedDict):
    """A GPU or MIG instance, as in `gpu-owner status --json`. null is unknown."""

    index: int
    instance: Optional[int]
    uuid: str
    parent: Optional[str]
    name: str
    pciBusId: Optional[str]
    memory: "GPUMemory"
    powerWatts: Optional[float]
    powerLimitWatts: Optional[float]
    utilizationPercent: Optional[float]
    temperatureCelsius: Optional[float]
    memoryRepairPending: Optional[bool]
    computeMode: Optional[Literal["default", "exclusive-thread", "prohibited", "exclusive-process"]]
    displayActive: Optional[bool]
    migEnabled: Optional[bool]
    migInstances: List["MIGInstance"]
    processes: Optional[List["Process"]]
    state: Literal["free", "leased", "shared", "busy", "unavailable"]
    reason: Optional[str]
    lease: Optional["Lease"]
    shares: List["Share"]
    idle: Optional["Idle"]
    booking: Optional["Booking"]
    suspect: Optional["Suspect"]


class _Process(TypedDict):
    pid: int
    type: Literal["compute", "graphics"]
    usedBytes: Optional[int]


class Process(_Process, total=False):
    """A process that the driver lists."""

    smPercent: float


class MIGInstanceMemory(TypedDict):
    totalBytes: Optional[int]
    usedBytes: Optional[int]
    freeBytes: Optional[int]


class MIGInstance(TypedDict):
    """An instance, which is a GPU of its own as well."""

    uuid: str
    name: str
    gpuInstanceId: int
    computeInstanceId: int
    memory: "MIGInstanceMemory"


class _Lease(TypedDict):
    user: str
    uid: Optional[int]
    pid: Optional[int]
    host: Optional[str]
    command: Optional[str]
    since: Optional[str]
    convention: str


class Lease(_Lease, total=False):
    """The holder of a GPU, as far as their record says: for people, not for decisions."""

    until: str
    idleEnds: str
    preemptible: bool
    suspended: bool
    job: int
    name: str
    note: str
    survivors: int
    stranger: bool
    nested: "Lease"


class _Share(TypedDict):
    user: str
    uid: Optional[int]
    pid: Optional[int]
    host: Optional[str]
    command: Optional[str]
    since: Optional[str]
    convention: str
    bytes: int
    usedBytes: Optional[int]


class Share(_Share, total=False):
    """A part of a GPU's memory, and its holder."""

    until: str
    idleEnds: str
    preemptible: bool
    suspended: bool
    job: int
    name: str
    note: str
    survivors: int
    stranger: bool


class Idle(TypedDict):
    """A leased GPU that does nothing."""

    since: Optional[str]
    looks: int


# The present booking of a GPU, else the next one.
Booking = TypedDict(
    "Booking",
    {
        "id": int,
        "user": str,
        "group": Optional[str],
        "from": str,
        "until": str,
        "note": Optional[str],
    },
)


class Suspect(TypedDict):
    """CUDA failed on the GPU within the last hour; claims take it last."""

    code: int
    name: Optional[str]
    since: str
    seenBy: List[str]


class _RequestWaitingFor(TypedDict):
    index: int
    uuid: str
    reason: str


class RequestWaitingFor(_RequestWaitingFor, total=False):
    instance: Optional[int]


# A request in the wait queue, as in `gpu-owner queue --json`.
Request = TypedDict(
    "Request",
    {
        "position": int,
        "count": int,
        "memory": Optional[str],
        "class": Literal["urgent", "normal", "preemptible"],
        "user": str,
        "uid": Optional[int],
        "pid": Optional[int],
        "host": Optional[str],
        "command": Optional[str],
        "since": Optional[str],
        "job": Optional[int],
        "name": Optional[str],
        "note": Optional[str],
        "stopped": bool,
        "latestStart": Optional[str],
        "waitUntil": Optional[str],
        "why": str,
        "details": List[str],
        "waitingFor": List["RequestWaitingFor"],
    },
)


class _JobGpus(TypedDict):
    index: int
    uuid: str


class JobGpus(_JobGpus, total=False):
    instance: Optional[int]


class JobArray(TypedDict):
    """the array that it is a part of, and its number there"""

    id: int
    index: int


class JobProgress(TypedDict):
    """tasks of a sweep, or parts of an array"""

    done: int
    total: int


class _Job(TypedDict):
    id: Optional[int]
    name: Optional[str]
    state: Literal["waiting", "moving", "running", "completed", "failed", "cancelled", "lost"]
    exitCode: Optional[int]
    reason: Optional[str]
    position: Optional[int]
    count: int
    gpus: List["JobGpus"]
    command: str
    note: Optional[str]
    user: str
    pid: Optional[int]
    submitted: Optional[str]
    started: Optional[str]
    ended: Optional[str]
    until: Optional[str]
    idle: Optional["Idle"]
    after: List[int]
    output: Optional[str]
    preempted: int
    retried: int
    ran: int
    array: Optional["JobArray"]
    parts: Optional[str]
    progress: Optional["JobProgress"]


class Job(_Job, total=False):
    """A job of the user who asks, as in `gpu-owner jobs --json`."""

    directory: str
    limit: Optional[float]
    moved: bool
    host: str


class Intruder(TypedDict):
    """A process that computes on a GPU which its user hasn't leased."""

    uuid: str
    pid: int
    name: Optional[str]
    user: Optional[str]
    uid: Optional[int]
    usedBytes: Optional[int]


class Snapshot(TypedDict):
    """A machine at one moment."""

    time: str
    gpus: List["GPU"]
    queue: List["Request"]
    waiting: int
    intruders: List["Intruder"]


class BookingEntryDevices(TypedDict):
    index: Optional[int]
    uuid: str


# A booking, as in `gpu-owner bookings --json`.
BookingEntry = TypedDict(
    "BookingEntry",
    {
        "id": int,
        "user": str,
        "group": Optional[str],
        "gpus": int,
        "devices": List["BookingEntryDevices"],
        "from": str,
        "until": str,
        "note": Optional[str],
    },
)


class ReportLongest(TypedDict):
    user: str
    job: str
    gpus: List[int]
    gpuHours: float
    since: str
    exit: Optional[int]


class Report(TypedDict):
    """A report, as in `gpu-owner report --json`."""

    since: str
    until: str
    by: Literal["user", "group", "gpu", "day", "job"]
    gpus: Optional[int]
    rows: List["Sum"]
    longest: List["ReportLongest"]
    skipped: int


class SumWaitedSeconds(TypedDict):
    """how long the leases had been waited for"""

    p50: float
    p90: float


class Sum(TypedDict):
    """The leases with one key. Times of GPUs count by the part of the card."""

    key: str
    leases: int
    gpuHours: float
    share: Optional[float]
    waitedSeconds: "SumWaitedSeconds"
    idleShare: Optional[float]
    energyKWh: Optional[float]


class Topology(TypedDict):
    """The connections of all GPUs, as in `gpu-owner status --topology --json`."""

    gpus: List["Place"]
    links: List["Link"]


class PlaceNvlinks(TypedDict):
    active: int
    inactive: int


class Place(TypedDict):
    """The place of a GPU in the machine."""

    index: int
    uuid: str
    cpus: Optional[str]
    numaNode: Optional[int]
    nvlinks: Optional["PlaceNvlinks"]


class Link(TypedDict):
    """The connection of two GPUs."""

    a: int
    b: int
    kind: Optional[Literal["nvlink", "nvswitch", "pcie-switch", "pcie-switches", "host-bridge", "numa", "system"]]
    links: Optional[int]


class GPUAttributes:
    """The members of `GPU`, as Python writes them."""

    index: int
    instance: Optional[int]
    uuid: str
    parent: Optional[str]
    name: str
    pci_bus_id: Optional[str]
    memory: "GPUMemory"
    power_watts: Optional[float]
    power_limit_watts: Optional[float]
    utilization_percent: Optional[float]
    temperature_celsius: Optional[float]
    memory_repair_pending: Optional[bool]
    compute_mode: Optional[Literal["default", "exclusive-thread", "prohibited", "exclusive-process"]]
    display_active: Optional[bool]
    mig_enabled: Optional[bool]
    mig_instances: List["MIGInstance"]
    processes: Optional[List["Process"]]
    state: Literal["free", "leased", "shared", "busy", "unavailable"]
    reason: Optional[str]
    lease: Optional["Lease"]
    shares: List["Share"]
    idle: Optional["Idle"]
    booking: Optional["Booking"]
    suspect: Optional["Suspect"]
