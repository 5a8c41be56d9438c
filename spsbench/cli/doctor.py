"""`sps doctor`: features of this machine and installation, and warnings about them."""

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spsbench.benchmark.models import measure_speeds
from spsbench.cli.options import TableFormat
from spsbench.cli.terminal import align_columns, one_line, to_json_line, write
from spsbench.hardware.contention import BUSY, at_work
from spsbench.hardware.environment import PACKAGES, shadows, untried_versions, variable_errors
from spsbench.hardware.files import folder_size, in_words
from spsbench.messages import announce_if_slow
from spsbench.models.gguf.unpack import blocks_in_words
from spsbench.registry import DOCTOR, attribute_at, entries, is_installed
from spsbench.settings.cell_from_options import DEFAULT_ENGINE, USUAL_ENGINE
from spsbench.settings.models import BUNDLED, FETCHED, fetched_folder
from spsbench.store.provenance import hardware, versions

LOOKED = 0.3  # seconds


def doctor(format: TableFormat = "table") -> None:
    """Show what this machine and this installation support, and warnings."""
    with announce_if_slow("examining this machine"):
        values, lines = examine_machine(), []
        for key, path in DOCTOR.items():
            if is_installed(path):
                values[key], rows_of_extension = attribute_at(path)()
                lines += rows_of_extension
    if format == "json":
        write(to_json_line(values))
        return
    lines = [*value_rows(values), *lines, *(("warning", warning) for warning in values["warnings"])]
    write("".join(f"{line}\n" for line in align_columns([(n, one_line(v)) for n, v in lines])))


def value_rows(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line of the table for values of `examine_machine`."""
    yield "python", f"{values['python']} on {values['platform']}"
    for package in PACKAGES:
        key = package.replace("-", "_")
        if key in values:
            yield package, values[key] or "not installed"
    if "cpu" in values:
        yield "processor", f"{values['cpu']}, {values['cores']} cores, {values['threads']} threads"
    if "speeds" in values:
        read, operations = values["speeds"]["read"], values["speeds"]["operations"]
        rates = ", ".join(f"{rate / 1e9:,.0f} in {dtype}" for dtype, rate in operations.items())
        yield "speeds", f"memory is read at {read / 1e9:.1f} GB/s, GFLOP/s of products: {rates}"
    yield "other load", f"{values['at_work']} threads of other programs, mean over {LOOKED} s"
    for device in values.get("devices", ()):
        sizes = f"{in_words(device['bytes'])}, {in_words(device['free'])} free"
        yield "device", f"{device['name']}: {device['model']}, {sizes}"
    for name, words in values["engines"]:
        yield name, words
    disk, hub = values["disk"], values["hub"]
    yield "model cache", f"{disk['folder']}, {in_words(disk['free'])} free"
    answer = "answers" if hub["reachable"] else "cannot be reached"
    token = "a token is set" if hub["token_set"] else "no token"
    yield "hub", f"{hub['endpoint']} {answer}, {token}"
    for name, size in values["bundled"].items():
        yield "bundled", f"{name}, {in_words(size)}" if size else f"{name} is not installed"
    for name, size in values["fetched"].items():
        absent = f"not downloaded: sps models fetch {name}"
        yield "fetched", f"{name}, {in_words(size)}" if size else absent
    for name, words in values["blocks"].items():
        if words:
            yield "blocks", f"{name}: {words}; --weights blocks runs them as they are"
    for name, size in values["cached"].items():
        yield "cached", f"{name}, {in_words(size)}"


def describe_environment() -> dict[str, Any]:
    """Return platform, processor, threads, devices, and versions (None: no such package), for JSON.

    Imports torch, to ask for threads and devices.
    """
    import torch

    from spsbench.models.devices import devices

    machine, packages = hardware(), versions()
    return {
        "python": packages["python"],
        "platform": machine["platform"],
        "cpu": machine["cpu"],
        "cores": machine["usable_cores"],
        "threads": torch.get_num_threads(),
        **{name.replace("-", "_"): packages[name] for name in PACKAGES},
        "devices": [
            {"name": d.name, "model": d.model, "bytes": d.total, "free": d.free} for d in devices()
        ],
    }


def engine_rows() -> Iterator[list[str]]:
    """Yield [name, words] of each engine's `report`, or its error; last that `fast` is missing."""
    for entry in entries("engines"):
        try:
            report = getattr(entry.load(), "report", None)
            reported = [[str(name), str(words)] for name, words in report()] if report else []
        except Exception as error:  # a broken torch is reported elsewhere
            reported = [["engine", f"{entry.name} cannot be examined: {type(error).__name__}"]]
        yield from reported
    if DEFAULT_ENGINE != USUAL_ENGINE:
        yield ["engine", f"{USUAL_ENGINE} is not installed: {DEFAULT_ENGINE} is the default"]


def examine_machine() -> dict[str, Any]:
    """Return the values that `sps doctor` shows without extensions, by name, ready for JSON.

    Load (`at_work`) and `speeds` are measured, for up to 3 s more if the hub does not answer. A
    torch that fails is one of `warnings`. Tokens are omitted; only their presence is reported.
    """
    from spsbench.models import hub

    hub.quiet_libraries()
    others = at_work(LOOKED)
    warnings = [*map(str, variable_errors()), *shadows(Path.cwd()), *untried_versions()]
    try:
        basics = describe_environment()
        speeds = measure_speeds(None, ("float32", "bfloat16", "int8"))
        basics["speeds"] = {"read": speeds.bandwidth, "operations": speeds.products}
    except Exception as error:  # doctor must work on a broken installation
        warnings.append(f"torch cannot be used: {type(error).__name__}: {error}")
        basics = {"python": platform.python_version(), "platform": platform.platform()}
    if others >= BUSY:
        warnings.append(
            f"{others:.1f} threads of other programs run or wait for one of {os.cpu_count()} "
            "processors: timings would be disturbed. Wait until they end"
        )
    cache = hub.cache_folder()
    home = next(path for path in (cache, *cache.parents) if path.exists())
    if not home.is_dir() or not os.access(home, os.W_OK):
        warnings.append(f"the model cache cannot be written ({cache}): set HF_HOME to your own")
    return {
        **basics,
        "at_work": round(others, 2),
        "disk": {"folder": str(cache), "free": shutil.disk_usage(home).free},
        "hub": {
            "endpoint": hub.hub_address(),
            "reachable": hub.reachable(),
            "token_set": bool(os.environ.get("HF_TOKEN")),
        },
        "engines": list(engine_rows()),
        "bundled": {name: folder_size(folder) for name, folder in BUNDLED.items()},
        "fetched": {name: folder_size(fetched_folder(name)) for name in FETCHED},
        "blocks": {name: blocks_in_words(fetched_folder(name)) for name in FETCHED},
        "cached": cached_models(cache),
        "warnings": warnings,
    }


def cached_models(cache: Path) -> dict[str, int]:
    """Return the bytes of each model in the hub's cache, by name; empty if it cannot be read."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(cache).repos
    except (CacheNotFound, OSError, ValueError):
        return {}
    models = ((repo.repo_id, repo.size_on_disk) for repo in repos if repo.repo_type == "model")
    return dict(sorted(models))
