import copy
import gc
import io
import math
import re
import shutil
import time
import weakref
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback

from skipwise.errors import NonFiniteLossError, RecipeError, RunError, TrainingError
from skipwise.model.checkpointing import NAME
from skipwise.model.teacher import Teacher
from skipwise.recipes import schema as recipe
from skipwise.training import checkpoints, guards, progress
from skipwise.training import progress as display
from skipwise.training import trainer as training

pytestmark = pytest.mark.usefixtures("frozen_imports")
VOCABULARY, LENGTH = 32, 8


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,  # far from uniform, so that no two examples have the same loss
    )
    return LlamaForCausalLM(config)


class Keyed(torch.utils.data.Dataset):
    """Example i is a function of i alone; i % 5 of its labels are masked."""

    def __init__(self, examples: int = 10_000) -> None:
        self.examples = examples
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        self.asked.append(i)
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(i))
        labels = ids.clone()
        labels[: i % 5] = -100
        positions = torch.arange(LENGTH)
        return {
            "input_ids": ids,
            "labels": labels,
            "position_ids": positions,
            "attention_mask": torch.ones_like(positions),
        }


def collate(examples):
    return {key: torch.stack([example[key] for example in examples]) for key in examples[0]}


def settings(**changes) -> recipe.Training:
    values = {"max_steps": 4, "batch_size": 4, "precision": "float32", "learning_rate": 1e-2, "warmup_steps": 0}
    return recipe.Training(**{**values, **changes})


def run(
    folder,
    model=None,
    dataset=None,
    *,
    collate=collate,
    resume=False,
    on_log=None,
    on_step=None,
    teacher=None,
    shown=False,
    **changes,
):
    model = model or tiny_model()
    dataset = Keyed() if dataset is None else dataset
    summary = training.train(
        model,
        dataset,
        collate,
        settings(**changes),
        folder=folder,
        seed=0,
        resume=resume,
        on_log=on_log,
        on_step=on_step,
        teacher=teacher,
        progress=shown,
    )
    return model, summary


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", ["__init__", "create_optimizer", "create_scheduler"])
def test_what_trainer_cannot_build_is_a_mistake_in_the_settings(tmp_path, monkeypatch, name):
    def fail(*args, **kwargs):
        raise ImportError("no such package")

    monkeypatch.setattr(Trainer, name, fail)
    with pytest.raises(RecipeError, match="training: no such package"):
        run(tmp_path)


def test_an_error_of_training_itself_stays_what_it_is(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("in the middle")

    monkeypatch.setattr(Trainer, "training_step", fail)
    with pytest.raises(ValueError, match="in the middle"):
        run(tmp_path)


def test_training_that_a_callback_ends_early_is_not_taken_for_finished(tmp_path, monkeypatch):
    class Stopping(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    start = training._Trainer.__init__

    def stopped(trainer, *given, **options):
        start(trainer, *given, **options)
        trainer.add_callback(Stopping())

    monkeypatch.setattr(training._Trainer, "__init__", stopped)
    with pytest.raises(TrainingError, match="training ended without an error after step 2 of 4; pass --resume"):
        run(tmp_path, save_steps=1)
    monkeypatch.undo()
    assert run(tmp_path, save_steps=1, resume=True)[1].steps == 4


def test_examples_come_in_their_place_in_the_run(tmp_path):
    dataset = Keyed()
    run(tmp_path, dataset=dataset, max_steps=3, per_device_train_batch_size=2)
    assert dataset.asked == list(range(12))


def without_positions(examples):
    """Collate only the fields that a collator of another library knows of."""
    return {name: values for name, values in collate(examples).items() if name != "position_ids"}


class Contiguous(Keyed):
    """Examples without positions: nothing skips, so a batch needs none."""

    def __getitem__(self, i):
        example = super().__getitem__(i)
        del example["position_ids"]
        return example


def test_a_collator_that_drops_the_positions_is_refused(tmp_path):
    model = tiny_model()
    before = weights(model)
    message = "fields input_ids, labels, attention_mask: collate dropped the position_ids.*give skipwise.collate"
    with pytest.raises(RecipeError, match=message):
        run(tmp_path, model, collate=without_positions)
    assert same(weights(model), before)
    assert not list(tmp_path.iterdir())


def test_examples_without_positions_are_trained(tmp_path):
    _, summary = run(tmp_path, dataset=Contiguous())
    assert summary.steps == 4


def test_records_count_tokens_and_the_last_step_is_logged(tmp_path):
    records = []
    _, summary = run(tmp_path, on_log=records.append, max_steps=5, logging_steps=2)
    assert [record["step"] for record in records] == [2, 4, 5]
    assert [record["tokens"] for record in records] == [2 * 32, 4 * 32, 5 * 32]
    assert records[0].keys() == {"step", "loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second"}
    assert all(isinstance(record["grad_norm"], float) for record in records)
    assert (summary.steps, summary.tokens, summary.loss) == (5, 160, records[-1]["loss"])
    assert summary.tokens_per_second > 0


def test_the_last_step_has_a_complete_checkpoint(tmp_path):
    model, _ = run(tmp_path, max_steps=5, save_steps=2, save_total_limit=2)
    assert checkpoints.latest_complete(tmp_path) == tmp_path / "checkpoint-5"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-5"]
    assert same(weights(LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-5")), weights(model))


def test_a_removal_that_was_cut_off_after_the_last_save_is_finished_by_a_resume(tmp_path):
    run(tmp_path, max_steps=4, save_steps=2, save_total_limit=1)
    torso = tmp_path / "checkpoint-2"
    torso.mkdir()
    (torso / "optimizer.pt").touch()
    run(tmp_path, max_steps=4, save_steps=2, save_total_limit=1, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


def test_a_resume_records_the_losses_of_a_run_that_was_not_stopped(tmp_path):
    """Also where checkpoints lie between two logged steps: Trainer keeps no running loss in them."""
    rules = {"max_steps": 6, "save_steps": 3, "logging_steps": 2, "save_total_limit": 3}
    whole, resumed = [], []
    run(tmp_path, on_log=whole.append, **rules)
    shutil.rmtree(tmp_path / "checkpoint-6")
    run(tmp_path, on_log=resumed.append, resume=True, **rules)
    assert [record["step"] for record in whole] == [2, 3, 4, 6]
    told = [[(record["step"], record["loss"]) for record in records] for records in (whole, resumed)]
    assert told[1] == told[0][2:]


def token_mean(model, examples) -> float:
    """The oracle: the sum of nats over all labels that count, over their number."""
    total = count = 0.0
    for example in examples:
        logits = model(input_ids=example["input_ids"][None]).logits[0, :-1]
        labels = example["labels"][1:]
        total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
        count += (labels != -100).sum().item()
    return total / count


@pytest.mark.parametrize("micro", [1, 2, 8])
def test_loss_is_the_token_mean_over_the_global_batch(tmp_path, micro):
    records, dataset = [], Keyed()
    expected = token_mean(tiny_model(), [dataset[i] for i in range(8)])
    one_step = {"max_steps": 1, "batch_size": 8, "max_grad_norm": 1e9, "optim": "sgd"}
    model, _ = run(tmp_path / "micro", on_log=records.append, per_device_train_batch_size=micro, **one_step)
    assert records[0]["loss"] == pytest.approx(expected, rel=1e-6)
    whole, _ = run(tmp_path / "whole", per_device_train_batch_size=8, **one_step)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-7)


def test_a_mean_of_micro_batch_means_would_be_seen(tmp_path, monkeypatch):
    """The mutation of the test above: without the count of labels Trainer averages the micro-batches' means."""
    monkeypatch.setattr(training._Trainer, "_get_num_items_in_batch", lambda *args: None)
    records = []
    run(tmp_path, on_log=records.append, max_steps=1, batch_size=8, per_device_train_batch_size=1)
    expected = token_mean(tiny_model(), [Keyed()[i] for i in range(8)])
    assert records[0]["loss"] != pytest.approx(expected, rel=1e-4)


def test_bf16_autocast_keeps_float32_weights_and_the_stock_model(tmp_path):
    records, spied = [], []
    model = tiny_model()
    model.lm_head.register_forward_hook(lambda module, args, output: spied.append(output.dtype))
    run(tmp_path, model, on_log=records.append, precision="bf16")
    assert set(spied) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {t.dtype for state in torch.load(tmp_path / "checkpoint-4/optimizer.pt")["state"].values()
            for t in state.values()} == {torch.float32}  # fmt: skip
    assert model.forward.__func__ is LlamaForCausalLM.forward
    assert model.config.use_cache
    assert model(input_ids=torch.zeros(1, 2, dtype=torch.int64)).logits.dtype == torch.float32
    assert math.isfinite(records[-1]["loss"])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_trained_model_that_nothing_names_leaves_memory_at_once(tmp_path, precision: str) -> None:
    """What is measured next needs the room, and the collector of cycles may come late."""
    gc.collect()
    gc.disable()
    try:
        model, _ = run(tmp_path, precision=precision)
        known = weakref.ref(model)
        del model
        assert known() is None
    finally:
        gc.enable()


def test_a_forward_that_was_set_before_training_stays(tmp_path) -> None:
    model, called = tiny_model(), []
    stock = model.forward

    def forward(*args, **kwargs):
        called.append(len(args))
        return stock(*args, **kwargs)

    model.forward = forward
    run(tmp_path, model, precision="bf16")
    assert model.forward is forward
    assert called


# --- what stops it ----------------------------------------------------------------------------------------


class PoisonedLoss:
    """Turns the loss of forward pass ``at`` into ``value`` and keeps the weights from before it."""

    def __init__(self, model, at: int, value: float) -> None:
        self.at, self.value, self.calls, self.before = at, value, 0, {}
        model.register_forward_hook(self)

    def __call__(self, model, args, output):
        self.calls += 1
        if self.calls == self.at:
            self.before = weights(model)
            output.loss = output.loss * self.value
        return output


@pytest.mark.parametrize(
    ("micro", "value", "precision"), [(4, math.nan, "float32"), (2, math.inf, "float32"), (1, math.nan, "bf16")]
)
def test_non_finite_loss_stops_before_the_update(tmp_path, micro, value, precision):
    model = tiny_model()
    passes = 4 // micro
    poison = PoisonedLoss(model, at=5 * passes + 1, value=value)  # the first micro-batch of step 6
    message = "step 6: loss is not finite; nothing of this step is saved; .*; checkpoint 4 is intact"
    changes = {"max_steps": 8, "save_steps": 2, "per_device_train_batch_size": micro, "precision": precision}
    with pytest.raises(NonFiniteLossError, match=message):
        run(tmp_path, model, **changes)
    assert poison.calls == 6 * passes
    assert same(weights(model), poison.before)
    assert checkpoints.latest_complete(tmp_path) == tmp_path / "checkpoint-4"


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_non_finite_gradient_stops_before_the_update(tmp_path, max_grad_norm):
    model, calls = tiny_model(), []
    before = weights(model)

    def poison(gradient):
        calls.append(1)
        return gradient * math.nan

    model.lm_head.weight.register_hook(poison)
    with pytest.raises(NonFiniteLossError, match=r"step 1: the gradient norm is not finite.*no checkpoint yet"):
        run(tmp_path, model, max_grad_norm=max_grad_norm, per_device_train_batch_size=4)
    assert calls == [1]
    assert same(weights(model), before)


def test_without_the_guard_trainer_goes_on_with_nan_weights(tmp_path, monkeypatch):
    """The mutation of the tests above."""
    monkeypatch.setattr(guards.NonFiniteGuard, "check", lambda *args: None)
    model = tiny_model()
    PoisonedLoss(model, at=2, value=math.nan)
    run(tmp_path, model, per_device_train_batch_size=4)
    assert not all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_says_what_was_held(tmp_path, error):
    model = tiny_model()

    def fail(*args):
        raise error

    model.lm_head.register_forward_pre_hook(fail)
    message = (
        r"step 1: out of memory with 4 x 8 tokens.*; choose --resume --set training.gradient_checkpointing=true, or "
        r"training.per_device_train_batch_size=2 in a new run \(another --out\); there is no checkpoint yet"
    )
    with pytest.raises(TrainingError, match=message):
        run(tmp_path, model, per_device_train_batch_size=4)


def test_out_of_memory_before_the_first_batch_says_so(tmp_path):
    args, state = SimpleNamespace(output_dir=tmp_path, **{NAME: False}), SimpleNamespace(global_step=0)
    trainer = SimpleNamespace(micro_batch=(0, 0), args=args, state=state, model=None)
    message = r"step 1: out of memory before the first forward pass; choose --lora or lora\.base=4bit in a new run"
    with pytest.raises(TrainingError, match=message), guards.memory_errors(trainer):
        raise torch.OutOfMemoryError


def test_out_of_memory_does_not_advise_what_is_set_already(tmp_path):
    def fail(*args):
        raise torch.OutOfMemoryError

    model = tiny_model()
    model.lm_head.register_forward_pre_hook(fail)
    with pytest.raises(TrainingError, match=r"choose --lora or lora\.base=4bit or shorter windows \(train_length;"):
        run(tmp_path, model, per_device_train_batch_size=1, gradient_checkpointing=True)


def test_an_engine_that_rounds_the_frequencies_is_refused_before_the_first_step(tmp_path, monkeypatch):
    """As DeepSpeed did by ``module.bfloat16()``; after hours of training the loaded frequencies would not be the formula's."""
    prepare = Trainer._prepare_for_training

    def cast(self, *args, **options):
        self.model.model.rotary_emb.to(torch.bfloat16)
        return prepare(self, *args, **options)

    monkeypatch.setattr(Trainer, "_prepare_for_training", cast)
    with pytest.raises(TrainingError, match=r"cast the rotary frequencies to torch\.bfloat16, which rounds positions"):
        run(tmp_path)


def test_every_process_waits_until_a_checkpoint_is_sealed(tmp_path, monkeypatch):
    seen = []
    wait, mark = training._Trainer.__init__, checkpoints.mark_complete

    def init(self, *args, **options):
        wait(self, *args, **options)
        monkeypatch.setattr(self.accelerator, "wait_for_everyone", lambda: seen.append("wait"))

    monkeypatch.setattr(training._Trainer, "__init__", init)
    monkeypatch.setattr(checkpoints, "mark_complete", lambda *args: [seen.append("sealed"), mark(*args)])
    run(tmp_path, max_steps=1)
    assert seen[-2:] == ["sealed", "wait"]


def test_other_errors_are_not_taken_for_memory(tmp_path):
    model = tiny_model()

    def fail(*args):
        raise RuntimeError("a shape")

    model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match=r"^a shape$"):
        run(tmp_path, model)


def test_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    real, usage = shutil.disk_usage, namedtuple("usage", "total used free")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage(1, 1, 5) if list(tmp_path.glob("*/complete.json")) else real(path)
    )
    with pytest.raises(TrainingError, match=r"the checkpoint needs [\d.]+ kB, 5 bytes free; .*checkpoint 2 is intact"):
        run(tmp_path, save_steps=2)
    assert checkpoints.latest_complete(tmp_path) == tmp_path / "checkpoint-2"


def test_too_few_examples(tmp_path):
    message = "the data set has 15 examples; training.max_steps x batch_size = 4 x 4 = 16 are needed; set training.max_steps=3"
    with pytest.raises(RecipeError, match=message):
        run(tmp_path, dataset=Keyed(15))


def test_a_used_folder_is_not_written_over(tmp_path):
    run(tmp_path)
    with pytest.raises(RunError, match=r"holds checkpoint-4 already; pass --resume, or another folder with --out"):
        run(tmp_path)


# --- what is shown ----------------------------------------------------------------------------------------


def shown_on(monkeypatch, terminal: bool) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **options: Console(file=text, force_terminal=terminal, width=120))
    return text


def test_plain_lines_where_there_is_no_terminal(tmp_path, monkeypatch):
    text = shown_on(monkeypatch, terminal=False)
    run(tmp_path, max_steps=20, logging_steps=5, save_steps=20, batch_size=1, shown=True)
    lines = text.getvalue().splitlines()
    assert re.fullmatch(r"training: 100% done in 0:00:\d\d, step 20/20, loss \d\.\d{3}, [\d,]+ tokens/s", lines[-1])


def test_a_bar_in_a_terminal(tmp_path, monkeypatch):
    text = shown_on(monkeypatch, terminal=True)
    run(tmp_path, shown=True)
    assert "step 4/4" in text.getvalue()
    assert "tokens/s" in text.getvalue()


def test_nothing_when_quiet(tmp_path, monkeypatch, capfd):
    text = shown_on(monkeypatch, terminal=True)
    run(tmp_path)
    assert text.getvalue() == ""
    assert capfd.readouterr().out == ""


def test_a_checkpoint_of_other_processes_is_refused(tmp_path) -> None:
    checkpoint_folder = tmp_path / "checkpoint-4"
    checkpoint_folder.mkdir()
    for name in (
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state_0.pth",
        "rng_state_1.pth",
        "trainer_state.json",
    ):
        (checkpoint_folder / name).touch()
    checkpoints.mark_complete(checkpoint_folder)
    with pytest.raises(RunError, match="written by 2 processes and cannot be resumed exactly by 1"):
        training._resume_point(tmp_path, True, 1, "")


def test_speed_counts_this_session_only(tmp_path) -> None:
    run(tmp_path, max_steps=4, save_steps=2)
    shutil.rmtree(tmp_path / "checkpoint-4")
    records = []
    _, summary = run(tmp_path, max_steps=4, save_steps=2, logging_steps=2, resume=True, on_log=records.append)
    assert summary.tokens_per_second == pytest.approx(2 * 4 * 8 / summary.seconds)


class Taught(Keyed):
    """Examples of which a part is learned from a teacher too; every third has no such part. Labels weigh 1 or 3."""

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        weights = 0.7 * (torch.arange(LENGTH) < i % 3 * 2).float()
        label_weights = 1 + 2 * (torch.arange(LENGTH) % 2).float()
        return {**super().__getitem__(i), "teacher_weights": weights, "label_weights": label_weights}


@pytest.mark.parametrize("sliceable", [True, False])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_a_teachers_term_is_trained_as_in_a_bare_loop(tmp_path, monkeypatch, micro, sliceable):
    """Three steps of AdamW on the labels and weight * KL(teacher || student), over the number of labels of the batch."""
    base, expected, dataset = tiny_model().eval(), tiny_model(), Taught()
    with torch.no_grad():
        for model in (base, expected):
            for weight in model.parameters():
                weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(int(model is base)))
    student = copy.deepcopy(expected)
    optimizer, losses = torch.optim.AdamW(expected.parameters(), lr=1e-2, weight_decay=0.0), []
    for step in range(3):
        batch = collate([dataset[4 * step + i] for i in range(4)])
        weights, labels = batch.pop("teacher_weights")[:, :-1], batch["labels"][:, 1:]
        counts = batch.pop("label_weights")[:, 1:]
        scores = torch.log_softmax(expected(**batch).logits[:, :-1], -1)
        with torch.no_grad():
            known = torch.log_softmax(base(batch["input_ids"]).logits[:, :-1], -1)
        kept = labels != -100
        told = -(counts * scores.gather(-1, labels.clamp(min=0)[..., None])[..., 0])[kept].sum()
        loss = (told + (weights * (known.exp() * (known - scores)).sum(-1)).sum()) / kept.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    seen: list[float] = []
    monkeypatch.setattr(training, "can_be_sliced", lambda model: sliceable)
    run(
        tmp_path,
        student,
        dataset,
        teacher=Teacher(base, LENGTH),
        on_log=lambda log: seen.append(log["loss"]),
        max_steps=3,
        per_device_train_batch_size=micro,
        lr_scheduler_type="constant",
        logging_steps=1,
    )
    assert seen == pytest.approx(losses, rel=1e-5)
    for name, weight in expected.state_dict().items():
        torch.testing.assert_close(student.state_dict()[name], weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", ["teacher", "weights"])
def test_a_teacher_and_its_weights_need_each_other(tmp_path, given):
    dataset, teacher = (Keyed(), Teacher(tiny_model(), LENGTH)) if given == "teacher" else (Taught(), None)
    with pytest.raises(RecipeError, match=r"there is no teacher.*give both, or neither"):
        run(tmp_path, dataset=dataset, teacher=teacher)


def test_a_loss_in_slices_trains_the_same_model(tmp_path, monkeypatch):
    plain: list[float] = []
    expected, _ = run(tmp_path / "plain", on_log=lambda log: plain.append(log["loss"]), logging_steps=1)
    sliced: list[float] = []
    monkeypatch.setattr(training, "worth_chunking", lambda tokens, *_: tokens == 4 * LENGTH)
    model, _ = run(
        tmp_path / "sliced",
        on_log=lambda log: sliced.append(log["loss"]),
        logging_steps=1,
        per_device_train_batch_size=4,
    )
    assert sliced == pytest.approx(plain, rel=1e-6)
    for name, weight in weights(expected).items():
        torch.testing.assert_close(weights(model)[name], weight, rtol=0, atol=1e-5)
    assert "forward" not in vars(model.lm_head)


def test_what_is_measured_between_steps_is_no_training_time(tmp_path, monkeypatch) -> None:
    skipped = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + skipped[0])
    for module in (training, display):
        monkeypatch.setattr(module, "time", clock)
    told, logs = shown_on(monkeypatch, terminal=False), list[dict]()

    def measure(step: int) -> None:
        skipped[0] += 1e6  # seconds

    _, summary = run(tmp_path, on_log=logs.append, on_step=measure, logging_steps=1, shown=True)
    assert skipped[0] >= 2e6
    assert 0 < summary.seconds < 1e6
    assert summary.tokens_per_second > summary.tokens / 1e6
    assert all(log["tokens_per_second"] > summary.tokens / 1e6 for log in logs)
    assert int(re.findall(r"([\d,]+) tokens/s", told.getvalue())[-1].replace(",", "")) > 0
