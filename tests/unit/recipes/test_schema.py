import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import skipwise
from skipwise.errors import RecipeError, nearest
from skipwise.method.positions import SCHEMES, randpos
from skipwise.recipes.loading import dump_recipe, load_recipe, parse_changes, shipped_recipes
from skipwise.recipes.methods import RATES
from skipwise.recipes.schema import Positions, Recipe

TARGETS = {"16k": 16384, "32k": 32768, "96k": 98304, "128k": 131072}
PAPER_RUNS = {
    f"llama-7b-{target}-{name}": (tokens, name)
    for target, tokens in TARGETS.items()
    for name in ("linear", "ntk", "yarn")
} | {
    "llama-7b-16k-yarn-revised": (16384, "yarn-revised"),
    **{
        f"{family}-16k-{name}": (16384, name)
        for family in ("llama2-7b", "gptj-6b", "baichuan2-7b")
        for name in ("linear", "ntk", "yarn")
    },
}
ADAPTED = {
    "smollm2-16k-quick",
    "smollm2-32k",
    "qwen3-8b-128k-lora",
    "llama-3.1-8b-512k-lora",
    "qwen3-8b-24gb",
    "llama-3.1-8b-24gb",
}


def message(source: Path | str | None = None, changes: dict[str, Any] | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(source, changes)
    return str(caught.value)


def test_the_papers_runs_and_nano_are_shipped() -> None:
    assert set(shipped_recipes()) == {"nano", "nano-pose", *PAPER_RUNS, *ADAPTED}


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_begins_with_a_comment_on_its_origin(name: str) -> None:
    recipe = load_recipe(name)
    assert load_recipe(f"recipes/{name}.yaml") == recipe
    text = (Path(skipwise.__file__).parent / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")


@pytest.mark.parametrize("name", PAPER_RUNS)
def test_a_paper_recipe_has_the_papers_settings(name: str) -> None:
    recipe = load_recipe(name)
    training, evaluation = recipe.training, recipe.evaluation
    assert (recipe.target, recipe.interpolation) == PAPER_RUNS[name]
    assert (training.max_steps, training.batch_size, training.learning_rate) == (1000, 64, 2e-5)
    assert (training.lr_scheduler_type, training.warmup_steps, training.optim) == ("linear", 10, "adamw_torch")
    assert recipe.positions.model_dump() == {
        "scheme": "pose",
        "chunks": 2,
        "lengths": "paper",
        "skips": "uniform",
        "content": "paper",
        "contiguous": 0.0,
        "margin": 0.0,
    }
    assert training.adam_beta2 == 0.999
    assert (recipe.method, recipe.teacher, recipe.data.retrieval) == ("paper", None, 0.0)
    assert recipe.data.train_jumps
    assert recipe.data.passkey == 0
    assert recipe.data.min_tokens in (2048, 4096)
    assert evaluation.stride == 1024
    assert evaluation.prompt_trials == 50
    assert evaluation.windows
    assert max(evaluation.windows) == recipe.target


def test_a_recipe_says_what_differs_from_another(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("like: nano\ndata: {passkey: 0}\ntraining: {max_steps: 3}\n")
    mine, nano = load_recipe(tmp_path / "mine.yaml"), load_recipe("nano")
    assert (mine.data.passkey, mine.training.max_steps) == (0, 3)
    assert mine.training.learning_rate == nano.training.learning_rate
    (tmp_path / "his.yaml").write_text(f"like: {tmp_path / 'mine.yaml'}\nseed: 3\n")
    his = load_recipe(tmp_path / "his.yaml")
    assert his == mine.model_copy(update={"seed": 3})
    (tmp_path / "all.yaml").write_text("like: qwen3-8b-128k-lora\nlora: null\noriginal_length: null\n")
    everything = load_recipe(tmp_path / "all.yaml")
    assert (everything.lora, everything.original_length) == (None, None)
    (tmp_path / "near.yaml").write_text("like: mine.yaml\n")  # beside it, wherever the command is given
    assert load_recipe(tmp_path / "near.yaml") == mine
    (tmp_path / "odd.yaml").write_text("like: nanoo\n")
    assert "recipe 'nanoo' is neither a file nor shipped (did you mean nano?)" in message(tmp_path / "odd.yaml")
    (tmp_path / "loop.yaml").write_text("like: 3\n")
    assert "like = 3 must name another recipe" in message(tmp_path / "loop.yaml")
    (tmp_path / "loop.yaml").write_text(f"like: {tmp_path / 'loop.yaml'}\n")
    assert "must name another recipe" in message(tmp_path / "loop.yaml")


def test_training_fields_of_shipped_recipes_are_known_to_transformers() -> None:
    arguments = pytest.importorskip("transformers.training_args").TrainingArguments
    ours = {"batch_size", "precision", "save_dtype"}
    for name in shipped_recipes():
        assert load_recipe(name).training.model_dump().keys() - ours <= arguments.__dataclass_fields__.keys()


def test_a_new_scheme_needs_nothing_but_its_entry_in_the_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "mine", randpos)
    assert Positions(scheme="mine").scheme == "mine"


def test_defaults_are_valid_and_not_shared() -> None:
    first, second = Recipe(), Recipe()
    first.evaluation.arms.clear()
    first.training.max_steps = 1
    assert second.evaluation.arms == ["original", "pi-only", "trained"]
    assert second == load_recipe() == load_recipe(None, {})


def test_a_dumped_recipe_reads_back_equal_with_every_default_written(tmp_path: Path) -> None:
    recipe = load_recipe("nano", {"training.weight_decay": 0.1, "evaluation.windows": ["256", "2k"]})
    path = tmp_path / "recipe.yaml"
    dump_recipe(recipe, path)
    assert load_recipe(path) == recipe
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert written["training"]["weight_decay"] == 0.1
    assert written["evaluation"]["windows"] == [256, 2048]
    assert written["data"]["held_out"] == 0.1


def test_changes_win_over_the_file_and_open_sections(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("target: 4k\ntraining:\nseed: 3\n", encoding="utf-8")
    recipe = load_recipe(path, {"target": "8k", "training.learning_rate": 1e-4, "positions.chunks": 3})
    assert (recipe.target, recipe.seed, recipe.training.learning_rate) == (8192, 3, 1e-4)
    assert recipe.positions.chunks == 3


def test_an_empty_file_and_an_empty_section_mean_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing yet\n", encoding="utf-8")
    assert load_recipe(path) == Recipe()
    path.write_text("training:\n  # max_steps: 3\n", encoding="utf-8")
    assert load_recipe(path) == Recipe()


def test_a_file_wins_over_a_shipped_name_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano").mkdir()
    assert load_recipe("nano").target == 2048
    (tmp_path / "nano").rmdir()
    (tmp_path / "nano").write_text("target: 4k", encoding="utf-8")
    assert load_recipe("nano").target == 4096


@pytest.mark.parametrize("text", ["1e-5", "1.0e-5", "1E-5", ".1e-4", "0.00001"])
def test_numbers_in_every_notation(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"training: {{learning_rate: {text}, adam_epsilon: {text}}}\n", encoding="utf-8")
    training = load_recipe(path).training
    assert (training.learning_rate, training.model_dump()["adam_epsilon"]) == (1e-5, 1e-5)
    assert parse_changes([f"a={text}"]) == {"a": 1e-5}


@pytest.mark.parametrize("name", ["2e5", "1.5E-3", ".5e1", "1_0e2", "007", "null", "0x1f", "1:30"])
def test_a_name_that_looks_like_a_number_stays_a_name(tmp_path: Path, name: str) -> None:
    recipe = load_recipe("nano", {"data.source": name})
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert parse_changes([f"data.source='{name}'"]) == {"data.source": name}


def test_a_name_that_was_read_as_a_number_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(RecipeError, match=r"^model = 200000\.0: must be text; quotes make text of a number"):
        load_recipe(None, parse_changes(["model=2e5"]))
    assert load_recipe("nano", parse_changes(['data.source="2e5"'])).data.source == "2e5"


def test_parse_changes_reads_yaml_values() -> None:
    words = ["a.b=true", "c=[1k, 2e3]", "d=", "e=x=y", "f=none", "g={h: 1e-8}"]
    assert parse_changes(words) == {
        "a.b": True,
        "c": ["1k", 2000.0],
        "d": None,
        "e": "x=y",
        "f": "none",
        "g": {"h": 1e-8},
    }


def test_of_a_key_that_is_set_twice_the_last_counts() -> None:
    assert parse_changes(["seed=1", " seed =2"]) == {"seed": 2}


@pytest.mark.parametrize("word", ["training.learning_rate", "=3"])
def test_set_without_key_or_value(word: str) -> None:
    with pytest.raises(RecipeError, match=r"must be KEY=VALUE, for example training\.learning_rate=1e-5"):
        parse_changes([word])


@pytest.mark.parametrize("key", ["evaluation.keep", "seed", "lora.rank"])
def test_a_setting_that_needs_a_value_is_not_told_how_none_is_written(key: str) -> None:
    with pytest.raises(RecipeError, match="none") as error:
        load_recipe(None, {key: "none"})
    assert "null" not in str(error.value)


def test_set_that_is_not_yaml() -> None:
    with pytest.raises(RecipeError, match=r"--set a: '\[1' is not a YAML value"):
        parse_changes(["a=[1"])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"taget": "2k"}, ["unknown key taget", "did you mean target?", "valid here: model, target"]),
        ({"learning_rate": 1e-5}, ["unknown key learning_rate (did you mean training.learning_rate?)"]),
        ({"rank": 4}, ["unknown key rank (did you mean lora.rank?)"]),
        ({"weight": 1}, ["unknown key weight (did you mean teacher.weight?)"]),
        ({"source": "a"}, ["did you mean data.source or evaluation.source?"]),
        ({"positions.chunk": 3}, ["unknown key positions.chunk", "did you mean chunks?", "content"]),
        ({"data.sauce": "x"}, ["unknown key data.sauce", "did you mean source?"]),
        ({"target": "2x"}, ["target = '2x'", "positive number of tokens", "2048 or 2k"]),
        ({"target": True}, ["target = True", "for example 2048 or 2k"]),
        ({"train_length": -256}, ["train_length = -256", "positive"]),
        ({"evaluation.windows": ["1k", 0]}, ["evaluation.windows.1 = 0", "positive"]),
        ({"evaluation.keep": "first"}, ["evaluation.keep = 'first'", "'last'", "'best'"]),
        ({"evaluation.keep": "best"}, ["evaluation.steps None has none", "add steps below 1,000", "keep=last"]),
        (
            {"evaluation.keep": "best", "evaluation.steps": [9], "training.max_steps": 9},
            ["the last step, 9", "evaluation.steps [9] has none"],
        ),
        ({"training.learning_rate": "fast"}, ["training.learning_rate = 'fast'", "valid number"]),
        ({"evaluation.windows": 256}, ["evaluation.windows = 256: must be a list, as [A, B]"]),
        ({"lora.targets": 5}, ["lora.targets = 5: Input should be 'all-linear', or must be a list, as [A, B]"]),
        ({"training": None}, ["training = None: must be a section of keys and values, or left out"]),
        (
            {"method": "none"},
            ["method = 'none': Input should be 'skipwise' or 'paper'; none is --set method=null, or null in a file"],
        ),
        ({"lora": "None"}, ["lora = 'None'", "; none is --set lora=null, or null in a file"]),
        ({"training.max_steps": 0}, ["training.max_steps = 0", "greater than 0"]),
        ({"interpolation": "yarm"}, ["interpolation = 'yarm'", "did you mean yarn?", "yarn, yarn-revised"]),
        ({"positions.scheme": "posse"}, ["positions.scheme = 'posse'", "did you mean pose?", "pose, randpos"]),
        ({"positions.chunks": 0}, ["positions.chunks = 0", "greater than or equal to 1"]),
        ({"positions.chunks": 20_000}, ["positions.chunks = 20000", "less than or equal to 16384"]),
        ({"positions.chunks": 300, "train_length": 256}, ["chunks 300", "train_length 256", "at least one token"]),
        ({"data.held_out": 1}, ["data.held_out = 1", "less than 1"]),
        ({"seed": 2**32}, ["seed = 4294967296", "less than or equal to 4294967295"]),
        ({"training.batch_size": 1e20}, ["training.batch_size = 1e+20"]),
        ({"training.batch_size": 2**31}, ["training.batch_size", "less than or equal to 2147483647"]),
        ({"training.max_steps": 10**19}, ["training.max_steps", "less than or equal to 2147483647"]),
        ({"training.max_steps": True}, ["training.max_steps = True", "a number, not true or false"]),
        ({"training.learning_rate": float("inf")}, ["training.learning_rate = inf", "finite"]),
        ({"training.learning_rate": True}, ["training.learning_rate = True", "not true or false"]),
        ({"data.passkey": float("nan")}, ["data.passkey = nan"]),
        ({"data.retrieval": 0.9}, ["data.retrieval + teacher.written = 1.05 must not exceed 1", "lower one of them"]),
        ({"data.retrieval_end": 0.9}, ["data.retrieval_end + teacher.written = 1.05 must not exceed 1"]),
        ({"data.retrieval_end": 1.1}, ["data.retrieval_end = 1.1", "less than or equal to 1"]),
        ({"training.label_smoothing_factor": 7}, ["training.label_smoothing_factor = 7", "less than 1"]),
        (
            {"teacher": None, "training.label_smoothing_factor": 0.1},
            [
                "data.answer_weight 4 and data.first_digit_weight 32 weigh labels",
                "training.label_smoothing_factor replaces",
                "set data.answer_weight=1 and data.first_digit_weight=1",
            ],
        ),
        (
            {"teacher": None, "data.first_digit_weight": None, "training.use_liger_kernel": True},
            ["data.answer_weight 4 and data.first_digit_weight 4 weigh labels", "or leave training.use_liger_kernel"],
        ),
        (
            {"teacher": None, "data.answer_weight": 1, "training.use_liger_kernel": True},
            ["data.answer_weight 1 and data.first_digit_weight 32 weigh labels"],
        ),
        (
            {"teacher": None, "data.retrieval": 0, "data.retrieval_end": 0.1, "training.use_liger_kernel": True},
            ["data.answer_weight 4 and data.first_digit_weight 32", "leave training.use_liger_kernel"],
        ),
        ({"training.weight_decay": -3}, ["training.weight_decay = -3", "greater than or equal to 0"]),
        ({"training.weight_decay": "heavy"}, ["training.weight_decay = 'heavy'", "a valid number"]),
        ({"training.adam_beta1": 1}, ["training.adam_beta1 = 1", "less than 1"]),
        ({"training.adam_beta2": -0.1}, ["training.adam_beta2 = -0.1", "greater than or equal to 0"]),
        ({"training.adam_epsilon": 0}, ["training.adam_epsilon = 0", "greater than 0"]),
        (
            {"training.warmup_steps": 11, "training.max_steps": 5},
            ["training.warmup_steps 11 must not exceed training.max_steps 5", "lower it, or give a share"],
        ),
        (
            {"evaluation.steps": [5, 50], "training.max_steps": 9},
            ["evaluation.steps [50] lie beyond training.max_steps 9", "lower them, or raise training.max_steps"],
        ),
        ({"target": 999999999999}, ["target = 999999999999", "less than or equal to 16777216"]),
        ({"evaluation.windows": [2**25]}, ["evaluation.windows.0 = 33554432", "less than or equal to 16777216"]),
        ({"evaluation.prompt_trials": 10**18}, ["evaluation.prompt_trials = 10", "less than or equal to 10000"]),
        ({"data.source": "~nouser/text"}, ["data.source = '~nouser/text'", "no such user; write the whole path"]),
        ({"data.cache": "x" * 300}, ["data.cache = ", "300 bytes; file systems hold 255 at most: shorten it"]),
        ({"model": "odd\udcff"}, ["model = 'odd\\udcff'", "is not UTF-8", "rename"]),
    ],
)
def test_message_has_key_value_rule_and_nearest_name(changes: dict[str, Any], parts: list[str]) -> None:
    said = message(changes=changes)
    for part in parts:
        assert part in said


def test_bounds_are_taken_and_whole_numbers_in_any_notation() -> None:
    recipe = load_recipe(None, {"seed": 2**32 - 1, "training.max_steps": 1e3, "training.batch_size": 2**31 - 1})
    assert (recipe.seed, recipe.training.max_steps) == (2**32 - 1, 1000)


def test_each_problem_has_a_line() -> None:
    said = message(changes={"taget": 1, "training.max_steps": 0, "positions.chunks": 0})
    assert len(said.splitlines()) == 3


def test_a_value_is_not_a_section() -> None:
    assert message("nano", {"target.tokens": 3}).startswith("target = {'tokens': 3}: ")


def test_a_missing_recipe_names_the_nearest_and_all() -> None:
    said = message("llama-7b-16k-liner")
    assert "'llama-7b-16k-liner' is neither a file nor shipped (did you mean llama-7b-16k-linear?)" in said
    assert "nano" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [1", "is not YAML"),
        (b"\xff\xfe\xfa", "is not YAML"),
        (b"- a\n- b\n", "must hold keys and values, not a list"),
        (b"!!python/object/apply:os.getcwd []", "is not YAML"),
        (b"1: 2\n", "1"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    assert said in message(path)


def test_any_training_argument_may_be_set() -> None:
    recipe = load_recipe(None, {"training.weight_decay": 0.1, "training.activation_checkpointing": True})
    assert recipe.training.model_dump()["gradient_checkpointing"] is True


def test_a_change_counts_by_either_name_of_activation_checkpointing(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("training: {activation_checkpointing: false}\n")
    recipe = load_recipe(path, {"training.gradient_checkpointing": True})
    assert recipe.training.model_extra == {"adam_beta2": 0.95, "gradient_checkpointing": True}
    path.write_text("training: {activation_checkpointing: false, gradient_checkpointing: true}\n")
    told = "activation_checkpointing and gradient_checkpointing are two names of one setting; leave one out"
    assert told in message(path)


def test_names_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("evaluation: {passkey_trials: 3, passkey_lengths: [1k]}\n")
    rules = load_recipe(path, {"evaluation.prompt_lengths": ["2k"]}).evaluation
    assert (rules.prompt_trials, rules.prompt_lengths) == (3, [2048])
    assert load_recipe(path, {"evaluation.passkey_trials": 4}).evaluation.prompt_trials == 4


def test_nearest_is_silent_where_nothing_is_near() -> None:
    assert nearest("xyz", ["target", "model"]) == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.held_out", -0.1),
        ("data.passkey", -0.1),
        ("data.passkey", 1.1),
        ("data.workers", 0),
        ("training.batch_size", 0),
        ("training.per_device_train_batch_size", 0),
        ("training.learning_rate", 0),
        ("training.warmup_steps", -1),
        ("training.save_steps", 0),
        ("training.save_total_limit", 0),
        ("training.logging_steps", 0),
        ("evaluation.documents", 0),
        ("evaluation.prompt_trials", -1),
        ("seed", -1),
    ],
)
def test_bounds_of_every_number(key, value) -> None:
    assert f"{key} = {value}: Input should be " in message(changes={key: value})


def test_as_many_chunks_as_tokens_are_no_contradiction() -> None:
    assert load_recipe(None, {"train_length": 4, "positions.chunks": 4})


@pytest.mark.parametrize("key", ["evaluation.arms", "evaluation.windows", "evaluation.prompt_lengths"])
def test_lists_that_leave_nothing_to_measure_are_refused(key: str) -> None:
    assert f"{key} = []: List should have at least 1 item" in message(changes={key: []})


@pytest.mark.parametrize("value", ["2020-13-45", "&a [*a]"])
def test_yaml_that_cannot_be_built_is_explained(value: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is not a YAML value"):
        parse_changes([f"data.source={value}"])
    (tmp_path / "recipe.yaml").write_text(f"model: {value}\n")
    assert "is not YAML" in message(tmp_path / "recipe.yaml")


def test_the_warmup_of_the_defaults_is_no_mistake_in_a_trial_run() -> None:
    assert load_recipe(None, {"training.max_steps": 2}).training.warmup_steps == 10


def test_bounds_of_what_is_passed_on_add_nothing_to_a_recipe() -> None:
    assert "weight_decay" not in load_recipe().training.model_dump()


def test_the_home_folder_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    recipe = load_recipe(None, {"model": "~/m", "data.source": "~/t", "data.cache": "~/c", "evaluation.source": "~/e"})
    assert (recipe.model, recipe.data.source, recipe.data.cache) == ("/somewhere/m", "/somewhere/t", "/somewhere/c")
    assert recipe.evaluation.source == ["/somewhere/e"]


def test_a_value_of_many_characters_is_shown_in_part() -> None:
    said = message(changes={"seed": "9" * 5000})
    assert len(said) < 400
    assert "(5,002 characters)" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"training.hub_token": "hf_mine"},
        {"training": {"accelerator_config": {"API_KEY": "hf_mine"}}},
        {"password": "hf_mine"},
        {"evaluation.arms": [{"client_secret": "hf_mine"}]},
    ],
)
def test_a_secret_is_refused_and_not_repeated(changes: dict[str, Any], tmp_path: Path) -> None:
    said = message(changes=changes)
    assert "holds a secret, and every setting is written into the run folder; leave it out" in said
    assert "HF_TOKEN" in said
    assert "hf_mine" not in said
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"training": {"hub_token": "hf_mine"}}))
    assert "training.hub_token holds a secret" in message(tmp_path / "r.yaml")
    with pytest.raises(RecipeError, match=r"training.hub_token holds a secret") as caught:
        parse_changes(["training.hub_token=[hf_mine"])
    assert "hf_mine" not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for source in (tmp_path / "pipe.yaml", Path("/dev/zero")):
        assert "is neither a file nor shipped" in message(source)


def test_recipes_that_name_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("like: x/b.yaml\n")
    (tmp_path / "b.yaml").write_text("like: x/a.yaml\n")
    (tmp_path / "x").symlink_to(tmp_path)
    assert "must name another recipe" in message(tmp_path / "a.yaml")


def test_a_method_sets_what_a_recipe_does_not(tmp_path: Path) -> None:
    ours = load_recipe(None, {"method": "skipwise", "data.retrieval": 0.05})
    assert (ours.positions.content, ours.positions.contiguous) == ("aligned", 0.5)
    assert (ours.data.retrieval, ours.data.source) == (0.05, "stdlib")
    assert ours.teacher is not None
    control = load_recipe(None, {"method": "skipwise", "positions.scheme": "short"})
    assert (control.teacher, control.data.retrieval) == (ours.teacher, 0.15)
    paper = load_recipe(None, {"method": "paper"})
    assert (paper.positions, paper.teacher, paper.data.retrieval) == (Positions(content="paper"), None, 0.0)
    assert paper.training.adam_beta2 == 0.999
    assert "method = 'papper': Input should be 'skipwise' or 'paper'" in message(None, {"method": "papper"})


def test_without_a_method_sections_have_their_own_settings(tmp_path: Path) -> None:
    plain = load_recipe(None, {"method": None})
    assert (plain.positions, plain.teacher, plain.data.retrieval) == (Positions(), None, 0.0)
    assert load_recipe("nano-pose").positions == Positions()
    (tmp_path / "recipe.yaml").write_text("method: null\n")
    assert load_recipe(tmp_path / "recipe.yaml") == plain


def test_a_section_that_is_none_is_refused_under_another_method_too(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("method: paper\ndata: my.txt\n")
    for changes in ({}, {"method": "skipwise"}, {"data.source": "other.txt"}):
        assert "data = 'my.txt': must be a section of keys and values" in message(tmp_path / "recipe.yaml", changes)
    (tmp_path / "other.yaml").write_text("like: recipe.yaml\ndata: {source: other.txt}\n")
    assert "data = 'my.txt': must be a section of keys and values" in message(tmp_path / "other.yaml", {})


def test_a_recipe_that_names_no_method_keeps_what_it_says_under_any(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("positions: {contiguous: 0.2}\ndata: {passkey: 0.1}\n")
    (tmp_path / "child.yaml").write_text("like: recipe.yaml\nmethod: null\n")
    for recipe in (
        *(load_recipe(tmp_path / "recipe.yaml", {"method": method}) for method in (None, "paper", "skipwise")),
        load_recipe(tmp_path / "child.yaml"),
    ):
        assert (recipe.positions.contiguous, recipe.data.passkey) == (0.2, 0.1)


@pytest.mark.parametrize("teacher", [{"weight": 3}, None])
def test_a_teacher_that_is_left_out_stays_out(teacher: dict | None, tmp_path: Path) -> None:
    """Also in the file of a finished run, where a method would set it again."""
    recipe = load_recipe(None, {"method": "skipwise", "teacher": teacher})
    assert (recipe.teacher and recipe.teacher.weight) == (teacher and 3)
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


def test_the_arm_is_named_after_the_method_or_the_scheme() -> None:
    assert [load_recipe(None, {"method": method}).arm for method in ("skipwise", "paper")] == ["skipwise", "pose"]
    assert load_recipe(None, {"method": "skipwise", "positions.scheme": "short"}).arm == "skipwise-short"
    assert (load_recipe().method, load_recipe().arm) == ("skipwise", "skipwise")
    assert load_recipe(None, {"method": None}).arm == "pose"


def test_a_section_that_is_given_as_an_object_keeps_what_the_method_says_of_the_rest() -> None:
    assert Recipe(positions=Positions(chunks=3)) == Recipe(positions={"chunks": 3})
    assert Recipe(positions=Positions(chunks=3)).positions.contiguous == 0.5


@pytest.mark.parametrize(("old", "new"), [("paper", "skipwise"), ("skipwise", "paper")])
@pytest.mark.parametrize("by", ["--set", "like"])
def test_a_method_named_anew_wins_over_the_file_of_a_finished_run(old: str, new: str, by: str, tmp_path: Path) -> None:
    dump_recipe(load_recipe("nano", {"method": old, "positions.chunks": 3}), tmp_path / "recipe.yaml")
    if by == "like":
        (tmp_path / "child.yaml").write_text(f"like: recipe.yaml\nmethod: {new}\n")
        found = load_recipe(tmp_path / "child.yaml")
    else:
        found = load_recipe(tmp_path / "recipe.yaml", {"method": new})
    wanted = load_recipe(None, {"method": new, "positions.chunks": 3})
    assert (found.positions, found.teacher) == (wanted.positions, wanted.teacher)
    assert (found.data.retrieval, found.data.passkey) == (wanted.data.retrieval, 0.0)
    assert found.training.batch_size == 4
    assert load_recipe(tmp_path / "recipe.yaml", {"method": old}) == load_recipe(tmp_path / "recipe.yaml")


def test_shipped_recipes_leave_the_method_its_settings() -> None:
    for name in shipped_recipes():
        assert load_recipe(name, {"method": "skipwise"}).positions.content == "aligned", name


@pytest.mark.parametrize(
    ("given", "original", "window"), [(None, 256, 256), (None, 32768, 4096), ("32k", 32768, 32768)]
)
def test_a_training_window_is_short_unless_a_longer_one_is_asked_for(
    given: str | None, original: int, window: int
) -> None:
    assert Recipe(train_length=given).train_length_of(original) == window


def test_lora_turned_on_or_off_over_a_finished_runs_file_takes_its_own_rate(tmp_path: Path) -> None:
    full, lora = tmp_path / "full.yaml", tmp_path / "lora.yaml"
    dump_recipe(load_recipe(None), full)
    dump_recipe(load_recipe(None, {"lora": {}}), lora)
    assert (RATES[False], RATES[True]) == (2e-5, 2e-4)
    for path, changes, rate in [
        (full, {}, 2e-5),
        (full, {"lora": {}}, 2e-4),
        (full, {"lora.rank": 8}, 2e-4),
        (full, {"lora": {}, "training.learning_rate": 1e-5}, 1e-5),
        (lora, {}, 2e-4),
        (lora, {"lora.rank": 8}, 2e-4),
        (lora, {"lora": None}, 2e-5),
    ]:
        assert load_recipe(path, changes).training.learning_rate == rate
    full.write_text("training: {learning_rate: 2e-5}\n")  # says nothing of LoRA, so it means this rate
    assert load_recipe(full, {"lora": {}}).training.learning_rate == 2e-5


def test_what_a_list_repeats_counts_once() -> None:
    lists = {
        "evaluation.arms": ["trained", "trained"],
        "evaluation.steps": [5, 5],
        "evaluation.windows": ["1k", 1024],
        "evaluation.prompt_lengths": ["1k", "1k", "2k"],
        "evaluation.segment_lengths": [64, 64],
    }
    evaluation = load_recipe(None, lists).evaluation
    assert (evaluation.arms, evaluation.steps, evaluation.windows) == (["trained"], [5], [1024])
    assert (evaluation.prompt_lengths, evaluation.segment_lengths) == ([1024, 2048], [64])


def test_a_text_may_have_the_name_that_stands_for_all_layers() -> None:
    assert load_recipe(None, {"evaluation.source": "all-linear"}).evaluation.source == ["all-linear"]
    assert load_recipe(None, {"lora.targets": "all-linear"}).lora.targets == "all-linear"
    assert load_recipe(None, {"lora.targets": "q_proj"}).lora.targets == ["q_proj"]
