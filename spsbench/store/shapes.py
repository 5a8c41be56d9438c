"""The types of the JSON files of a run, and the check of what is read against them."""

from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

Count = Annotated[int, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1)]


class GitShape(Struct):
    """The state of the sources."""

    commit: str = ""


class MemoryShape(Struct):
    """The measured memory of a machine."""

    bandwidth: Annotated[float, Meta(ge=1)]
    weights: dict[str, Annotated[float, Meta(ge=0)]]


class ProvenanceShape(Struct):
    """Where numbers come from."""

    hardware: dict[str, Any] | None = None
    git: GitShape | None = None
    versions: dict[str, Any] | None = None
    memory: MemoryShape | None = None


class PartShape(Struct):
    """A part of an experiment."""

    title: str
    task: str = ""
    prompt_version: str = ""
    metrics: list[str] = []
    limit: Some | None = None
    sample_seed: Count | None = None
    samples: Count = 0
    repeats: Count = 0
    cells: list[str] = []


class ExperimentShape(Struct):
    """What was asked."""

    title: str = ""
    parts: list[PartShape] = []
    samples: dict[str, list[str]] = {}
    prompts: dict[str, str] = {}
    prompt_ids: dict[str, str] = {}
    threads: Some | None = None
    paper: bool = False


class SegmentShape(Struct):
    """One start."""

    shard: Annotated[str, Meta(pattern=r"^\d+-of-\d+\Z")]
    first: Count
    records: Count = 0
    traces: dict[str, Count] = {}
    started: str = ""
    clock: str = ""
    machine: str = ""
    provenance: ProvenanceShape | None = None
    differences: list[str] = []


class ManifestShape(Struct, forbid_unknown_fields=True):
    """The types of all fields that are read back; unknown fields further down are unchecked."""

    schema: int
    experiment: ExperimentShape
    cells: dict[str, dict[str, Any]]
    fingerprint: dict[str, Any]
    provenance: ProvenanceShape
    segments: list[SegmentShape]
    created: str
    tool: str


class ChoiceShape(Struct):
    """The fields of `EngineConfig`; engines of other packages may add more."""

    engine: str = ""
    reason: str = ""
    packed: dict[str, str] = {}
    threads: Some | None = None
    linears: Count = 0
    packed_linears: Count = 0
    beside: Count = 0
    reading: str = ""
    cache: Count = 0
    row_bits: bool = False


def check_shape(values: Any, shape: Any) -> None:
    """Check plain values of JSON against a type.

    Raises:
        ValueError: the place of the first that does not fit, and what is expected there.
    """
    try:
        convert(values, shape)
    except ValidationError as error:
        expected, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$").removeprefix(".")
        raise ValueError(f"{where}: {expected}" if where else expected) from error
