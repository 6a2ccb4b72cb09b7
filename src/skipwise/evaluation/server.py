"""A server of OpenAI's completions protocol, such as vLLM's, that answers prompts in place of this process.

It gets each prompt as token ids, so that it reads what the local model would read, and answers greedily. Several requests
are under way at once: a server reads and writes them together. Of each answer as much is kept as the local model would have
written, so that the records are the same.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar

import httpx2
from pydantic import BaseModel, Field, ValidationError
from transformers import PreTrainedTokenizerBase

from skipwise.errors import EvaluationError, RecipeError, counted, reason
from skipwise.evaluation.retrieval import Answer, Question, as_far_as_needed

AT_ONCE = 8  # requests
TIMEOUT = 600.0  # seconds, as in OpenAI's client
_CONNECT = 10.0  # seconds
_FIRST_WORD = 30.0  # seconds until a server must have said what it serves
_WAITS = (1.0, 5.0)  # seconds before a prompt is sent again
_BUSY = (429, 502, 503, 504)  # what a server, or what stands before it, says when it may answer later
# With a temperature of 0 the likeliest token is taken. The penalties are stated because servers take them from the model's
# generation_config.json where a request is silent.
_GREEDY = {"temperature": 0, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}


class _Meta(BaseModel):
    n_ctx: int | None = Field(default=None, ge=1)


class _Model(BaseModel):
    """A model that is served; vLLM and llama.cpp's server tell its window, each in its own way."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = Field(default=None, ge=1)
    meta: _Meta | None = None

    @property
    def window(self) -> int | None:
        return self.max_model_len or (self.meta.n_ctx if self.meta else None)


class _Models(BaseModel):
    data: list[_Model] = Field(min_length=1)


class _Version(BaseModel):
    version: str


class Completion(BaseModel):
    """What a server wrote after one prompt; ids and log-probabilities only where it tells them."""

    text: str
    token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    logprobs: dict[str, Any] | None = None


class _Completions(BaseModel):
    choices: list[Completion] = Field(min_length=1)


Told = TypeVar("Told", bound=BaseModel)


@dataclass(frozen=True)
class Server:
    """A server, and the model that it serves."""

    url: str  # without /v1
    name: str  # of the model, as the server calls it
    engine: str  # as it calls itself, with its version if it tells one
    window: int | None = None  # tokens of a prompt and its answer together; None if it does not tell
    at_once: int = AT_ONCE  # requests
    timeout: float = TIMEOUT  # seconds for one request
    trusted: bool = False  # whether it need not prove which weights it serves

    def require_window(self, longest: int) -> None:
        """Refuse, before the first is asked, prompts that do not fit the server's window with their answers."""
        if self.window is not None and longest > self.window:
            raise EvaluationError(
                f"prompts of {longest:,} tokens do not fit the server at {self.url}, which takes {self.window:,} tokens: "
                f"start it with a longer window (vLLM: --max-model-len {longest}), or lower --lengths"
            )

    def answers(self, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question]) -> Iterator[Answer]:
        """Answer each question, and yield the answers as they come.

        Prompts are sent in the order of their token ids: a server that keeps what it has read last finds the beginnings
        that they share.

        Raises:
            EvaluationError: the server is down or slow, refuses a prompt, or says something else than an answer.
        """
        order = sorted(range(len(questions)), key=lambda i: questions[i].ids)
        bodies = [self._asked(questions[i]) for i in order]
        for place, completion, seconds in self.completions(bodies):
            number, question = order[place], questions[order[place]]
            if completion.token_ids:
                yield as_far_as_needed(number, question, completion.token_ids, tokenizer, seconds)
            else:
                text = completion.text.strip()
                yield Answer(number, text, question.score(text), seconds)

    def _asked(self, question: Question) -> dict[str, Any]:
        """The request of a question. A prompt may leave one token less than asked for, which shows where a number ends."""
        most = question.most if self.window is None else min(question.most, self.window - len(question.ids))
        return {"prompt": question.ids, "max_tokens": most}

    def completions(self, bodies: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Completion, float]]:
        """Send requests, ``at_once`` of them at a time; yield the number, the answer and the seconds of each."""
        with asyncio.Runner() as runner:  # ends every request with it, after Ctrl-C too
            client, free = _client(self.url, self.timeout), asyncio.Semaphore(self.at_once)
            tasks = {
                runner.get_loop().create_task(self._completed(client, free, number, body))
                for number, body in enumerate(bodies)
            }
            left = tasks
            try:
                while left:
                    done, left = runner.run(_first(left))
                    for task in sorted(done, key=lambda task: task.exception() is not None):
                        yield task.result()
            finally:
                runner.run(_ended(client, left))

    async def _completed(
        self, client: httpx2.AsyncClient, free: asyncio.Semaphore, number: int, body: dict[str, Any]
    ) -> tuple[int, Completion, float]:
        async with free:
            began = time.perf_counter()
            whole = {"model": self.name, "return_token_ids": True, **_GREEDY, **body}
            told = await _told(_Completions, client, "/v1/completions", whole)
            return number, told.choices[0], time.perf_counter() - began


def connect(
    url: str, name: str | None = None, *, at_once: int = AT_ONCE, timeout: float = TIMEOUT, trusted: bool = False
) -> Server:
    """Ask the server at ``url`` what it serves; ``name`` chooses where it serves several models.

    Raises:
        RecipeError: ``url`` is no address, or the server serves several models and ``name`` is none of them.
        EvaluationError: it cannot be reached, or does not speak the protocol.
    """
    address = _address(url)
    served, version = asyncio.run(_asked_what_it_serves(address, timeout))
    names = [one.id for one in served.data]
    if name is None and len(names) > 1:
        raise RecipeError(f"the server at {address} serves {', '.join(names)}: choose one by --server-model")
    if name is not None and name not in names:
        raise RecipeError(f"the server at {address} does not serve {name!r}; choose one of {', '.join(names)}")
    one = next(one for one in served.data if name in (None, one.id))
    engine = f"{one.owned_by or 'a server'} {version}".strip()
    return Server(address, one.id, engine, one.window, at_once, timeout, trusted)


def _address(url: str) -> str:
    """The address without a path of the protocol; one that holds a password is refused, because records keep commands."""
    try:
        parsed = httpx2.URL(url.strip())
    except httpx2.InvalidURL as error:
        raise RecipeError(f"--server {url!r} is no address ({error}); give one as http://localhost:8000") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise RecipeError(f"--server {url!r} is no address; give one as http://localhost:8000")
    if parsed.port is not None and not 0 < parsed.port < 2**16:
        raise RecipeError(f"--server {url!r}: a port is a number from 1 to 65,535; give one as http://localhost:8000")
    if parsed.userinfo:
        raise RecipeError(
            f"--server {parsed.copy_with(userinfo=b'')} has a user name or a password in it, and commands are recorded; "
            "leave it out, and give a key by the environment variable OPENAI_API_KEY"
        )
    return str(parsed.copy_with(query=None, fragment=None)).rstrip("/").removesuffix("/v1")


def _client(url: str, timeout: float) -> httpx2.AsyncClient:
    key = _key()
    return httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT), pool=None),
        limits=httpx2.Limits(max_connections=None),
    )


def _key() -> str:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not key.isascii() or not key.isprintable():
        raise RecipeError("the environment variable OPENAI_API_KEY holds signs that no key has; set it anew")
    return key


async def _asked_what_it_serves(url: str, timeout: float) -> tuple[_Models, str]:
    """What a server serves, and its version, which is not of the protocol: vLLM tells it."""
    async with _client(url, min(timeout, _FIRST_WORD)) as client:
        served = await _told(_Models, client, "/v1/models")
        with suppress(httpx2.HTTPError, ValidationError):
            return served, _Version.model_validate_json((await client.get("/version")).content).version
        return served, ""


async def _told(kind: type[Told], client: httpx2.AsyncClient, path: str, body: dict[str, Any] | None = None) -> Told:
    """Get what stands at ``path``, or send it a request. A prompt that was not taken is sent again, twice at the most."""
    waits = [*(_WAITS if body else ()), None]
    for wait in waits:
        try:
            answer = await (client.get(path) if body is None else client.post(path, json=body))
        except httpx2.TimeoutException as error:
            if not isinstance(error, httpx2.ConnectTimeout):
                _slow(client, body)
            problem: str | httpx2.Response = "it did not take the connection in time"
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            problem = reason(error)
        else:
            if answer.status_code not in _BUSY:
                return _read(kind, client, body, answer)
            problem = answer
        if wait is not None:
            await asyncio.sleep(wait)
    if isinstance(problem, httpx2.Response):
        _refused(client, body, problem)
    raise EvaluationError(
        f"the server at {_base(client)} cannot be reached: {problem}. Start it, or correct --server, and run the command "
        f"again{_KEPT if body else ''}"
    )


_KEPT = "; what was answered is kept"


def _read(kind: type[Told], client: httpx2.AsyncClient, body: dict[str, Any] | None, answer: httpx2.Response) -> Told:
    if answer.status_code != 200:
        _refused(client, body, answer)
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        raise EvaluationError(
            f"the server at {_base(client)} answered {answer.url.path} with something else than OpenAI's completions "
            f"protocol has ({reason(error)}; it begins with {answer.text[:60]!r}): give the address of a server of "
            f"that protocol, as vLLM's{_KEPT if body else ''}"
        ) from None


def _refused(client: httpx2.AsyncClient, body: dict[str, Any] | None, answer: httpx2.Response) -> NoReturn:
    """Raise for an answer that is an error of HTTP; a server may repeat the key, which is not shown."""
    said = reason(Exception(answer.text or "without a word"))
    if key := _key():
        said = said.replace(key, "***")
    way_out = {
        401: "set the environment variable OPENAI_API_KEY to its key",
        403: "set the environment variable OPENAI_API_KEY to its key",
        404: "give the address of a server of OpenAI's completions protocol, as http://localhost:8000",
        429: "ask fewer at once (--server-requests), and run the command again",
    }.get(answer.status_code, "see what it logged, correct that, and run the command again")
    raise EvaluationError(
        f"the server at {_base(client)} refused {_what(body)} with HTTP {answer.status_code}: {said}; {way_out}"
        f"{_KEPT if body else ''}"
    )


def _slow(client: httpx2.AsyncClient, body: dict[str, Any] | None) -> NoReturn:
    if body is None:
        raise EvaluationError(
            f"the server at {_base(client)} did not say in {client.timeout.read:g} s what it serves: wait until it has loaded its "
            "model, or correct --server, and run the command again"
        )
    raise EvaluationError(
        f"the server at {_base(client)} did not answer {_what(body)} in {client.timeout.read:g} s: give it longer "
        f"(--server-timeout), or ask fewer at once (--server-requests), and run the command again{_KEPT}"
    )


def _what(body: dict[str, Any] | None) -> str:
    return (
        f"a prompt of {counted(len(body['prompt']), 'token')}"
        if body
        else "the request for its list of models (/v1/models)"
    )


def _base(client: httpx2.AsyncClient) -> str:
    return str(client.base_url).rstrip("/")


async def _first(tasks: set[asyncio.Task[Any]]) -> tuple[set[asyncio.Task[Any]], set[asyncio.Task[Any]]]:
    return await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _ended(client: httpx2.AsyncClient, tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.aclose()
