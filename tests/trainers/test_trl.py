"""TRL's trainers with `make_trainer`: batches, their sequence, resuming, and counts of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import datasets
import numpy as np
import tokenizers
import transformers
import trl

import penstock
import torch
from penstock.errors import UsageError
from penstock.torch import DataLoader

ROWS, BATCH = 24, 4
WORDS = "abcdefgh"


@pytest.fixture
def tokenizer() -> Any:
    """A token for each word."""
    names = ["<pad>", "<eos>", "<unk>", *WORDS]
    model = tokenizers.models.WordLevel(
        {name: n for n, name in enumerate(names)}, unk_token="<unk>"
    )
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def make_rows() -> list[dict[str, str]]:
    def say(start: int, count: int) -> str:
        return " ".join(WORDS[(start + word) % 8] for word in range(count))

    return [
        {
            "text": say(n, 3 + n % 5),
            "prompt": say(n, 2),
            "chosen": say(n, 1 + n % 3),
            "rejected": say(n + 1, 2),
        }
        for n in range(ROWS)
    ]


KINDS = {
    "SFT": (["text"], transformers.LlamaForCausalLM),
    "DPO": (["prompt", "chosen", "rejected"], transformers.LlamaForCausalLM),
    "Reward": (["chosen", "rejected"], transformers.LlamaForSequenceClassification),
}


def make_model(model: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(
        vocab_size=64, num_attention_heads=2, num_labels=1, pad_token_id=0, eos_token_id=1, **sizes
    )
    return model(config)


def make_args(kind: str, folder: Path, **options: Any) -> Any:
    options = {"num_train_epochs": 1, "save_strategy": "no", "logging_steps": 1} | options
    return getattr(trl, f"{kind}Config")(
        output_dir=str(folder), per_device_train_batch_size=BATCH, use_cpu=True, bf16=False,
        gradient_checkpointing=False, report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip


def watch(trainer: Any) -> list[dict[str, Any]]:
    """Note the batches that a trainer computes a loss of."""
    seen: list[dict[str, Any]] = []
    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(
            {name: value.numpy() for name, value in inputs.items() if hasattr(value, "shape")}
        )
        return compute(model, inputs, *arguments, **more)

    trainer.compute_loss = compute_loss
    return seen


def count_tokens(trainer: Any) -> Any:
    return [log["num_tokens"] for log in trainer.state.log_history if "num_tokens" in log][-1]


@pytest.mark.parametrize("kind", KINDS)
def test_trains_on_what_trl_would_make_of_the_rows(
    kind: str, tmp_path: Path, tokenizer: Any
) -> None:
    """Each batch is TRL's of the same rows; the sequence is the loader's, resumed too; tokens are
    counted as TRL counts them."""
    fields, model = KINDS[kind]
    rows = [{name: row[name] for name in fields} for row in make_rows()]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = penstock.open(data, fields=fields, index="memory")
    trainer_class = getattr(trl, f"{kind}Trainer")
    given = {"processing_class": tokenizer}
    if kind == "DPO":
        given["ref_model"] = make_model(model)

    def make(**options: Any) -> Any:
        return penstock.transformers.make_trainer(
            trainer_class, make_model(model), dataset, make_args(kind, tmp_path / "out", **options),
            seed=3, **given,
        )  # fmt: skip

    trainer = make(save_strategy="steps", save_steps=2)
    seen = watch(trainer)
    trainer.train()
    order = [batch.ids.tolist() for batch in penstock.Loader(dataset, batch_size=BATCH, seed=3)]
    assert len(seen) == len(order) == ROWS // BATCH
    theirs = trainer_class(
        model=make_model(model), args=make_args(kind, tmp_path / "other"), **given,
        train_dataset=datasets.Dataset.from_list([rows[n] for step in order for n in step]),
    )  # fmt: skip
    theirs._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(theirs.train_dataset)
    wanted = watch(theirs)
    theirs.train()
    for batch, other in zip(seen, wanted, strict=True):
        assert batch.keys() == other.keys()
        for name, value in batch.items():
            np.testing.assert_array_equal(value, other[name], name)
    assert count_tokens(trainer) == count_tokens(theirs)
    again = make()
    rest = watch(again)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    for batch, other in zip(rest, seen[2:], strict=True):
        np.testing.assert_array_equal(batch["input_ids"], other["input_ids"])


def test_tokens_of_packed_rows_are_counted(tmp_path: Path, tokenizer: Any) -> None:
    """All of the documents' tokens, of all rows of a batch, without what fills rows up."""
    (np.arange(1600) % 50).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    documents = penstock.open(tmp_path / "tokens.bin", dtype="uint16", eos=0, index="memory")
    rows = penstock.pack(documents, 128)
    trainer = penstock.transformers.make_trainer(
        trl.SFTTrainer, make_model(transformers.LlamaForCausalLM), rows,
        make_args("SFT", tmp_path / "out"), processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    batches = list(DataLoader(rows, BATCH, shuffle=True, seed=0))
    tokens = sum(
        int((batch["labels"] != -100).sum() + (batch["documents"] >= 0).sum()) for batch in batches
    )
    assert count_tokens(trainer) == tokens
    assert tokens == 1600 < len(batches) * BATCH * 128


def test_what_reads_all_data_first_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"text": "a"}) + "\n")
    dataset = penstock.open(data, fields=["text"], index="memory")
    with pytest.raises(UsageError, match="packing=True reads all data before training"):
        penstock.transformers.make_trainer(
            trl.SFTTrainer, None, dataset, make_args("SFT", tmp_path, packing=True)
        )
