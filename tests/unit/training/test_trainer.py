import gc
import io
import math
import re
import shutil
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from skipwise.errors import NonFiniteLossError, RunError, TrainingError
from skipwise.recipes import schema as recipe
from skipwise.training import checkpoints, trainer as training

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

    def __init__(self, examples: int = 16) -> None:
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
    values = {"max_steps": 4, "global_batch_size": 4, "precision": "float32", "learning_rate": 1e-2, "warmup_steps": 0}
    return recipe.Training(**{**values, **changes})


def run(
    folder,
    model=None,
    dataset=None,
    *,
    collate=collate,
    resume=False,
    on_log=lambda log: None,
    on_step=lambda step: None,
    save_at=(),
    best=lambda: None,
    **changes,
):
    model, rules = model or tiny_model(), settings(**changes)
    summary = training.train(
        model,
        dataset or Keyed(rules.max_steps * rules.global_batch_size),
        collate,
        rules,
        folder=folder,
        seed=0,
        resume=resume,
        on_log=on_log,
        on_step=on_step,
        save_at=save_at,
        best=best,
    )
    return model, summary


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_examples_come_in_their_place_in_the_run(tmp_path):
    dataset = Keyed(12)
    run(tmp_path, dataset=dataset, max_steps=3, per_device_train_batch_size=2)
    assert dataset.asked == list(range(12))


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
    one_step = {"max_steps": 1, "global_batch_size": 8, "max_grad_norm": 1e9, "optim": "sgd"}
    model, _ = run(tmp_path / "micro", on_log=records.append, per_device_train_batch_size=micro, **one_step)
    assert records[0]["loss"] == pytest.approx(expected, rel=1e-6)
    whole, _ = run(tmp_path / "whole", per_device_train_batch_size=8, **one_step)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-7)


def test_a_mean_of_micro_batch_means_would_be_seen(tmp_path, monkeypatch):
    """The mutation of the test above: without the count of labels Trainer averages the micro-batches' means."""
    monkeypatch.setattr(training._Trainer, "_get_num_items_in_batch", lambda *args: None)
    records = []
    run(tmp_path, on_log=records.append, max_steps=1, global_batch_size=8, per_device_train_batch_size=1)
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
    changes = {"max_steps": 8, "save_steps": 2, "per_device_train_batch_size": micro, "precision": precision}
    with pytest.raises(NonFiniteLossError, match=r"step 6: the loss .*checkpoint 4"):
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
    with pytest.raises(NonFiniteLossError, match="step 1: the gradient norm"):
        run(tmp_path, model, max_grad_norm=max_grad_norm, per_device_train_batch_size=4)
    assert calls == [1]
    assert same(weights(model), before)


def test_without_the_guard_trainer_goes_on_with_nan_weights(tmp_path, monkeypatch):
    """The mutation of the tests above."""
    monkeypatch.setattr(training._Trainer, "_require_finite", lambda *args: None)
    model = tiny_model()
    PoisonedLoss(model, at=2, value=math.nan)
    run(tmp_path, model, per_device_train_batch_size=4)
    assert not all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_under_fp16_the_loss_scaler_handles_infinite_gradients(tmp_path):
    def check(loss, norm=1.0, *, fp16):
        args = SimpleNamespace(bf16=False, fp16=fp16, learning_rate=2e-5, output_dir=tmp_path)
        trainer = SimpleNamespace(args=args, state=SimpleNamespace(global_step=411))
        training._Trainer._require_finite(trainer, torch.tensor(loss), torch.tensor(norm))

    with pytest.raises(NonFiniteLossError, match="step 412: the gradient norm"):
        check(1.0, norm=math.inf, fp16=False)
    check(1.0, norm=math.inf, fp16=True)
    with pytest.raises(NonFiniteLossError, match="precision=bf16"):
        check(math.nan, fp16=True)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_explained_by_the_micro_batch(tmp_path, error):
    model = tiny_model()

    def fail(*args):
        raise error

    model.lm_head.register_forward_pre_hook(fail)
    with pytest.raises(TrainingError, match=r"step 1: .* 1 x 8 tokens .*gradient_checkpointing=true"):
        run(tmp_path, model, per_device_train_batch_size=4)


@pytest.mark.parametrize("at", [1, 3])
def test_out_of_memory_halves_the_micro_batch_and_training_goes_on(tmp_path, at: int) -> None:
    """At the first step, and after a checkpoint; the model is that of the smaller micro-batch all along."""
    changes = {"max_steps": 4, "save_steps": 2, "precision": "float32"}
    whole, _ = run(tmp_path / "whole", per_device_train_batch_size=2, **changes)
    model, steps = tiny_model(), []

    def full(layer, inputs):
        if len(steps) >= at - 1 and len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.lm_head.register_forward_pre_hook(full)
    halved, _ = run(tmp_path / "halved", model, per_device_train_batch_size=4, on_step=steps.append, **changes)
    assert steps[-1] == 4
    for ours, theirs in zip(halved.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


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


@pytest.mark.parametrize("best", [2, 3])
def test_the_best_steps_checkpoint_is_kept_and_its_weights_are_the_models(tmp_path, best):
    """Step 3 has a checkpoint only because it is among those that are compared."""
    records = []
    model, _ = run(tmp_path, max_steps=8, save_steps=2, save_total_limit=1, save_at=[3], on_log=records.append,
                   best=lambda: best if (tmp_path / f"checkpoint-{best}").exists() else None)  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"checkpoint-{best}", "checkpoint-8"]
    kept = LlamaForCausalLM.from_pretrained(tmp_path / f"checkpoint-{best}")
    assert same(weights(model), weights(kept))
    assert not same(weights(model), weights(LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-8")))
    assert 3 in [record["step"] for record in records]  # a resume from there logs the same losses


# --- what is shown ----------------------------------------------------------------------------------------


def shown_on(monkeypatch, terminal: bool) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(training, "Console", lambda **options: Console(file=text, force_terminal=terminal, width=120))
    return text


def test_plain_lines_where_there_is_no_terminal(tmp_path, monkeypatch):
    text = shown_on(monkeypatch, terminal=False)
    run(tmp_path, max_steps=20, logging_steps=5, save_steps=20, global_batch_size=1)
    lines = text.getvalue().splitlines()
    assert re.fullmatch(r"training: 100%, step 20/20, loss \d\.\d{3}, [\d,]+ tokens/s, 0:00:\d\d elapsed", lines[-1])


def test_a_checkpoint_of_other_processes_is_refused(tmp_path) -> None:
    run(tmp_path)
    checkpoints.mark_complete(tmp_path / "checkpoint-4", "ddp", 2)
    with pytest.raises(RunError, match=r"ddp in 2 .*ddp in 1"):
        run(tmp_path, resume=True)


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
    monkeypatch.setattr(training, "time", clock)
    told, logs = shown_on(monkeypatch, terminal=False), list[dict]()

    def measure(step: int) -> None:
        skipped[0] += 1e6  # seconds

    _, summary = run(tmp_path, on_log=logs.append, on_step=measure, logging_steps=1)
    assert skipped[0] >= 2e6
    assert 0 < summary.seconds < 1e6
    assert summary.tokens_per_second > summary.tokens / 1e6
    assert all(log["tokens_per_second"] > summary.tokens / 1e6 for log in logs)
    assert int(re.findall(r"([\d,]+) tokens/s", told.getvalue())[-1].replace(",", "")) > 0
