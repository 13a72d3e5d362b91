"""Hugging Face Trainer: rows of a `datasets.Dataset` as items, and a fast tokenizer in the config."""

import os
from pathlib import Path

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import prepcache


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer by whole words, which needs no download."""
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: at for at, word in enumerate(["<pad>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


def encode(row: dict[str, str], tokenizer: PreTrainedTokenizerFast, length: int) -> dict[str, torch.Tensor]:
    encoded = tokenizer(row["text"], truncation=True, max_length=length, padding="max_length")
    return {name: torch.tensor(encoded[name]) for name in ("input_ids", "attention_mask")}


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    texts = [path.read_text().strip() for path in sorted(Path("corpus").glob("*.txt"))]
    rows = datasets.Dataset.from_dict({"text": texts})
    tokenizer = make_tokenizer(texts)
    config = {"tokenizer": tokenizer, "length": 16}
    # The collator pads with the same tokenizer, which notes in this attribute what it has warned of.
    ds = prepcache.CachedDataset(list(rows), encode, config, untracked=("deprecation_warnings",))
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=16, n_embd=16, n_layer=1, n_head=2,
                   bos_token_id=0, eos_token_id=0, pad_token_id=0)
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=f"trainer-{os.getpid()}",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    Trainer(model=model, args=arguments, train_dataset=ds, data_collator=collate).train()
    return [ds], [ds[at]["input_ids"] for at in range(len(ds))]


if __name__ == "__main__":
    print(main()[0][0].report())
