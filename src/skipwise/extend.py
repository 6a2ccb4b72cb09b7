"""The main job, end to end: a recipe becomes a run folder with an extended checkpoint and its proof.

    documents -> tokens -> examples -> training -> checkpoint -> evaluation -> results -> report

Each stage leaves files that the next one reads, and is passed over when a resumed run finds them whole.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skipwise.coverage import coverage, coverage_record
from skipwise.data.examples import PoseDataset, collate
from skipwise.data.tokens import TokenStore, check_vocabulary, dropped_message, keep_long, split_by_name
from skipwise.errors import DataError, RecipeError
from skipwise.lengths import format_length
from skipwise.measure import (
    AUTOCAST,
    Measurement,
    identity,
    longest_documents,
    measure,
    passkey_measurement,
    perplexity_measurement,
    tokenise,
)
from skipwise.model.loading import (
    Extension,
    check_frequencies,
    load_config,
    load_model,
    load_tokenizer,
    plan_extension,
)
from skipwise.model.probe import probe_connectivity
from skipwise.model.saving import save_extended, write_card
from skipwise.recipe import Arm, Evaluation, Recipe
from skipwise.report.page import write_report
from skipwise.report.summary import summary_markdown, summary_table
from skipwise.results import (
    CoverageRecord,
    Record,
    TrainingRecord,
    append_record,
    drop_torn_record,
    read_records,
)
from skipwise.run_folder import RunFolder, open_run
from skipwise.training import choose_precision, train, training_arguments


@dataclass(frozen=True)
class Job:
    """A recipe with everything that can be known before training.

    Attributes:
        recipe: as given.
        extension: the model's RoPE, the target, the interpolation.
        train_length: window trained on, in tokens.
        tokenizer: the model's own.
        store: the tokens of the training text.
        train: indices into the store of the documents trained on.
        held_out: indices of the documents held out by name, of any length.
        dropped: how many documents were shorter than the shortest kept.
        device: where training and evaluation run.
    """

    recipe: Recipe
    extension: Extension
    train_length: int
    tokenizer: PreTrainedTokenizerBase
    store: TokenStore
    train: np.ndarray
    held_out: np.ndarray
    dropped: int
    device: torch.device

    @property
    def name(self) -> str:
        """A name for the run: model, target and method."""
        model = Path(self.recipe.model).name or "model"
        scheme = "" if self.recipe.positions.scheme == "pose" else f"-{self.recipe.positions.scheme}"
        return f"{model}-{format_length(self.extension.target_length)}-{self.recipe.interpolation}{scheme}"

    @property
    def precision(self) -> str:
        """Of training and evaluation: bf16 or fp16 autocast, or float32."""
        return choose_precision(self.recipe.training.precision, self.device)

    def dataset(self) -> PoseDataset:
        """Every example of the run, in order: index = step * batch_size + place in the batch."""
        recipe = self.recipe
        return PoseDataset(
            self.store,
            self.train,
            train_length=self.train_length,
            target_length=self.extension.target_length,
            tokenizer=self.tokenizer,
            positions=recipe.positions,
            examples=recipe.training.max_steps * recipe.training.batch_size,
            seed=recipe.seed,
            train_jumps=recipe.data.train_jumps,
            passkey=recipe.data.passkey,
        )


def prepare(recipe: Recipe, console: Console) -> Job:
    """Read the model's config, tokenise the text (cached) and split it; no weights are loaded yet.

    Raises:
        SkipwiseError: whatever of the model, the text and the recipe does not fit together.
    """
    config = load_config(recipe.model)
    extension = plan_extension(
        config,
        target_length=recipe.target,
        original_length=recipe.original_length,
        interpolation=recipe.interpolation,
        existing_rope=recipe.existing_rope,
    )
    train_length = recipe.train_length or extension.rope.original_length
    if train_length > extension.target_length:
        raise RecipeError(
            f"train_length {train_length:,} must not exceed the target {extension.target_length:,}; lower it"
        )
    tokenizer = load_tokenizer(recipe.model)
    store = _tokenise(recipe, recipe.data.source, tokenizer, console)
    check_vocabulary(store, config.vocab_size)
    train, held_out = split_by_name(store, recipe.data.held_out)
    needed = extension.target_length if recipe.positions.scheme == "full" else train_length
    long = keep_long(store, max(recipe.data.min_tokens or 0, needed))
    kept = np.intersect1d(train, long)
    if len(kept) == 0:
        raise DataError(
            f"of {len(store):,} documents none of {needed:,} tokens or more is left to train on after holding out "
            f"{len(held_out):,}; give more text, or lower data.held_out"
        )
    training_arguments(recipe.training, Path("."), recipe.seed)  # an unknown field is refused before any work
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    job = Job(
        recipe, extension, train_length, tokenizer, store, kept, held_out, len(train) - len(kept), device
    )
    job.dataset()  # so is a plan that the lengths cannot meet
    return job


def describe(job: Job, console: Console) -> None:
    """Print the plan: documents, steps, tokens, and the positions of three examples."""
    recipe, ext, data = job.recipe, job.extension, job.store
    steps, batch = recipe.training.max_steps, recipe.training.batch_size
    tokens = steps * batch * job.dataset().plans(np.arange(1)).position_ids().shape[1]
    console.print(
        f"[bold]{recipe.model}[/]: {ext.rope.original_length:,} -> {ext.target_length:,} tokens "
        f"(x{ext.factor:g}, {recipe.interpolation}, {recipe.positions.scheme})"
    )
    console.print(
        f"text: {recipe.data.source}, {len(data):,} documents, {int(data.lengths.sum()):,} tokens; "
        f"{len(job.held_out):,} held out by name"
    )
    shortest = max(recipe.data.min_tokens or 0, job.train_length)
    console.print(dropped_message(len(job.train) + job.dropped, len(job.train), shortest))
    console.print(_assumed(job.tokenizer))
    console.print(
        f"training: {steps:,} steps of {batch:,} x {tokens // steps // batch:,} tokens = {tokens:,} tokens, "
        f"{job.precision} on {job.device.type}"
    )


def _assumed(tokenizer: PreTrainedTokenizerBase) -> str:
    """What follows from the special tokens that the tokenizer has and lacks."""
    first = tokenizer("a").input_ids[:1]
    begins = tokenizer.bos_token is not None and first == [tokenizer.bos_token_id]
    beginning = (
        f"each document begins with {tokenizer.bos_token}" if begins else "documents begin without a BOS"
    )
    end = (
        f"; {tokenizer.eos_token} ends an answer"
        if tokenizer.eos_token
        else "; no EOS, answers end by length"
    )
    return f"tokenizer: {beginning}{end}; no padding is needed, every example is full"


def describe_examples(job: Job, console: Console) -> None:
    """Print the position plans of the first three examples, chunk by chunk."""
    plans = job.dataset().plans(np.arange(3))
    for example in range(3):
        parts, start = [], 0
        chunks = zip(plans.lengths[example], plans.skips[example], plans.offsets[example], strict=True)
        for length, skip, offset in list(chunks)[:4]:
            parts.append(
                f"positions {start + skip:,}..{start + skip + length - 1:,} <- text from {start + offset:,}"
            )
            start += length
        more = plans.lengths.shape[1] - len(parts)
        console.print(f"example {example}: " + "; ".join(parts) + (f"; {more:,} chunks more" if more else ""))


def extend(recipe: Recipe, *, out: Path | None, resume: bool, console: Console) -> RunFolder:
    """Run the whole job into a folder of its own and return it.

    Raises:
        SkipwiseError: a user's mistake, or training that cannot go on; what was written stays intact.
    """
    job = prepare(recipe, console)
    documents, names = evaluation_documents(job, console)
    plans = {arm: _measurements(job, arm, documents) for arm in recipe.evaluation.arms}
    run = open_run(recipe, out, job.name, resume=resume)
    describe(job, console)
    console.print(f"run folder: {run.path}")
    run.record(model=_model_facts(job), data=_data_facts(job), evaluation={"documents": names})
    if drop_torn_record(run.results):
        console.print("[yellow]the last record was cut off by a kill; it is measured again[/]")
    if not run.model.exists():
        _train_and_save(job, run, resume, console)
    _record_coverage(job, run)
    _evaluate(job, plans, run, console)
    records = read_records(run.results)
    write_report([run.path])
    _write_card(job, run, records)
    console.print(summary_table(records))
    console.print(f"report: {run.report}")
    console.print(f"model:  {run.model}")
    return run


def _train_and_save(job: Job, run: RunFolder, resume: bool, console: Console) -> None:
    model = load_model(job.recipe.model, job.extension, device=job.device)
    probe = probe_connectivity(model, job.extension.target_length, precision=AUTOCAST[job.precision])
    run.record(probe=probe.as_dict())
    console.print(f"probe: chunks attend to each other ({probe.attention}, {probe.precision})")
    arm = job.recipe.positions.scheme

    def keep(log: dict[str, float]) -> None:
        append_record(run.results, TrainingRecord(arm=arm, **log))  # type: ignore[arg-type]

    summary = train(
        model,
        job.dataset(),
        collate,
        job.recipe.training,
        folder=run.checkpoints,
        seed=job.recipe.seed,
        resume=resume,
        on_log=keep,
    )
    run.record(training=vars(summary) | {"precision": job.precision})
    check_frequencies(model, job.extension)
    save_extended(model, job.tokenizer, job.extension, run.model)


def _record_coverage(job: Job, run: RunFolder) -> None:
    """Put the chance of each relative distance beside the results, once a run."""
    if any(isinstance(record, CoverageRecord) for record in read_records(run.results)):
        return
    rule = job.recipe.positions
    curve = coverage(
        job.train_length,
        job.extension.target_length,
        rule.chunks,
        scheme=rule.scheme,
        lengths=rule.lengths,
        seed=job.recipe.seed,
    )
    names = {"pose": f"{rule.chunks} chunks", "randpos": "RandPos", "full": "full-length", "short": "short"}
    append_record(
        run.results, coverage_record(coverage(job.train_length, curve.target_length, 1), "original")
    )
    append_record(run.results, coverage_record(curve, names[rule.scheme]))


def _evaluate(job: Job, plans: dict[Arm, list[Measurement]], run: RunFolder, console: Console) -> None:
    """Measure every arm; what the results hold already is not measured again."""
    known = {identity(record) for record in read_records(run.results)}
    for arm, plan in plans.items():
        missing = [m for m in plan if m.identity not in known]
        if missing:
            model = _arm_model(job, run, arm).eval()
            measure(model, missing, _label(job, arm), console, lambda r: append_record(run.results, r))


def _label(job: Job, arm: Arm) -> str:
    """The arm's name in the results: a trained one is called after its scheme."""
    return job.recipe.positions.scheme if arm == "trained" else arm


def _measurements(job: Job, arm: Arm, documents: list[np.ndarray]) -> list[Measurement]:
    """What is measured of one arm; settings that cannot be measured are refused here, before training."""
    rule, target = job.recipe.evaluation, job.extension.target_length
    original = job.extension.rope.original_length
    label, data = _label(job, arm), rule.source or job.recipe.data.source
    plan = []
    windows = evaluation_windows(rule, original, target)
    for window in windows:
        stride = rule.stride or min(max(original // 2, target // 16), window // 2)
        plan.append(perplexity_measurement(label, documents, window, stride, job.precision, data))
    if rule.passkey_trials:
        for length in rule.passkey_lengths or windows:
            plan.append(
                passkey_measurement(
                    label, job.tokenizer, length, rule.passkey_trials, job.recipe.seed, job.precision
                )
            )
    return plan


def evaluation_windows(rule: Evaluation, original: int, target: int) -> list[int]:
    """The windows asked for, else the original length doubled up to the target, which is always in."""
    if rule.windows:
        return sorted(set(rule.windows))
    doubled = [original * 2**k for k in range(32) if original * 2**k < target]
    return [*doubled, target]


def evaluation_documents(job: Job, console: Console) -> tuple[list[np.ndarray], list[str]]:
    """The documents measured on, cut to ``tokens_per_document``, and their names.

    What training held out, or all of ``evaluation.source``; the longest first.

    Raises:
        DataError: nothing is held out.
    """
    rule = job.recipe.evaluation
    store, candidates = job.store, job.held_out
    if rule.source:
        store = _tokenise(job.recipe, rule.source, job.tokenizer, console)
        check_vocabulary(store, load_config(job.recipe.model).vocab_size)
        candidates = np.arange(len(store))
    window = evaluation_windows(rule, job.extension.rope.original_length, job.extension.target_length)[-1]
    limit = rule.tokens_per_document or 2 * window
    return longest_documents(
        store, candidates, window=window, most=rule.documents, limit=limit, console=console
    )


def _arm_model(job: Job, run: RunFolder, arm: Arm) -> PreTrainedModel:
    if arm == "original":
        return load_model(job.recipe.model, device=job.device)
    if arm == "pi-only":
        return load_model(job.recipe.model, job.extension, device=job.device)
    return load_model(str(run.model), device=job.device)


def _tokenise(
    recipe: Recipe, source: str, tokenizer: PreTrainedTokenizerBase, console: Console
) -> TokenStore:
    data = recipe.data
    return tokenise(
        source,
        tokenizer,
        console,
        cache=data.cache,
        text_field=data.text_field,
        split=data.split,
        workers=data.workers,
    )


def _model_facts(job: Job) -> dict[str, object]:
    extension = job.extension
    return {
        "name": job.recipe.model,
        "original_length": extension.rope.original_length,
        "target_length": extension.target_length,
        "train_length": job.train_length,
        "factor": extension.factor,
        "interpolation": extension.interpolation,
    }


def _data_facts(job: Job) -> dict[str, object]:
    return {
        "source": job.recipe.data.source,
        "fingerprint": job.store.fingerprint,
        "documents": len(job.store),
        "tokens": int(job.store.lengths.sum()),
        "kept": len(job.train),
        "dropped": job.dropped,
        "held_out": len(job.held_out),
    }


def _write_card(job: Job, run: RunFolder, records: Sequence[Record]) -> None:
    facts = run.read()
    extension = job.extension
    write_card(
        run.model,
        title=f"{job.recipe.model}, extended from {extension.rope.original_length:,} to "
        f"{extension.target_length:,} tokens",
        facts={
            "method": f"{job.recipe.positions.scheme}, trained on windows of {job.train_length:,} tokens",
            "interpolation": f"{extension.interpolation} x{extension.factor:g}",
            "text": f"{job.recipe.data.source} (fingerprint {job.store.fingerprint[:16]})",
            "seed": str(job.recipe.seed),
            "made by": f"skipwise {facts.get('versions', {}).get('skipwise', '')}, {time.strftime('%Y-%m-%d')}",
        },
        table=summary_markdown(list(records)),
        figure=run.figures / "perplexity.png",
    )
