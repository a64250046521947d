"""/v1/chat/completions: the answer to a conversation."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import Caller
from api.body import takes
from api.generate import answer
from schemas.chat import ChatCompletionRequest

router = APIRouter(tags=["openai"])


@router.post(ChatCompletionRequest.url, openapi_extra=takes(ChatCompletionRequest))
async def create(request: Request, access: Caller) -> Response:
    """Answer a conversation: whole, or as a stream of chunks."""
    return await answer(request, access, ChatCompletionRequest)
