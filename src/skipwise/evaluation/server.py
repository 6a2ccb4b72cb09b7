"""Answer prompts by a server of OpenAI's completions protocol, e.g. vLLM's.

Prompts are sent as token ids and answered greedily, several at a time. Each answer is cut where local decoding would have
stopped, so that records compare.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2
from transformers import PreTrainedTokenizerBase

from skipwise.errors import EvaluationError, RecipeError, reason
from skipwise.evaluation.retrieval import Answer, Question, as_far_as_needed

AT_ONCE = 8  # requests
TIMEOUT = 600.0  # seconds, as in OpenAI's client
_CONNECT = 10.0  # seconds
_LIST = 30.0  # seconds for the list of models
_WAITS = (1.0, 5.0)  # seconds before a request is sent again
_BUSY = (429, 502, 503, 504)
# Servers take what a request leaves out from the model's generation_config.json, so all of greedy decoding is stated.
_GREEDY = {"temperature": 0, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}


@dataclass(frozen=True)
class Completion:
    """A server's answer to one prompt; ``token_ids`` is None if the server returns text alone."""

    text: str
    token_ids: list[int] | None = None


@dataclass(frozen=True)
class Server:
    """A server and its model."""

    url: str  # without /v1
    name: str  # of the model
    engine: str  # with its version, if known
    window: int | None = None  # tokens of prompt and answer; None if unknown
    at_once: int = AT_ONCE  # requests
    timeout: float = TIMEOUT  # seconds for one request

    def require_window(self, longest: int) -> None:
        """Require prompts of ``longest`` tokens, answers included, to fit the server's window."""
        if self.window is not None and longest > self.window:
            raise EvaluationError(
                f"prompts of {longest:,} tokens exceed the window of {self.url}, {self.window:,}; start the server with a longer "
                f"window (vLLM: --max-model-len {longest}), or lower --lengths"
            )

    def answers(self, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question]) -> Iterator[Answer]:
        """Answer each question; yield answers as they arrive.

        Prompts are sent in the order of their token ids, so that the server's prefix cache is used.

        Raises:
            EvaluationError: the server fails.
        """
        order = sorted(range(len(questions)), key=lambda i: questions[i].ids)
        room = [question.most if self.window is None else self.window - len(question.ids) for question in questions]
        bodies = [{"prompt": questions[i].ids, "max_tokens": min(questions[i].most, room[i])} for i in order]
        for place, completion, seconds in self.completions(bodies):
            number, question = order[place], questions[order[place]]
            if completion.token_ids:
                yield as_far_as_needed(number, question, completion.token_ids, tokenizer, seconds)
            else:
                text = completion.text.strip()
                yield Answer(number, text, question.score(text), seconds)

    def completions(self, bodies: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Completion, float]]:
        """Send requests, ``at_once`` at a time; yield number, completion and seconds of each."""
        with asyncio.Runner() as runner:  # cancels what is left at the end, after Ctrl-C too
            made = self._completions(bodies)
            while (one := runner.run(_next(made))) is not None:
                yield one

    async def _completions(self, bodies: Sequence[dict[str, Any]]) -> AsyncIterator[tuple[int, Completion, float]]:
        free = asyncio.Semaphore(self.at_once)

        async def complete(number: int, body: dict[str, Any]) -> tuple[int, Completion, float]:
            async with free:
                began = time.perf_counter()
                request = {"model": self.name, "return_token_ids": True, **_GREEDY, **body}
                answer = await _json(client, "/v1/completions", request)
                try:
                    choice = answer["choices"][0]
                    completion = Completion(choice["text"].strip(), choice.get("token_ids"))
                except (LookupError, TypeError, AttributeError) as error:
                    raise _other_protocol(client, answer) from error
                return number, completion, time.perf_counter() - began

        async with _client(self.url, self.timeout) as client:
            tasks = [asyncio.ensure_future(complete(number, body)) for number, body in enumerate(bodies)]
            try:
                for done in asyncio.as_completed(tasks):
                    yield await done
            finally:
                for task in tasks:
                    task.cancel()


async def _next(made: AsyncIterator[tuple[int, Completion, float]]) -> tuple[int, Completion, float] | None:
    return await anext(made, None)


def connect(url: str, name: str | None = None, *, at_once: int = AT_ONCE, timeout: float = TIMEOUT) -> Server:
    """Connect to the server at ``url``; ``name`` chooses among several models.

    Raises:
        RecipeError: ``url`` is no address, or ``name`` is not served, or is needed.
        EvaluationError: the server cannot be reached, or has another protocol.
    """
    parsed = httpx2.URL(url.strip())
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:  # run.json keeps commands
        raise RecipeError(
            "--server is not an address without a password; give e.g. http://localhost:8000, a key by OPENAI_API_KEY"
        )
    address = str(parsed.copy_with(query=None, fragment=None)).rstrip("/").removesuffix("/v1")
    models, version = asyncio.run(_served(address, min(timeout, _LIST)))
    names = [model["id"] for model in models]
    if name not in names and (name or len(names) > 1):
        raise RecipeError(f"the server at {address} serves {', '.join(names)}; choose one by --server-model")
    model = models[names.index(name) if name else 0]
    engine = f"{model.get('owned_by') or 'a server'} {version}".strip()
    window = model.get("max_model_len") or (model.get("meta") or {}).get("n_ctx")  # vLLM, llama.cpp
    return Server(address, model["id"], engine, window, at_once, timeout)


def _client(url: str, timeout: float) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if (key := _key()) else {},
        timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT), pool=None),
        limits=httpx2.Limits(max_connections=None),
    )


def _key() -> str:
    return os.environ.get("OPENAI_API_KEY", "").strip()


async def _served(url: str, timeout: float) -> tuple[list[dict[str, Any]], str]:
    """Return the models of a server, and its version, which vLLM states."""
    async with _client(url, timeout) as client:
        answer = await _json(client, "/v1/models")
        try:
            models = [model for model in answer["data"] if model["id"]]
            if not models:
                raise LookupError("no model")
        except (LookupError, TypeError) as error:
            raise _other_protocol(client, answer) from error
        with suppress(httpx2.HTTPError, ValueError, LookupError, TypeError):
            return models, str((await client.get("/version")).json()["version"])
        return models, ""


async def _json(client: httpx2.AsyncClient, path: str, body: dict[str, Any] | None = None) -> Any:
    """Get ``path``, or post ``body`` to it; a busy or absent server is tried again, twice at most."""
    for wait in (*(_WAITS if body else ()), None):
        try:
            answer = await (client.get(path) if body is None else client.post(path, json=body))
            if answer.is_success:
                return answer.json()
            problem = f"HTTP {answer.status_code}: {reason(Exception(answer.text))}"
            if answer.status_code not in _BUSY:
                break
        except httpx2.ReadTimeout:
            problem = f"no answer in {client.timeout.read:g} s (--server-timeout, --server-requests)"
            break
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            problem = reason(error)
        except ValueError:
            raise _other_protocol(client, answer.text) from None
        if wait is not None:
            await asyncio.sleep(wait)
    if key := _key():
        problem = problem.replace(key, "***")
    raise EvaluationError(
        f"the server at {client.base_url} failed at {path}: {problem}. Correct the server, --server or OPENAI_API_KEY, and run the "
        "command again; finished answers are kept"
    )


def _other_protocol(client: httpx2.AsyncClient, answer: object) -> EvaluationError:
    return EvaluationError(
        f"the server at {client.base_url} does not speak OpenAI's completions protocol: {str(answer)[:60]!r}; give another address"
    )
