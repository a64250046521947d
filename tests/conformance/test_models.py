"""GET /v1/models and /v1/models/{name}."""

import os
import subprocess
import sys

import openai
import pytest

from tests.support.sdk import Sdk
from tests.support.stacks import ROOT, SharedStack

ORG_MODEL = "org/model.of-theirs"


@pytest.fixture(scope="module")
def org_models(deterministic_stack: SharedStack) -> None:
    """Two registered models: one granted to the stack's tenant, one to another."""
    folder = deterministic_stack.data / "models" / deterministic_stack.model
    for name, tenant in ((ORG_MODEL, "default"), ("org/secret", "somebody else")):
        words = ("model", "add", name, "--path", str(folder), "--tenant", tenant)
        subprocess.run(
            [sys.executable, "-m", "cli", *words],
            cwd=ROOT,
            env={**os.environ, **deterministic_stack.environment},
            check=True,
            capture_output=True,
        )


@pytest.mark.shows("models-list-and-retrieve")
async def test_models_are_listed_and_retrieved_by_names_with_slashes(sdk: Sdk, org_models: None) -> None:
    listed = await sdk.all("models.list")
    assert {sdk.model, ORG_MODEL} <= {model.id for model in listed}
    assert {model.object for model in listed} == {"model"}
    assert all(model.created > 1_600_000_000 and model.owned_by for model in listed)
    found = await sdk.do("models.retrieve", ORG_MODEL)  # the client sends the slash as %2F
    assert found.id == ORG_MODEL
    assert (await sdk.do("get", f"/models/{ORG_MODEL}", cast_to=object))["id"] == ORG_MODEL


@pytest.mark.shows("models-granted-only")
async def test_a_model_of_somebody_else_does_not_exist(sdk: Sdk, org_models: None) -> None:
    assert "org/secret" not in {model.id for model in await sdk.all("models.list")}
    messages = []
    for name in ("org/secret", "org/absent"):
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.do("models.retrieve", name)
        messages.append(caught.value.message.replace(name, "NAME"))
    assert len(set(messages)) == 1


@pytest.mark.shows("wrong-key")
@pytest.mark.parametrize("key", ["hr_" + "a" * 44, "sk-none", "x"])
async def test_a_wrong_key_is_an_authentication_error(sdk: Sdk, key: str) -> None:
    stranger = Sdk(sdk.client.with_options(api_key=key), sdk.model)
    with pytest.raises(openai.AuthenticationError) as caught:
        await stranger.all("models.list")
    assert caught.value.code == "invalid_api_key"
