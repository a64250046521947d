"""/v1/completions: text that goes on after a prompt."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import Caller
from api.body import takes
from api.generate import answer
from schemas.text import CompletionRequest

router = APIRouter(tags=["openai"])


@router.post(CompletionRequest.url, openapi_extra=takes(CompletionRequest))
async def create(request: Request, access: Caller) -> Response:
    """Go on after each prompt: whole, or as a stream of chunks."""
    return await answer(request, access, CompletionRequest)
