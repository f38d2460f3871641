"""Two towers that meet at the end, as in CLIP or a recommender: width that gains without cutting the batch.

python examples/two_tower.py [--out DIR]
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import autopar


def tower(inputs: int, width: int, layers: int) -> nn.Sequential:
    blocks: list[nn.Module] = [nn.Linear(inputs, width)]
    for _ in range(layers):
        blocks += [nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*blocks)


class TwoTower(nn.Module):
    def __init__(self, width: int = 2048, layers: int = 4) -> None:
        super().__init__()
        self.image = tower(3072, width, layers)
        self.text = tower(1024, width, layers)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        a = nn.functional.normalize(self.image(image), dim=-1)
        b = nn.functional.normalize(self.text(text), dim=-1)
        return self.scale * a @ b.T


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--out", default=Path("out"), type=Path, help="folder for the pictures (default out)"
    )
    chosen = options.parse_args()
    torch.manual_seed(0)
    two_gpus = torch.cuda.device_count() >= 2
    devices = ["cpu", "cuda:0", "cuda:1"] if two_gpus else autopar.Machine.emulate("cpu-16", "t4", "t4")
    model = TwoTower().eval()
    image, text = torch.randn(1024, 3072), torch.randn(1024, 1024)
    fast = autopar.compile(model, devices, split=None)
    with torch.no_grad():
        y = fast(image, text)
        reference = model(image, text)
        with fast.record() as timeline:
            fast(image, text)
    print(fast.explain())
    print(f"\nequal to eager: {((y - reference).abs().max() / reference.abs().max()).item():.1e}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    fast.draw(chosen.out / "two_tower.html")
    timeline.save(chosen.out / "two_tower.json.gz")
    print(f"wrote {chosen.out}/two_tower.html and two_tower.json.gz")


if __name__ == "__main__":
    main()
