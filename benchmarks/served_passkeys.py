"""Passkeys through the servers of vLLM and llama.cpp, over HTTP, against transformers' own greedy answers.

    python benchmarks/served_passkeys.py MODEL BASE [--python VLLM_PYTHON] [--length 2k] [--trials 20]

The prompts are those of ``skipwise passkey``, sent as token ids. Weights, keys and values are float32 in all three. The
base is served beyond its window by a copy whose config says the length: with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vLLM would
start too, but its table of rotations would end at the length in the config. Checked: every server writes the tokens that
transformers writes for MODEL.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from rich.console import Console

from skipwise.cli.terminal import prepare_process
from skipwise.data.passkey import Prompt, answer_ids
from skipwise.engines.check import model_folder
from skipwise.engines.gguf import write_gguf
from skipwise.engines.request import ENGINES, Engine, find_engines
from skipwise.evaluation.retrieval import draw_prompt, is_hit
from skipwise.method.lengths import parse_length
from skipwise.model.loading import load_model, load_tokenizer

START = 300  # seconds until a server must be ready
ANSWER = 300  # seconds until it must have answered
VLLM_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else it compiles for 20 s before the first token
    "HF_HUB_OFFLINE": "1",
}
# llama.cpp's server as ``skipwise check`` starts it; it ends with this process, which holds its standard input.
LLAMA_CPP = """
import pathlib, sys
from skipwise.engines.read_with_llama_cpp import served

server = served(sys.argv[1], int(sys.argv[2]))
pathlib.Path(sys.argv[3]).write_text(server.listening_address)
sys.stdin.read()
"""

Answers = list[list[int]]  # the tokens of each answer


class NotServedError(Exception):
    """A server did not start, or refused a prompt."""


def post(url: str, body: dict[str, Any]) -> Any:
    """Send JSON and return the answer's."""
    headers = {"Content-Type": "application/json"}
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=ANSWER) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise NotServedError(f"HTTP {error.code}: {error.read().decode(errors='replace')[:300]}") from None


@contextmanager
def running(words: Sequence[str], log: Path, settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a group of processes of its own, and end the whole group in every case."""
    with log.open("wb") as printed:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            env={**settings, **os.environ, "GGML_NO_BACKTRACE": "1"},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], address: Path, log: Path) -> str:
    """Poll /health at the address that a file says, or will say; return the address."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with suppress(OSError, HTTPException, ValueError):
            url = address.read_text()
            with urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return url
        time.sleep(0.5)
    lines = log.read_text(errors="replace").strip().splitlines() or [f"no word in {START} s"]
    raise NotServedError(f"the server did not start: {lines[-1]}")


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def vllm_server(python: str, model: Path, length: int) -> Iterator[str]:
    """Serve a checkpoint by vLLM's OpenAI server, and yield its address."""
    folder = model.parent
    asked = [python, "-c", "import importlib.metadata as m; m.version('vllm')"]
    if subprocess.run(asked, capture_output=True).returncode:  # vllm-cpu: its command looks for the other name
        words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    else:
        words = [str(Path(python).with_name("vllm")), "serve", str(model)]
    url = f"http://127.0.0.1:{free_port()}"
    words += ["--host", "127.0.0.1", "--port", url.rsplit(":")[-1], "--max-model-len", str(length)]
    words += ["--dtype", "float32", "--enforce-eager", "--served-model-name", "served"]
    (folder / "address").write_text(url)
    with running(words, folder / "log", VLLM_SETTINGS) as process:
        yield wait_until_ready(process, folder / "address", folder / "log")


@contextmanager
def llama_cpp_server(file: Path, length: int) -> Iterator[str]:
    """Serve a GGUF file by llama.cpp's server, and yield its address."""
    folder = file.parent
    words = [sys.executable, "-c", LLAMA_CPP, str(file), str(length), str(folder / "address")]
    with running(words, folder / "log", {}) as process:
        yield wait_until_ready(process, folder / "address", folder / "log")


def with_window(model: str, length: int, folder: Path) -> Path:
    """Return a folder with the same model whose config says at least ``length`` tokens: servers refuse more."""
    folder.mkdir()
    config = json.loads((Path(model) / "config.json").read_text())
    for path in Path(model).resolve().iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "config.json").unlink()
    config["max_position_embeddings"] = max(length, config["max_position_embeddings"])
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def by_transformers(model: str, prompts: Sequence[Prompt], most: Sequence[int]) -> Answers:
    """Answer in this process, in float32."""
    loaded, answers = load_model(model).eval(), []
    for prompt, tokens in zip(prompts, most, strict=True):
        ids = torch.tensor([prompt.ids])
        with torch.inference_mode():
            written = loaded.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        answers.append(written[0, ids.shape[1] :].tolist())
    return answers


def by_vllm(python: str, model: str, length: int, prompts: Sequence[Prompt], most: Sequence[int]) -> Answers:
    """Answer by vLLM's server."""
    with TemporaryDirectory() as at, vllm_server(python, with_window(model, length, Path(at) / "model"), length) as url:
        settings = {"model": "served", "temperature": 0, "return_token_ids": True}
        answers = [
            post(f"{url}/v1/completions", {"prompt": prompt.ids, "max_tokens": tokens, **settings})
            for prompt, tokens in zip(prompts, most, strict=True)
        ]
    return [answer["choices"][0]["token_ids"] for answer in answers]


def by_llama_cpp(model: str, length: int, prompts: Sequence[Prompt], most: Sequence[int], console: Console) -> Answers:
    """Answer by llama.cpp's server, from a GGUF file with weights of type f32."""
    with TemporaryDirectory() as at:
        file = Path(at) / "model.gguf"
        write_gguf(with_window(model, length, Path(at) / "model"), file, "f32", console)
        with llama_cpp_server(file, length) as url:
            settings = {"temperature": 0, "return_tokens": True}
            return [
                post(f"{url}/completion", {"prompt": prompt.ids, "n_predict": tokens, **settings})["tokens"]
                for prompt, tokens in zip(prompts, most, strict=True)
            ]


def asked(
    engine: Engine, model: str, length: int, prompts: Sequence[Prompt], most: Sequence[int], console: Console
) -> Answers:
    """Ask one engine; no answers if it does not serve the model."""
    try:
        if engine.name == "transformers":
            return by_transformers(model, prompts, most)
        if engine.name == "vllm":
            return by_vllm(engine.python, model, length, prompts, most)
        return by_llama_cpp(model, length, prompts, most, console)
    except NotServedError as error:
        console.print(f"{engine.name}, {model}: {error}", style="red", soft_wrap=True)
        return []


def main() -> None:
    """Ask, and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("base")
    parser.add_argument("--python", help="of the environment that has vLLM")
    parser.add_argument("--length", type=parse_length, default=2048)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended
    console, length = prepare_process(), chosen.length
    found = find_engines([], [chosen.python] if chosen.python else [])
    engines = [one for name in ENGINES for one in [each for each in found if each.name == name][:1]]
    others = [engine for engine in engines if engine.name != "transformers"]
    lines, differ = [], []
    for name in (chosen.model, chosen.base):
        model = model_folder(name)
        tokenizer = load_tokenizer(model)
        prompts = [draw_prompt("passkey", tokenizer, length, chosen.seed, i, "spread") for i in range(chosen.trials)]
        # One token more than the key's shows whether the number ends there, where it still fits the window.
        most = [min(len(answer_ids(tokenizer, p.answer)) + 1, length - len(p.ids)) for p in prompts]
        cells, answers = [], {}
        for engine in engines:
            began = time.perf_counter()
            answers[engine.name] = asked(engine, model, length, prompts, most, console)
            console.print(
                f"{engine.name} {engine.version}, {name}: {time.perf_counter() - began:.0f} s", soft_wrap=True
            )
            texts = [str(tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in answers[engine.name]]
            hits = sum(is_hit(text, p.answer) for text, p in zip(texts, prompts, strict=False))
            cells.append(f"{hits} of {len(texts)}" if texts else "not served")
        ours = [until_end(ids, tokenizer.eos_token_id) for ids in answers["transformers"]]
        for engine in others:
            theirs = [until_end(ids, tokenizer.eos_token_id) for ids in answers[engine.name]]
            equal = sum(a == b for a, b in zip(ours, theirs, strict=False))
            cells.append(f"{equal} of {len(theirs)}" if theirs else "not served")
            if name == chosen.model and equal < chosen.trials:
                differ.append(engine.name)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    heads = [f"{e.name} {e.version} found" for e in engines] + [f"{e.name}'s tokens equal" for e in others]
    print(f"\npasskeys at {length:,} tokens, {chosen.trials} prompts, seed {chosen.seed}\n")
    print("| model | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    print("\n".join(lines))
    if differ:
        sys.exit(f"{', '.join(differ)} did not answer {chosen.model} as transformers does")


def until_end(ids: list[int], end: int | None) -> list[int]:
    """Return the tokens before the end of the text, which not every server tells."""
    return ids[: ids.index(end)] if end in ids else ids


if __name__ == "__main__":
    main()
