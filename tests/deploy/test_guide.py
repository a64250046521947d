"""docs/deployment.md names only commands, services, variables and settings that exist."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from runtime.settings import SECRETS_DIR_VARIABLE, Settings
from tests.deploy import commands, compose
from tests.deploy.compose import ROOT

GUIDE = (ROOT / "docs" / "deployment.md").read_text()
KNOWN_PROGRAMS = {"curl", "deploy/make-secrets", "docker", "echo", "export", "headrace", "./headrace"}
OVERLAYS = sorted((ROOT / "deploy").glob("compose.*.yaml"))


class ComposeLoader(yaml.SafeLoader):
    """Knows compose's own tags, which say how files are merged."""


def _plain(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    return loader.construct_sequence(node) if isinstance(node, yaml.SequenceNode) else {}


ComposeLoader.add_multi_constructor("!", _plain)


def fenced(language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


LINES = [line for block in fenced("sh") for line in block.splitlines()]


def words_of(line: str) -> list[str]:
    """Without redirections and variables set in front."""
    words = shlex.split(re.sub(r"\s(>>|>|<)\s\S+", "", line))
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def compose_words(words: list[str]) -> tuple[set[str], str, list[str]]:
    """Files, subcommand and what follows it."""
    assert words[:2] == ["docker", "compose"]
    files, rest = set(), words[2:]
    while rest[0].startswith("-"):
        option, value, *rest = rest
        assert option in {"-f", "-p", "--profile"}, option
        if option == "-f":
            files.add(value)
    return files, rest[0], rest[1:]


def test_the_guide_has_commands() -> None:
    assert len(LINES) > 25


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_guide_exists(line: str) -> None:
    words = words_of(line)
    assert words[0] in KNOWN_PROGRAMS
    if words[0] in {"headrace", "./headrace"}:
        commands.parse(words)
    elif words[0] != "docker":
        assert words[0] != "deploy/make-secrets" or (ROOT / words[0]).is_file()
    else:
        check_compose(words)


def check_compose(words: list[str]) -> None:
    files, subcommand, rest = compose_words(words)
    for file in files:
        assert (ROOT / file).is_file(), file
    assert subcommand in {"build", "exec", "run", "stop", "up"}
    names = [word for word in rest if not word.startswith("-")]
    if subcommand in {"exec", "run"}:
        assert names[0] in compose.services()
        after = rest[rest.index(names[0]) + 1 :]
        if after[:1] == ["headrace"]:
            commands.parse(after)
    else:
        assert set(names) <= set(compose.services())


def test_the_guide_names_only_variables_that_mean_something() -> None:
    deployed = compose.FILE.read_text() + "".join(file.read_text() for file in OVERLAYS)
    known = {f"HEADRACE_{name.upper()}" for name in Settings.model_fields} | {SECRETS_DIR_VARIABLE}
    for name in set(re.findall(r"\b(?:HEADRACE|DEPLOY)_[A-Z_]*[A-Z]\b", GUIDE)):
        assert name in known or f"${{{name}" in deployed, name


def test_the_guide_names_every_variable_of_the_compose_files() -> None:
    deployed = compose.FILE.read_text() + "".join(file.read_text() for file in OVERLAYS)
    for name in set(re.findall(r"\$\{([A-Z_]+)", deployed)):
        assert f"`{name}`" in GUIDE or f"{name}=" in GUIDE, name


def test_the_guide_tells_the_defaults_that_the_code_has() -> None:
    for name, shown in re.findall(r"`HEADRACE_([A-Z_]+)` \(([0-9.,]+)[ )]", GUIDE):
        default = Settings.model_fields[name.lower()].default
        number = float(shown.replace(",", ""))
        expected = {
            **{"RETENTION_S": 30 * 86400, "STREAM_TTL_S": 3600, "BATCH_FILE_TTL_S": 30 * 86400},
            **{"KV_CACHE_BYTES": 1 << 30, "MAX_FILE_BYTES": 512 << 20, "MAX_BATCH_FILE_BYTES": 200 << 20},
        }
        if name == "DRAIN_S":
            assert compose.services()["worker"]["environment"]["HEADRACE_DRAIN_S"] == shown
        else:
            assert default == expected.get(name, number), name


def test_the_guide_names_every_secret_and_who_reads_it() -> None:
    for name in compose.deployed()["secrets"]:
        assert f"`{name}`" in GUIDE


def test_paths_of_the_guide_exist() -> None:
    for path in set(re.findall(r"`((?:deploy|runtime|tests|docs)/[\w./-]+)`", GUIDE)):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("text", [*fenced("yaml")])
def test_an_override_of_the_guide_is_a_valid_compose_file(text: str) -> None:
    document = yaml.safe_load(text)
    compose.validate(document)
    assert set(document["services"]) <= set(compose.services())


@pytest.mark.parametrize("file", OVERLAYS, ids=lambda file: file.name)
def test_an_added_file_is_valid_and_changes_services_that_exist(file: Any) -> None:
    document = yaml.load(file.read_text(), ComposeLoader)
    compose.validate(document)
    assert set(document["services"]) <= set(compose.services())
    networks = set(document.get("networks", {})) | set(compose.deployed()["networks"])
    for service in document["services"].values():
        assert set(service["networks"]) <= networks


def test_stores_are_published_on_a_named_address_only() -> None:
    document = yaml.safe_load((ROOT / "deploy" / "compose.stores.yaml").read_text())
    for service in document["services"].values():
        for port in service["ports"]:
            with pytest.raises(compose.MissingVariableError):
                compose.fill_in(port, compose.GIVEN)
            assert compose.fill_in(port, {"DEPLOY_STORES_ADDRESS": "10.0.0.1"}).startswith("10.0.0.1:")
