"""compose.yaml is valid, gives each process what it needs and no more, and lets nothing in that need not be."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from runtime.settings import SECRETS_DIR_VARIABLE, Settings
from tests.deploy import commands, compose
from tests.deploy.compose import headrace_services, is_one_shot, seconds, services

LONG_RUNNING = sorted(name for name, service in services().items() if not is_one_shot(service))
REQUIRED = sorted(name for name, field in Settings.model_fields.items() if field.is_required())
PREFIX = "HEADRACE_"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRETS_DIR_VARIABLE, raising=False)


def secret_names(service: dict[str, Any]) -> set[str]:
    return set(service.get("secrets", []))


def test_the_file_follows_the_compose_specification() -> None:
    compose.validate(compose.written())
    compose.validate(compose.deployed())


def test_the_schema_would_find_a_mistake() -> None:
    mistakes: list[dict[str, Any]] = [{"healtcheck": {}}, {"read_only": 3}, {"cap_drop": "ALL"}]
    for mistake in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            compose.validate({"services": {"api": {"image": "a", **mistake}}})


def test_every_variable_that_has_no_default_is_one_that_the_guide_tells_to_give() -> None:
    for name in compose.GIVEN:
        fewer = {other: value for other, value in compose.GIVEN.items() if other != name}
        with pytest.raises(compose.MissingVariableError, match=name):
            compose._filled_in(compose.written(), fewer)


def test_every_setting_that_is_named_exists() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name, service in headrace_services().items():
        assert set(service.get("environment", {})) <= known, name
    own = {secret for secret in compose.deployed()["secrets"] if secret.startswith(PREFIX.lower())}
    assert own <= {known_name.lower() for known_name in known}


@pytest.mark.parametrize("name", sorted(headrace_services()))
def test_settings_can_be_read_from_what_a_service_is_given(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    service = headrace_services()[name]
    folder = tmp_path_factory.mktemp("secrets")
    for secret in secret_names(service):
        (folder / secret).write_text(f"from {secret}\n")
    for variable, value in service.get("environment", {}).items():
        monkeypatch.setenv(variable, value)
    read = Settings(_secrets_dir=folder)
    for setting in REQUIRED:
        value = getattr(read, setting).get_secret_value()
        secret = f"{PREFIX.lower()}{setting}"
        # Given as a secret, or said to be withheld: never both, for the environment would hide the secret.
        assert value == f"from {secret}" if secret in secret_names(service) else "not" in value
        assert (secret in secret_names(service)) != (secret.upper() in service.get("environment", {}))


def test_no_secret_stands_in_the_environment_or_on_a_command_line() -> None:
    for name, service in services().items():
        text = json.dumps([service.get("environment"), service.get("command")]).lower()
        for word in ("password=", "requirepass", ":@", "secret="):
            assert word not in text, name


def test_only_who_checks_keys_or_signs_gets_the_pepper_and_flower_gets_only_the_broker() -> None:
    with_pepper = {
        name for name, service in services().items() if "headrace_key_pepper" in secret_names(service)
    }
    assert with_pepper == {"api", "bootstrap", "control"}
    with_log_key = {
        name for name, service in services().items() if "headrace_log_hash_key" in secret_names(service)
    }
    assert with_log_key == {"api", "control", "worker", "worker-cpu"}
    assert secret_names(services()["flower"]) == {"headrace_broker_url", "flower_password"}


def test_every_secret_is_declared_and_used() -> None:
    used = set[str]().union(*map(secret_names, services().values()))
    assert used == set(compose.deployed()["secrets"])
    for name, secret in compose.deployed()["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}


def test_every_command_is_one_that_headrace_has() -> None:
    checked = 0
    for _, words in compose.all_commands():
        words = commands.inner(words)
        if words[0] != "python":
            commands.parse(words)
            checked += 1
    assert checked >= 10


def test_paths_and_ports_of_commands_are_those_the_services_have() -> None:
    of = {
        name: commands.parse(commands.inner(service["command"]))
        for name, service in headrace_services().items()
    }
    assert of["api"]["host"] == "0.0.0.0"
    assert services()["api"]["ports"] == [f"8000:{of['api']['port']}"]
    assert services()["flower"]["ports"] == [f"127.0.0.1:5555:{of['flower']['port']}"]
    assert str(of["flower"]["password_file"]) == "/run/secrets/flower_password"
    assert str(of["model"]["path"]) == "/models/org/model"
    assert services()["bootstrap"]["volumes"] == ["keys:/keys"]
    assert str(of["bootstrap"]["key_file"]).startswith("/keys/")


def test_the_worker_is_asked_by_the_name_it_gives_itself() -> None:
    for name in ("worker", "worker-cpu"):
        service = services()[name]
        assert 'HEADRACE_WORKER_NAME="$(hostname)"' in service["command"][2]
        assert '--worker "$(hostname)"' in service["healthcheck"]["test"][1]


@pytest.mark.parametrize("name", ["worker", "worker-cpu"])
def test_a_worker_is_killed_only_well_after_its_drain(name: str) -> None:
    service = services()[name]
    assert seconds(service["stop_grace_period"]) > float(service["environment"]["HEADRACE_DRAIN_S"]) + 10


@pytest.mark.parametrize("name", sorted(services()))
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = services()[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "userns_mode"} & set(service)
    assert set(service["deploy"]["resources"]["limits"]) >= {"memory", "pids"}
    assert service["stop_signal"] in {"SIGTERM", "SIGINT"}
    assert "stop_grace_period" in service


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_a_long_running_service_is_watched_and_started_again(name: str) -> None:
    service = services()[name]
    assert service["restart"] == "unless-stopped"
    check = service["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert seconds(check["timeout"]) < seconds(check["interval"]) or name in {"postgres", "valkey"}


def test_only_the_api_is_published_and_flower_on_loopback() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert set(published) == {"api", "flower"}
    assert all(port.startswith("127.0.0.1:") for port in published["flower"])


def test_the_stores_are_on_a_network_without_a_way_out() -> None:
    assert compose.deployed()["networks"]["stores"] == {"internal": True}
    for name, service in services().items():
        expected = {"stores", "edge"} if "ports" in service or name == "control" else {"stores"}
        assert set(service["networks"]) == expected, name


def test_weights_are_mounted_read_only_and_on_one_path() -> None:
    mounts = {
        name: [volume for volume in service.get("volumes", []) if isinstance(volume, dict)]
        for name, service in services().items()
    }
    assert {name for name, found in mounts.items() if found} == {
        "api",
        "control",
        "model",
        "worker",
        "worker-cpu",
    }
    for found in filter(None, mounts.values()):
        (mount,) = found
        assert (mount["target"], mount["read_only"]) == ("/models", True)


def test_nothing_starts_before_what_it_needs() -> None:
    done, healthy = "service_completed_successfully", "service_healthy"
    for name, service in services().items():
        for needed, how in service.get("depends_on", {}).items():
            expected = done if is_one_shot(services()[needed]) else healthy
            assert how == {"condition": expected}, f"{name} on {needed}"
            assert "healthcheck" in services()[needed] or expected == done

    def before(name: str) -> set[str]:
        direct = set(services()[name].get("depends_on", {}))
        return direct.union(*map(before, direct))

    assert before("api") >= {"postgres", "valkey", "migrate", "bootstrap", "model"}
    assert before("control") >= {"postgres", "valkey", "migrate"}
    for worker in ("worker", "worker-cpu"):
        assert before(worker) >= {"postgres", "valkey", "migrate", "model"}


def test_one_profile_runs_one_kind_of_worker_and_only_that_needs_a_profile() -> None:
    profiles = {name: service["profiles"] for name, service in services().items() if "profiles" in service}
    assert profiles == {"worker": ["gpu"], "worker-cpu": ["cpu"]}


def test_only_the_gpu_worker_reserves_a_device() -> None:
    for name, service in services().items():
        devices = service["deploy"]["resources"].get("reservations", {}).get("devices")
        assert (devices is not None) == (name == "worker")
    (device,) = services()["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}


def test_images_are_named_without_a_registry() -> None:
    for service in services().values():
        first, slash, _ = service["image"].partition("/")
        assert not slash or not set(".:") & set(first)
