"""The pictures of the documentation: a two-layer MLP whose batch is split, and CLIP with a tower on each accelerator.

    python examples/readme_pictures.py [--out DIR]

The models are planned, not run, for one CPU and two emulated accelerators. Needs transformers: pip install -e '.[zoo]'.
"""

import argparse
from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPModel

import autopar
from autopar.cli.demo import MLP

WIDTH = 1000
"""Pixels, so that text is legible in the column of a README."""


def plans() -> dict[str, autopar.Plan]:
    """The plan of each picture by name."""
    tokens = torch.ones(80, 77, dtype=torch.int64)
    images = torch.zeros(64, 3, 224, 224)
    text = {"input_ids": tokens, "attention_mask": tokens}
    with torch.no_grad():
        return {
            "placed": autopar.plan(
                MLP(2048, 2048, 2048).eval(),
                autopar.Machine.emulate("cpu-16", "t4", "t4"),
                example_inputs=(torch.zeros(4096, 2048),),
            ),
            "clip": autopar.plan(
                CLIPModel(CLIPConfig()).eval(),
                autopar.Machine.emulate("cpu-16", "a10", "a10"),
                example_kwargs={"pixel_values": images, **text},
                split=None,
            ),
        }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", default=Path("out"), type=Path, help="folder of the pictures (default out)")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name, plan in plans().items():
        plan.draw(chosen.out / f"{name}.svg", width=WIDTH)
        plan.draw(chosen.out / f"{name}-dark.svg", width=WIDTH, theme="dark")
        print(chosen.out / f"{name}.svg", chosen.out / f"{name}-dark.svg")


if __name__ == "__main__":
    main()
