"""Answer prompts by a server of OpenAI's completions protocol, e.g. vLLM's; needs the extra ``server``.

Prompts are sent as token ids and answered greedily, several at a time. Each answer is cut where local decoding would have
stopped, so that records compare.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from transformers import PreTrainedTokenizerBase

from skipwise.errors import EvaluationError, RecipeError, pip_install, reason
from skipwise.evaluation.retrieval import Answer, Question, as_far_as_needed

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_LIST = 30.0  # seconds for the list of models
# Servers take what a request leaves out from the model's generation_config.json, so all of greedy decoding is stated.
_GREEDY: dict[str, Any] = {"temperature": 0, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
_MORE = {"repetition_penalty": 1, "return_token_ids": True}  # of vLLM

# Number of a request, text, token ids (None if the server returns text alone) and seconds.
Completion = tuple[int, str, list[int] | None, float]


@dataclass(frozen=True)
class Server:
    """A server and its model."""

    url: str  # without /v1
    name: str  # of the model
    engine: str  # with its version, if known
    window: int | None  # tokens of prompt and answer; None if unknown
    at_once: int  # requests
    timeout: float  # seconds for one request

    def require_window(self, longest: int) -> None:
        """Require prompts of ``longest`` tokens, answers included, to fit the server's window."""
        if self.window is not None and longest > self.window:
            raise EvaluationError(
                f"prompts of {longest:,} tokens exceed the window of {self.url}, {self.window:,}; start the server with a longer "
                f"window (vLLM: --max-model-len {longest}), or lower --lengths"
            )

    def answers(self, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question]) -> Iterator[Answer]:
        """Answer each question; yield answers as they arrive."""
        # By their token ids, for the server's prefix cache.
        order = sorted(range(len(questions)), key=lambda i: questions[i].ids)
        room = [question.most if self.window is None else self.window - len(question.ids) for question in questions]
        bodies = [{"prompt": questions[i].ids, "max_tokens": min(questions[i].most, room[i])} for i in order]
        for place, text, ids, seconds in self.completions(bodies):
            number, question = order[place], questions[order[place]]
            if ids:
                yield as_far_as_needed(number, question, ids, tokenizer, seconds)
            else:
                yield Answer(number, text, question.score(text), seconds)

    def completions(self, bodies: Sequence[dict[str, Any]]) -> Iterator[Completion]:
        """Send requests, ``at_once`` at a time; yield completions as they arrive."""
        with asyncio.Runner() as runner:  # cancels what is left at the end, after Ctrl-C too
            made = self._completions(bodies)

            async def following() -> Completion | None:
                return await anext(made, None)

            while (completion := runner.run(following())) is not None:
                yield completion

    async def _completions(self, bodies: Sequence[dict[str, Any]]) -> AsyncIterator[Completion]:
        free = asyncio.Semaphore(self.at_once)

        async def complete(number: int, body: dict[str, Any]) -> Completion:
            async with free:
                began = time.perf_counter()
                with _plain_errors(self.url, self.timeout):
                    async with asyncio.timeout(self.timeout):  # of all tries; the client's own is of one
                        answer = await client.completions.create(model=self.name, extra_body=_MORE, **_GREEDY, **body)
                    text, ids = answer.choices[0].text.strip(), getattr(answer.choices[0], "token_ids", None)
                return number, text, ids, time.perf_counter() - began

        async with _client(self.url, self.timeout) as client:
            tasks = [asyncio.ensure_future(complete(number, body)) for number, body in enumerate(bodies)]
            try:
                for done in asyncio.as_completed(tasks):
                    yield await done
            finally:
                for task in tasks:
                    task.cancel()


def connect(url: str, name: str | None = None, *, at_once: int = 8, timeout: float = 600.0) -> Server:
    """Connect to the server at ``url``; ``name`` chooses among several models."""
    if find_spec("openai") is None:
        raise RecipeError(f"--server needs openai: {pip_install('server')}")
    parsed = urlsplit(url.strip())
    if parsed.scheme not in ("http", "https") or not parsed.hostname or "@" in parsed.netloc:  # run.json keeps commands
        raise RecipeError(
            "--server is not an address without a password; give e.g. http://localhost:8000, a key by OPENAI_API_KEY"
        )
    address = parsed._replace(query="", fragment="").geturl().rstrip("/").removesuffix("/v1")
    models, version = asyncio.run(_served(address, min(timeout, _LIST)))
    names = [model.id for model in models]
    if name not in names and (name or len(names) > 1):
        raise RecipeError(f"the server at {address} serves {', '.join(names)}; choose one by --server-model")
    model = models[names.index(name) if name else 0]
    engine = f"{model.owned_by or 'a server'} {version}".strip()
    window = getattr(model, "max_model_len", None) or (getattr(model, "meta", None) or {}).get("n_ctx")  # llama.cpp
    return Server(address, model.id, engine, window, at_once, timeout)


async def _served(url: str, timeout: float) -> tuple[list[Any], str]:
    """Return the models of a server, and its version, which vLLM states."""
    async with _client(url, timeout, retries=0) as client:
        with _plain_errors(url, timeout):
            models = [model for model in (await client.models.list()).data if model.id]
            if not models:
                raise LookupError("no model")
        with suppress(Exception):  # other servers have no such page
            return models, str((await client.get(f"{url}/version", cast_to=dict[str, Any]))["version"])
        return models, ""


def _client(url: str, timeout: float, retries: int = 2) -> "AsyncOpenAI":
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{url}/v1", api_key=_key() or "none", timeout=timeout, max_retries=retries)


def _key() -> str:
    return os.environ.get("OPENAI_API_KEY", "").strip()


@contextmanager
def _plain_errors(url: str, timeout: float) -> Iterator[None]:
    """Explain errors of the client, and answers in another protocol, by an EvaluationError."""
    from openai import APITimeoutError, OpenAIError

    try:
        yield
        return
    except (APITimeoutError, TimeoutError):
        problem = f"no answer in {timeout:g} s (--server-timeout, --server-requests)"
    except OpenAIError as error:
        problem = reason(error.__cause__ or error)
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # the client does not check answers
        problem = f"its answer is not in OpenAI's completions protocol ({reason(error)})"
    if key := _key():
        problem = problem.replace(key, "***")
    raise EvaluationError(
        f"the server at {url} failed: {problem}. Correct the server, --server or OPENAI_API_KEY, and run the command again; "
        "finished answers are kept"
    )
