"""What the pages show runs: the README's Python block, and every block of the guides.

A page is one session: its blocks run in their order, in one folder. ``sh`` blocks hold commands of skipwise alone, and
are run in this process; ``python`` blocks share their names; a ``yaml`` block that begins with ``# NAME.yaml`` is that
file. Blocks of other languages are read, not run. What a reader has and a test has not, such as a model of 8 billion
parameters, is replaced by something small, and commands get options that make them short.
"""

import inspect
import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.main import get_command

from skipwise.cli import app
from skipwise.data.text import is_held_out
from tests import families
from tests.command_line import run
from tests.tiny import byte_tokenizer, checkpoint, corpus

pytestmark = pytest.mark.usefixtures("frozen_imports", "undrawn")
ROOT = Path(__file__).parents[2]
README, DOCS = ROOT / "README.md", ROOT / "docs"
HELD_OUT = ("calendar.py", "traceback.py")
# No search for a better interpolation.
QUICK = {"evaluation__models": "[trained]", "evaluation__other_texts": "false", "interpolation": "yarn"}
_TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder; the standard library as training text is a few modules, because all take half a minute."""
    library = Path(inspect.getfile(inspect)).parent
    files = [(name, library / name) for name in ("argparse.py", "ast.py", "inspect.py", *HELD_OUT)]
    assert all(is_held_out(name, 0.1) for name in HELD_OUT)
    monkeypatch.setattr("skipwise.data.text._stdlib_files", lambda: files)
    monkeypatch.setenv("SKIPWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the source of each block of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)


def command_lines(source: str) -> list[list[str]]:
    lines = source.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_page(
    page: Path, monkeypatch: pytest.MonkeyPatch, small: dict[str, str], short: dict[str, list[str]] | None = None
) -> None:
    """Run the blocks of a page.

    ``small`` replaces texts of the page; each must be there. ``no_skip`` has options that are added to a command, by name.
    """
    text = page.read_text(encoding="utf-8")
    assert not [shown for shown in small if shown not in text]
    names: dict[str, object] = {"__name__": "__main__"}
    for language, source in blocks(page):
        for shown, used in small.items():
            source = source.replace(shown, used)
        if language == "python":
            exec(compile(source, page.name, "exec"), names)
        elif language == "sh":
            for program, name, *words in command_lines(source):
                assert program == "skipwise", f"{page.name}: the tests run no {program}; show it as text"
                run(monkeypatch, name, *words, *(short or {}).get(name, []))
        elif language == "yaml" and (named := re.match(r"# (\S+\.yaml)\n", source)):
            Path(named[1]).write_text(source, encoding="utf-8")


def settings(**changes: object) -> list[str]:
    return [word for key, value in changes.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]


def conversations(file: Path, number: int = 40) -> None:
    """Conversations about the documents of ``corpus``, each longer than 400 bytes."""
    with file.open("w", encoding="utf-8") as lines:
        for item in range(number):
            question = "the model reads a long text " * 15 + f"What is {item}?"
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": f"It is {item}."}]
            lines.write(json.dumps({"messages": turns * 2}) + "\n")


def test_the_readme_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = [source for language, source in blocks(README) if language == "python"]
    model = checkpoint(Path("base"), window=64)
    text = corpus(Path("text"), words=200)
    source = source.replace("HuggingFaceTB/SmolLM2-135M", str(model)).replace("my_corpus/", str(text))
    source = source.replace('"4k"', "64").replace('"32k"', "512")
    source = source.replace("max_steps=200", "max_steps=2, use_cpu=True, report_to='none'")
    exec(compile(source, str(README), "exec"), {})


def test_every_command_line_of_the_readme_parses() -> None:
    lines = [words for language, source in blocks(README) if language == "sh" for words in command_lines(source)]
    commands = [words[1:] for words in lines if words[0] == "skipwise"]
    assert len(commands) >= 5
    group = get_command(app)
    Path("runs/mine/model").mkdir(parents=True)  # a path where nothing is would be refused
    for name, *words in commands:
        words = [w for w in words if w != "..."]
        group.commands[name].make_context(name, words or ["x"], resilient_parsing=False)


def test_every_page_with_blocks_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    pages = [page for page in DOCS.glob("*.md") if {"sh", "python"} & {name for name, _ in blocks(page)}]
    assert not [page.name for page in pages if page.stem != "extending" and f'DOCS / "{page.name}"' not in source]


def test_an_instruct_model_is_extended_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    families.model("qwen3", vocab_size=257, max_position_embeddings=400).save_pretrained("base")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained("base")
    conversations(Path("conversations.jsonl"))
    corpus(Path("long-texts"), words=300)
    Path("report.txt").write_text("the model reads a long text", encoding="utf-8")
    Path("small.yaml").write_text(
        "extends: qwen3-8b-24gb\ntarget: 1600\noriginal_length: 400\ntrain_length: 400\n"
        "training: {max_steps: 2, global_batch_size: 2, warmup_steps: 1}\n"
        "evaluation: {windows: [400], prompt_lengths: [400], num_prompts: 1, documents: 1, other_texts: false}\n"
    )
    small = {"Qwen/Qwen3-8B": "base", "qwen3-8b-24gb": "small.yaml", "32k,64k,128k": "400,800", "=200": "=2"}
    evaluate = ["--documents", "1", "--num-prompts", "1", "--tasks", "passkey"]
    run_page(DOCS / "guide-7b.md", monkeypatch, small, {"evaluate": evaluate})


def test_a_recipe_is_chosen_and_its_report_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus(Path("my_corpus"), words=2000)
    extend = {"training__max_steps": 2, "training__global_batch_size": 2, "training__per_device_train_batch_size": 2}
    measured = {"evaluation__windows": "[256,512]", "evaluation__num_prompts": 1, "evaluation__documents": 1}
    extend = settings(**extend, **measured, **QUICK)
    evaluate = ["--documents", "1", "--num-prompts", "1", "--tasks", "passkey", "--lengths", "256,512"]
    small = {"[:4096]": "[:1024]", "stride=128": "stride=256"}
    run_page(DOCS / "choose.md", monkeypatch, small, {"extend": extend, "evaluate": evaluate})


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra gguf")
def test_a_run_is_served_and_published(monkeypatch: pytest.MonkeyPatch) -> None:
    extend = {"training__max_steps": 1, "training__global_batch_size": 2, "training__per_device_train_batch_size": 2}
    measured = {"evaluation__windows": "[256]", "evaluation__num_prompts": 1, "evaluation__documents": 1}
    extend = settings(**extend, **measured, **QUICK)
    short = {"extend": extend, "check": ["--length", "300"], "export": ["--length", "300"]}
    run_page(DOCS / "serve.md", monkeypatch, {}, short)
    assert Path("mine.gguf").exists()


def test_pose_in_other_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("trl", "lightning"):
        pytest.importorskip(package)
    run_page(DOCS / "own-trainer.md", monkeypatch, {})
