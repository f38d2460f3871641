"""Devices of this machine on which tests place models, and options that make a plan use all of them."""

from __future__ import annotations

from typing import Any

THREE = ["cpu", "emulated:0", "emulated:1"]

MACHINES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "cpu": (["cpu"], {}),
    "lanes": (["cpu*2"], {"policy": "round_robin", "split": 2}),
    "devices": (THREE, {"policy": "round_robin", "split": None}),
    "halves": (THREE, {"policy": "round_robin", "split": 2}),
}
"""Devices and options by name: one lane, two lanes of the CPU, tasks in turn on three devices, and the batch in two."""
