"""Models and a specification -> a folder with one evaluation, which the same command goes on with.

``run.json`` says what was asked, ``results.jsonl`` what was answered. Several machines take a shard each, and ``merge``
puts the shards together.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from skipwise.data.ruler import read_ruler_data
from skipwise.errors import DataError, RunError, counted, out_of_room
from skipwise.evaluation.batches import Batch, Prompts
from skipwise.evaluation.benchmarks import Benchmarks, FoundBenchmarks
from skipwise.evaluation.forecast import measured_here, told_measuring
from skipwise.evaluation.models import EvaluatedModel, assumed_length, other_base
from skipwise.evaluation.other_text import longest_segment, other_text
from skipwise.evaluation.runner import answered, missing, plan_prompts, plan_readings, read_texts
from skipwise.evaluation.same_model import require_served
from skipwise.evaluation.server import Server
from skipwise.evaluation.specification import Specification, is_ruler
from skipwise.evaluation.texts import EvaluationText
from skipwise.model.config import load_config
from skipwise.model.loading import load_tokenizer
from skipwise.model.origin import Origin, read_origin
from skipwise.model.precision import default_device
from skipwise.results.files import new_folder
from skipwise.results.records import Measured, append_record, drop_cut_off_record, read_records
from skipwise.results.run_folder import RunFolder

Texts = dict[str, list[EvaluationText]]  # what each model reads, by its label


@dataclass(frozen=True)
class Plan:
    """What is measured of each model, by its label."""

    models: Sequence[EvaluatedModel]
    texts: Texts
    batches: dict[str, list[Batch]]
    ruler_data: str = ""  # the fingerprint of its texts

    @property
    def requests(self) -> int:
        """How many records there will be."""
        return sum(len(batch.requests) for each in self.batches.values() for batch in each)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Digests of the texts, by which the same command knows that they are the same."""
        texts = {f"text {text.source} for {label}": text.digest for label, read in self.texts.items() for text in read}
        return texts | ({"text of RULER": self.ruler_data} if self.ruler_data else {})

    def only(self, shard: tuple[int, int]) -> "Plan":
        """Return part i of n of the requests of each model."""
        return replace(self, batches={label: missing(batches, (), shard) for label, batches in self.batches.items()})

    def require_work(self, shard: tuple[int, int]) -> None:
        """Require something to measure, in all and in part i of n: a task may fit none of the lengths."""
        if not self.requests:
            raise DataError(
                "nothing is left to measure: no task fits these lengths; give longer --lengths, or other --tasks"
            )
        if not self.only(shard).requests:
            raise DataError(
                f"part {shard[0]} of {shard[1]} has none of the {counted(self.requests, 'record')}; give fewer parts (--shard)"
            )

    def forecast(self, precision: str, *, served: bool = False) -> str:
        """How long measuring takes on this machine without the benchmarks, by a short timing of each model's layers.

        Of what a server answers it says how much is asked: how fast the server is, only asking it would tell.
        """
        seconds, asked = Counter[str](), list[Prompts]()
        for model in self.models:
            here = self.batches[model.label]
            if served and not model.control:
                asked += [batch for batch in here if isinstance(batch, Prompts)]
                here = [batch for batch in here if not isinstance(batch, Prompts)]
            if here:
                seconds.update(measured_here(here, load_config(model.name), precision, default_device()))
        told = told_measuring(dict(seconds)) if seconds else "nothing is measured but the benchmarks"
        if not asked:
            return told
        prompts, tokens = sum(len(batch.requests) for batch in asked), sum(batch.tokens for batch in asked)
        beside = f"; here, {told}" if seconds else ""
        return f"the server is asked {counted(prompts, 'prompt')} of about {tokens:,} tokens together{beside}"


def evaluate(
    models: Sequence[EvaluatedModel],
    specification: Specification,
    *,
    shard: tuple[int, int] = (1, 1),
    benchmarks: Benchmarks | None = None,
    server: Server | None = None,
    out: Path | None = None,
    console: Console,
) -> RunFolder:
    """Measure every model and base into the folder ``out``, or go on where a stopped evaluation ended.

    ``shard`` is (i, n): part i of n of the documents and prompts is measured here; the first part runs the benchmarks
    too. A ``server`` answers the prompts of the first model, which it has to serve; all else is measured here.
    """
    folder = _folder(out, models, specification)
    plan = plan_models(models, specification, console)
    if not benchmarks:
        plan.require_work(shard)
    with ExitStack() as context:
        tasks: dict[str, FoundBenchmarks] = {}
        if benchmarks and shard[0] == 1:
            tasks = {model.label: context.enter_context(benchmarks.found(model)) for model in models}
        if server:
            require_served(server, models[0], specification)
        facts = {
            "evaluation": _asked(models, specification),
            "fingerprints": plan.fingerprints,
            "records": plan.requests,
        }
        folder.begin(**facts)  # with them, so that a kill leaves no folder that says nothing
        folder.require_same(plan.fingerprints)
        folder.record(**facts)
        if drop_cut_off_record(folder.results):
            cut_off = f"{folder.results}: the last record was cut off by a kill; it is measured again"
            console.print(cut_off, style="yellow", soft_wrap=True)
        console.print(f"folder: {folder.path}", soft_wrap=True)
        records = read_records(folder.results)
        for model in models:
            load = partial(model.load, specification.precision)
            answered(load, plan.batches[model.label], folder.results, console, None if model.control else server, shard)
            if found := tasks.get(model.label):
                found.run(specification.precision, records, partial(append_record, folder.results), console)
    return folder


def plan_models(models: Sequence[EvaluatedModel], specification: Specification, console: Console) -> Plan:
    """Plan what is measured of every model and base, and say what it cannot show, and what it can."""
    for model in models:
        if model.control:  # the file of a downloaded model may name any
            console.print(f"base: {model.name} is loaded and measured too; --base none leaves it out", soft_wrap=True)
    for model in models:
        for doubt in filter(None, (assumed_length(model), other_base(model, models))):
            console.print(doubt, style="yellow", soft_wrap=True)
    origins = [origin for model in models if (origin := read_origin(model.name))]
    texts = _texts(models, specification, origins, console)
    batches = {model.label: _batches(model, models, specification, texts, console) for model in models}
    if specification.documents:
        for model in models:
            batches[model.label] += _other_batches(model, models, specification, origins, console)
    for claim in specification.claims():
        console.print(claim, soft_wrap=True)
    for warning in specification.warnings(models, texts[models[0].label]):
        console.print(warning, style="yellow")
    ruler = read_ruler_data(specification.ruler_data).fingerprint if any(map(is_ruler, specification.tasks)) else ""
    return Plan(models, texts, batches, ruler)


def merge(parts: Sequence[Path], out: Path) -> RunFolder:
    """Put the shards of one evaluation together in a new folder; those that contradict each other are refused.

    Shards may be missing: the page of the new folder then has the title "Unfinished" and says how many records it has.
    """
    shared = ("evaluation", "fingerprints", "records")
    folders = [RunFolder(part) for part in parts]
    facts: list[dict[str, Any]] = [{key: told.get(key) for key in shared} for told in map(RunFolder.read, folders)]
    for its in facts:
        its["evaluation"] = _given(its["evaluation"] or {})  # a shard that was begun earlier lacks newer settings
    for folder, its in zip(folders, facts, strict=True):
        if "models" not in its["evaluation"]:
            raise RunError(f"{folder.path} holds no evaluation (run.json); give folders that skipwise evaluate wrote")
        for key, first in facts[0].items():
            if its[key] != first:
                raise RunError(
                    f"{folder.path} and {folders[0].path} differ in {_first_difference(its[key], first)}; "
                    "only shards of the same evaluation can be merged"
                )
    merged: dict[str, Measured] = {}
    for folder in folders:
        for record in read_records(folder.results):
            if isinstance(record, Measured) and _answer(merged.setdefault(record.key, record)) != _answer(record):
                raise RunError(
                    f"{folder.path} and an earlier part answer the same request differently ({record.key}: "
                    f"{_answer(record)}); measure one of them again"
                )
    whole = RunFolder(out)
    try:
        if out.is_dir() and not any(out.iterdir()):  # an empty folder gives way
            out.rmdir()
        with new_folder(out) as drafted:  # a merge that a full disk or a kill ends is repeated
            draft = RunFolder(drafted)
            draft.begin(**facts[0])
            append_record(draft.results, *merged.values())
    except (OSError, ValueError) as error:
        if out_of_room(error):
            raise
        raise RunError(f"{out} cannot be written: {error}; give another --out") from None
    return whole


def _answer(record: Any) -> dict[str, Any]:
    """The fields of a record without how long it took."""
    return {key: value for key, value in asdict(record).items() if key != "seconds"}


def _given(asked: dict[str, Any]) -> dict[str, Any]:
    """The settings that are not None: an evaluation that was begun earlier lacks newer ones."""
    return {key: value for key, value in asked.items() if value is not None}


def _first_difference(ours: Any, theirs: Any) -> str:
    """Return the first setting that differs, and both values; of models their labels, or a setting of one of them."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**theirs, **ours}:
            one, other = ours.get(key), theirs.get(key)
            if one != other and key == "models":
                labels = [[model["label"] for model in models or []] for models in (one, other)]
                if labels[0] != labels[1]:
                    return f"models ({', '.join(labels[0])}; {', '.join(labels[1])})"
                pairs = zip(labels[0], ours[key], theirs[key], strict=True)
                return next(f"{label}: {_first_difference(a, b)}" for label, a, b in pairs if a != b)
            if one != other:
                return f"{key} ({one!r}, {other!r})"
    return f"({ours!r}, {theirs!r})"


def _folder(out: Path | None, models: Sequence[EvaluatedModel], specification: Specification) -> RunFolder:
    """The folder of this evaluation: a new one, or one that was begun with the same specification."""
    folder = RunFolder(out or Path("evaluations") / models[0].label.replace("/", "-"))
    if not folder.facts.exists():
        if folder.results.is_file():
            raise RunError(f"{folder.path} has lost its run.json; restore it, or give another --out")
        if not folder.is_free:
            raise RunError(f"{folder.path} exists and is no evaluation of skipwise; give another --out")
        return folder
    asked = folder.read().get("evaluation")
    if not (isinstance(asked, dict) and "models" in asked):
        raise RunError(f"{folder.path} holds a run, and no evaluation; give another --out")
    now = _asked(models, specification)
    begun = {model["label"]: model.get("weights") for model in asked["models"]}
    if changed := [model.label for model in models if begun.get(model.label, model.weights) != model.weights]:
        raise RunError(
            f"the weights of {', '.join(changed)} have changed since {folder.path} was begun; give another --out to "
            "measure them"
        )
    if _given(asked) != _given(now):
        raise RunError(
            f"{folder.path} was begun with other settings: {_first_difference(now, asked)}, this command's "
            "and the folder's; give the same settings to go on, or another --out"
        )
    return folder


def _asked(models: Sequence[EvaluatedModel], specification: Specification) -> dict[str, Any]:
    return {**specification.as_dict(), "models": [model.as_dict() for model in models]}


def _texts(
    models: Sequence[EvaluatedModel], specification: Specification, origins: Sequence[Origin], console: Console
) -> Texts:
    """What each model reads, in its own tokens; a base that reads other ones than its extended model is refused."""
    texts: Texts = {}
    for number, model in enumerate(models):
        told = console if number == 0 else Console(quiet=True)
        texts[model.label] = read_texts(specification, model.name, origins, told)
    digests = {label: [one.digest for one in each] for label, each in texts.items()}
    if any(digests[model.label] != digests[models[0].label] for model in models if not model.control):
        console.print(
            "the models read different tokens (tokenizers or lengths): their perplexities are not comparable",
            style="yellow",
        )
    for model in models:
        if model.base and digests[model.label] != digests[model.base]:
            raise DataError(
                f"{model.label} and {model.base} read the text as different tokens, so their losses cannot be "
                "compared; give the model's own base by --base, or none by --base none"
            )
    return texts


def _other_batches(
    model: EvaluatedModel,
    models: Sequence[EvaluatedModel],
    specification: Specification,
    origins: Sequence[Origin],
    console: Console,
) -> list[Batch]:
    """The text of other kinds that ships with the package, inside the original window; a base reads it as its models do.

    What one of the models was trained on, no other reads, so that all of them are compared on the same documents.
    """
    told = console if model is models[0] else Console(quiet=True)
    windows = {other.original for other in models if other.base == model.label}
    windows |= set() if model.control else {model.original}
    windows = {longest_segment(window) for window in windows}  # two long ones are read as one
    tokenizer = load_tokenizer(model.name)
    texts = [other_text(tokenizer, window, origins, told) for window in sorted(windows)]
    return list(plan_readings(specification, model, texts))


def _batches(
    model: EvaluatedModel,
    models: Sequence[EvaluatedModel],
    specification: Specification,
    texts: Texts,
    console: Console,
) -> list[Batch]:
    """What is measured of one model; of a base only its reading in windows of its own original length, its passkeys at the
    longest length inside it, and RULER at every length inside it."""
    batches: list[Batch] = []
    for text in texts[model.label]:
        own = {model.original} | {other.original for other in models if other.base == model.label}
        own |= set() if model.control else set(text.windows)
        windows = sorted({min(window, text.windows[-1]) for window in own})
        batches += plan_readings(specification, model, [text], windows)
    asked = [specification]
    if model.control:
        specification = replace(specification, server=None)
        inside = tuple(sorted(length for length in specification.prompt_lengths if length <= model.original))
        passkey = tuple(task for task in specification.tasks if task == "passkey")
        asked = [
            replace(specification, tasks=passkey, prompt_lengths=inside[-1:]),
            replace(specification, tasks=tuple(filter(is_ruler, specification.tasks)), prompt_lengths=inside),
        ]
    for prompts in asked:
        if prompts.tasks and prompts.prompt_lengths:
            batches += plan_prompts(prompts, model, load_tokenizer(model.name), console)
    return batches
