"""Hugging Face Trainer with a compiled model: one line changed.

    python examples/hf_trainer.py [--devices cpu emulated:0]

A small BERT from a config, with random weights, takes ten steps, two of them on short last batches. A plain twin takes
the same steps in a Trainer of its own: same losses, same weights. A third run stops after the first epoch and is
resumed from its checkpoint. Needs transformers and accelerate: pip install -e '.[frameworks]'.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import autopar


class Sentences(Dataset):
    """Words 5 to 63 at random; the class says whether the first is less than the last."""

    def __init__(self, count: int) -> None:
        self.words = torch.randint(5, 64, (count, 12), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self.words[index]
        return {"input_ids": words, "labels": (words[0] < words[-1]).long()}


def bert(layers: int = 2) -> Any:
    """A BERT of two layers; dropout off, so that the runs can be held against each other to the last digits."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def train(model: Any, where: Path, count: int, epochs: int, resume: bool = False) -> list[float]:
    """The losses of each step that the Trainer takes."""
    import transformers

    options = transformers.TrainingArguments(
        str(where),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    silent = transformers.trainer_callback.PrinterCallback
    trainer = transformers.Trainer(model=model, args=options, train_dataset=Sentences(count))
    trainer.remove_callback(silent)
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def compare(devices: list[str], count: int = 72, epochs: int = 2) -> dict[str, Any]:
    """Losses of both, and how far losses and weights are apart, those of a resumed run too."""
    torch.manual_seed(0)
    plain = bert()
    fast = autopar.compile(copy.deepcopy(plain), devices)  # the line that changes
    resumed = autopar.compile(copy.deepcopy(plain), devices)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        expected = train(plain, here / "plain", count, epochs)
        losses = train(fast, here / "fast", count, epochs)
        train(resumed, here / "resumed", count, epochs - 1)
        train(resumed, here / "resumed", count, epochs, resume=True)
    found = {
        "losses": losses,
        "apart": max(abs(a - b) for a, b in zip(losses, expected, strict=True)),
        "weights": apart(fast, plain),
        "resumed": apart(resumed, plain),
        "report": fast.explain(),
    }
    fast.close()
    resumed.close()
    return found


def apart(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference of two weights."""
    return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters(), strict=True))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--devices", nargs="+", default=["auto"])
    found = compare(options.parse_args().devices)
    print(found["report"].split("\n\n")[0])
    print("losses: " + " ".join(f"{loss:.3f}" for loss in found["losses"]))
    print(
        f"largest difference from the plain Trainer: losses {found['apart']:.1e}, weights {found['weights']:.1e}, "
        f"weights of the resumed run {found['resumed']:.1e}"
    )
    # Adam turns rounding into steps where a gradient is close to zero.
    assert found["apart"] <= 1e-3 and max(found["weights"], found["resumed"]) <= 1e-3, "not the plain run"


if __name__ == "__main__":
    main()
